"""One session as the monitor knows it: from the middle, with runs in it that it has not seen.

Everything is known of a run whose accept was seen: what came before the accept does not concern it. So a
cancel that covers it, a hold, its place among the other known runs and what happened to it are judged from
the first line on. What is not known is whether an unseen run occupies the session. Only one kind of line
depends on that: an ``enter`` as queued, for which an unseen run may be the reason. It counts as a breach
only while the session is *settled*:

* A session is settled when a known run enters as active. In a right history there is no turn then, and
  no queued run that is not held.
* It is not settled any more when a line names an unseen run, or when everything that is held is resumed,
  for an unseen run may have been held.

A move beside an unseen run puts a run to a place that is not known. No order is asked for in the session
until that run is not waiting any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from turngate_model.abstract_session import AbstractSession
from turngate_model.lifecycle import WAITING, DeclaredState
from turngate_model.properties import Property, Violation
from turngate_verify.trace import events_of
from turngate_verify.trace_lines import RecordedLine, read_line


class Shown(NamedTuple):
    """One line of a recording."""

    nth: int
    """How many lines were read up to it, in all files."""
    line: int
    """Its number in its file."""
    text: str


class WatchedSession:
    """A session with the runs whose accepts were seen, and the lines about each of them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.settled_in = -1
        """In which epoch of the monitor it was settled; in a later one it is not."""
        self.state = AbstractSession()
        self._lines: dict[str, dict[str, Shown]] = {}
        """For each run the last line of each kind that concerned it."""
        self._misplaced: set[str] = set()
        """The runs that wait at a place which is not known."""

    @property
    def runs(self) -> Iterable[str]:
        """The runs that are in flight and known."""
        return self.state.states

    @property
    def kept(self) -> int:
        """How many lines are kept."""
        return sum(map(len, self._lines.values()))

    def lines_of(self, run: str) -> tuple[Shown, ...]:
        """Return what is kept about a run."""
        return tuple(self._lines.get(run, {}).values())

    def forget(self, run: str) -> None:
        """Forget a run that is complete."""
        self.state.forget(run)
        self._misplaced.discard(run)
        del self._lines[run]

    def observe(
        self, said: RecordedLine, shown: Shown, *, settled: bool, beside_unseen: bool
    ) -> Violation | None:
        """Take a line in, and return what it breaks whatever the unseen runs do.

        With ``beside_unseen``, the other run that the line names is not known.
        """
        if said.kind == "move" and beside_unseen and self.state.states[said.run] in WAITING:
            self._misplaced.add(said.run)
            self._keep(said, shown, ())
            return None
        led_by_unseen = bool(self.state.turn) and not self.state.lead
        if beside_unseen and said.kind != "fold":
            said = said._replace(beside="")
        elif said.kind == "accept" and led_by_unseen:
            said = said._replace(beside="")  # it counts as a run that may have a turn of its own
        excused = self._excused(said, settled=settled, beside_unseen=beside_unseen)
        before = self._marked(said)
        found = [each for event in events_of(said, self.state) for each in self.state.observe(event)]
        self._keep(said, shown, self._marked(said) - before)
        self._place(said)
        return next((each for each in found if each.property not in excused), None)

    def _excused(self, said: RecordedLine, *, settled: bool, beside_unseen: bool) -> set[Property]:
        """Return the properties that a line may seem to break because of what was not seen."""
        excused = set[Property]()
        if self._misplaced:
            excused.add(Property.FIFO)
        if (said.state is DeclaredState.QUEUED and not settled) or (said.kind == "fold" and beside_unseen):
            excused.add(Property.DECLARED_MOVE)
        return excused

    def _place(self, said: RecordedLine) -> None:
        """Keep the set of runs up to date whose place is not known."""
        if said.kind == "move":
            # What is put before a misplaced run is misplaced too; behind all is a place that is known.
            (self._misplaced.add if said.beside in self._misplaced else self._misplaced.discard)(said.run)
        elif self._misplaced:
            self._misplaced = {run for run in self._misplaced if self.state.states[run] in WAITING}

    def _marked(self, said: RecordedLine) -> set[str]:
        """Return the runs that bear the mark which a command gives or takes."""
        match said.kind:
            case "cancel":
                return set(self.state.covered)
            case "clear":
                return set(self.state.cleared)
            case "hold":
                return set(self.state.held)
            case "resume":
                return set(self.state.states) - self.state.held
            case _:
                return set()

    def _keep(self, said: RecordedLine, shown: Shown, marked: Iterable[str]) -> None:
        for run in marked:
            self._lines[run][said.kind] = shown
        if said.run:
            self._lines.setdefault(said.run, {})[said.kind] = shown

    def owed(self) -> list[Violation]:
        """Return what is broken if nothing more will happen: every run in flight is owed a RunComplete."""
        never = "{} was accepted and never got a RunComplete"
        missing = [Violation(Property.EXACTLY_ONE_COMPLETE, never.format(run)) for run in self.runs]
        return [*self.state.owed(), *missing]

    # What shows a violation.

    def shortest(self, broken: Property, runs: Iterable[str], last: Shown) -> list[Shown]:
        """Return the fewest of the kept lines that show a violation whose last line is the one given.

        ``runs`` are those that it is probably about. Whole runs are left out, and then commands, as long
        as they show the same by themselves. If what is kept does not show it alone, because it takes what
        happened earlier, the lines of those runs are returned.
        """
        likely = [run for run in dict.fromkeys(runs) if run in self._lines]
        chosen = likely
        if not _shows(broken, self._told(likely, last)):
            chosen = list(self._lines)
            if not _shows(broken, self._told(chosen, last)):
                return self._told(likely, last)
        size = max(1, len(chosen) // 2)
        while chosen:
            for place in range(0, len(chosen), size):
                fewer = [run for run in chosen if run not in chosen[place : place + size]]
                if len(fewer) < len(chosen) and _shows(broken, self._told(fewer, last)):
                    chosen = fewer
                    break
            else:
                if size == 1:
                    break
                size = max(1, size // 2)
        told = self._told(chosen, last)
        for command in [each for each in told if each in {*self._commands(chosen)} and each != last]:
            fewer_lines = [each for each in told if each != command]
            if _shows(broken, fewer_lines):
                told = fewer_lines
        return told

    def _told(self, runs: Iterable[str], last: Shown) -> list[Shown]:
        own = {shown for run in runs for shown in self._lines[run].values()} - {last}
        return [*sorted(own), last]

    def _commands(self, runs: Iterable[str]) -> Iterator[Shown]:
        for run in runs:
            for kind in ("cancel", "clear", "hold"):
                if shown := self._lines[run].get(kind):
                    yield shown


def _shows(broken: Property, told: list[Shown]) -> bool:
    """Return whether these lines break this property at the last of them, whatever was before the first."""
    session = WatchedSession("")
    found: list[Violation | None] = []
    for shown in told:
        said = read_line(shown.text, shown.line)
        if said.kind == "end":
            found += session.owed()[:1]
        elif not said.run or said.kind == "accept" or said.run in session.state.states:
            unseen = bool(said.beside) and said.beside not in session.state.states
            found.append(session.observe(said, shown, settled=False, beside_unseen=unseen))
    *before, last = found or [None]
    return not any(before) and last is not None and last.property is broken
