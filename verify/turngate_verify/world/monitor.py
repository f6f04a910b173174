"""The monitor of a closed world: it observes everything there, and says what is wrong.

It observes three things: the dispatcher's recording, what happens to the runner
and the store, and the events that subscribers and hooks receive. It passes them
as events to the abstract session of the same name, which judges them. It also
compares what the dispatcher reports about itself with the abstract session.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from turngate import Delta, Dispatcher, Message, Note, Run, RunComplete, WhenBusy
from turngate_model import AbstractSession, Property, Successor, Violation, successor
from turngate_model.history import (
    Accept,
    Called,
    Cancel,
    Clear,
    Complete,
    Edit,
    Ended,
    Enter,
    Event,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
    Wrote,
)
from turngate_model.lifecycle import DeclaredState
from turngate_verify.world.expecting import Broken
from turngate_verify.world.onlookers import MovesSubscriber, compare_view
from turngate_verify.world.virtual_loop import VirtualLoop
from turngate_verify.world.waiting import WaitingTurns

_DECLARED = {state.value: state for state in DeclaredState}
_OF_SOME: dict[str, type[Cancel | Clear | Hold | Resume]] = {
    "cancel": Cancel, "clear": Clear, "hold": Hold, "resume": Resume,
}  # fmt: skip
"""Entries about a whole session, or about the runs that they name."""
_INTERNAL = (Property.REFINES, Property.DECLARED_MOVE)
"""Disagreements about the inside. The monitor raises them only if users lose nothing."""


class Monitor:
    """Observes everything about one dispatcher.

    ``claimed`` are the properties that a known-bad design is said to break. If given, the monitor raises only
    for these, whatever else the design breaks. ``turns_limit`` is that of the dispatcher.
    """

    def __init__(  # noqa: PLR0915 - it is one list of what is kept
        self,
        loop: VirtualLoop,
        *,
        claimed: Iterable[Property] = (),
        declared: Successor = successor,
        turns_limit: int | None = None,
    ) -> None:
        self.claimed = frozenset(claimed)
        self.waiting = None if turns_limit is None else WaitingTurns(turns_limit)
        """The turns that wait for a place, if the dispatcher has a limit."""
        self.runs: dict[str, Run] = {}
        """Every run accepted, by id, in the order of acceptance."""
        self.sessions: dict[str, AbstractSession] = {}
        self.history: list[tuple[str, Event]] = []
        """Every event so far, with its session."""
        self.violations: list[Violation] = []
        self.errors: list[BaseException] = []
        """Problems that break no property, and exceptions of the monitor itself."""
        self.published: dict[str, RunComplete] = {}
        self.delivered: list[RunComplete] = []
        """The RunCompletes that the subscribers to all sessions received."""
        self.prompts: dict[str, str] = {}
        """The prompt of each run, as accepted, or as it was last edited."""
        self.called_back: dict[int, list[RunComplete]] = {}
        """What the done callback of each run received, by sequence. It should be one RunComplete."""
        self.hooked: list[RunComplete] = []
        """The RunCompletes that hooks received since ``read_published`` was last called."""
        self.deltas: Counter[str] = Counter()
        """How many deltas and notes of each session ``read_published`` has seen."""
        self.hooks: set[str] = set()
        """The runs that were accepted with a hook."""
        self.active: set[str] = set()
        """The runs that were ever active or cancelled on entry, and so leave messages."""
        self.entered: set[str] = set()
        """The runs that have entered."""
        self.called: set[int] = set()
        """The sequences of the lead runs for whose turns the runner was called."""
        self.settling: set[int] = set()
        """The sequences of the lead runs whose turns the store was asked to write."""
        self.completed: list[int] = []
        """The sequences of the complete runs, in the order in which they became complete."""
        self.ended = False
        """Whether the recording has ended."""
        self._loop = loop
        self._declared = declared
        self._foldable: set[str] = set()
        self._queued: set[str] = set()
        """The runs that were ever queued, and so complete to the subscribers, with or without a hook."""
        self._outcomes: dict[str, tuple[bool, str | None]] = {}
        """The outcome of each run, cancelled and error, as recorded."""
        self._unread_outcomes = False
        self._texts: dict[str, str] = {}
        """The text of each turn whose runner has ended, by its lead run."""
        self._streamed: dict[int, str] = {}
        """What a stream should give for each turn, by the sequence of the lead run."""
        self._kept: dict[int, object] = {}
        """What the runner of each turn has kept last, by the sequence of the lead run."""
        self._lead_of: dict[int, int] = {}
        """The sequence of the lead run, by that of each folded run."""

    def watch(self, dispatcher: Dispatcher) -> None:
        """Subscribe to a dispatcher that has just been made."""
        self._dispatcher = dispatcher
        with self._loop:
            self.events = dispatcher.subscribe()
        self.moves = MovesSubscriber(self._loop, dispatcher)
        # The monitor must miss nothing, and must never be cut off.
        self.events._delta_limit = self.events._complete_limit = sys.maxsize

    def violate(self, broken: Property, what: str) -> None:
        """Note that a property is broken."""
        self.violations.append(Violation(broken, what))

    # What the monitor receives.

    def announce(self, run_id: str, when_busy: WhenBusy, *, hook: bool = False) -> None:
        """Note the options of a prompt that a caller is about to send, which the recording does not show."""
        if run_id in self.runs:
            return
        if when_busy == "fold":
            self._foldable.add(run_id)
        if hook:
            self.hooks.add(run_id)

    def hear(self, entry: dict[str, Any]) -> None:
        """Take one entry of the dispatcher's recording."""
        self.moves.recorded(entry)
        kind, run = entry["event"], entry.get("run", "")
        event: Event
        if kind == "accept":
            if run in self.runs:
                return  # a known run_id is accepted again: this is the same run
            self.runs[run] = self._dispatcher._sessions.runs[run]
            self._texts.pop(run, None)
            self.prompts[run] = self.runs[run].prompt
            event = Accept(run, run in self._foldable, entry.get("into", ""))
        elif kind == "complete":
            event = Complete(run, entry["cancelled"], entry.get("error"))
            self._outcomes[run] = event[1:]
            self._unread_outcomes = True
            self.completed.append(entry["seq"])
        elif kind in _OF_SOME:
            event = _OF_SOME[kind](frozenset(entry["runs"]) if "runs" in entry else None)
            if entry.get("unbinds"):
                event = Resume(event.runs, unbinds=True)
        elif kind == "move":
            event = Move(run, entry["before"] or "")
        elif kind == "edit":
            event = Edit(run, entry["when_busy"] == "fold" if "when_busy" in entry else None)
        elif kind == "end":
            self.ended = True
            return
        else:
            event = self._moved(kind, run, entry)
        self.observe(entry["session"], event)

    def _moved(self, kind: str, run: str, entry: dict[str, Any]) -> Event:
        """Return the event of a run that has entered, or has left the queue for a turn."""
        self.entered.add(run)
        if entry.get("state") == "queued":
            self._queued.add(run)
        else:
            self.active.add(run)
        if kind == "fold" and entry.get("into") in self.runs:
            self._lead_of[entry["seq"]] = self.runs[entry["into"]].seq
        if kind == "enter":
            return Enter(run, _DECLARED[entry["state"]])
        return Handoff(run) if kind == "handoff" else Fold(run, entry.get("into", ""))

    def saw_runner_called(self, lead: Run) -> None:
        """Note that the runner is called for a turn."""
        self.called.add(lead.seq)
        self._expect_edited(lead.run_id, lead.prompt)
        if self.waiting is not None:
            self.observe(lead.session_id, Called(lead.run_id))

    def saw_runner_end(self, lead: Run, text: str, written: str, kept: object) -> None:
        """Note that the runner of a turn has ended: what it has produced, written and kept."""
        self._kept[lead.seq] = kept
        self._texts[lead.run_id] = text
        self._streamed[lead.seq] = written or text
        self.observe(lead.session_id, Ended(lead.run_id))

    def lead_of(self, run: Run) -> str:
        """Return the lead of the active turn that a run is part of; empty if there is none."""
        abstract = self.sessions.get(run.session_id)
        part = abstract is not None and self.runs.get(run.run_id) is run and run.run_id in abstract.turn
        return abstract.lead if abstract is not None and part else ""

    def should_keep(self, complete: RunComplete) -> object:
        """Return the data that should be beside the reply to a complete run."""
        return self._kept.get(self._lead_of.get(complete.seq, complete.seq))

    def should_stream(self, complete: RunComplete) -> str:
        """Return what a stream of a complete run should give: what was written, else what was returned."""
        return self._streamed.get(self._lead_of.get(complete.seq, complete.seq), "")

    def saw_settling(self, lead: str) -> None:
        """Note that a turn is about to be written, so that it no longer waits for a place."""
        run = self.runs.get(lead)
        if run is None:
            return
        self.settling.add(run.seq)
        session = run.session_id
        if self.waiting is not None and self.waiting.waits(session) and self.sessions[session].lead == lead:
            self.observe(session, Ended(lead))

    def saw_write(self, messages: Sequence[Message], reason: Any) -> None:
        """Note that the store has written the messages of some runs, or could not write them."""
        for message in messages:
            if message.role == "user":
                self._expect_edited(message.run_id, message.text)
                self.observe(message.session_id, Wrote(message.run_id, reason))

    def _expect_edited(self, run: str, prompt: str) -> None:
        """Expect the runner and the store to get the prompt of a run as it was last edited."""
        if prompt != self.prompts.get(run, prompt):
            wrong = f"{run} is given as {prompt!r}: it should be {self.prompts[run]!r}, as last edited"
            self.violate(Property.AS_EDITED, wrong)

    def observe(self, session: str, event: Event) -> None:
        """Have the abstract session judge an event."""
        self.history.append((session, event))
        abstract = self.sessions.get(session)
        if abstract is None:
            limited = self.waiting is not None
            abstract = self.sessions[session] = AbstractSession(self._declared, limited=limited)
        try:
            self.violations += abstract.observe(event)
            if self.waiting is not None:
                self.violations += self.waiting.observe(session, event, abstract)
        except Exception as exc:
            # The dispatcher would catch this here, so the monitor raises it at the next check.
            self.errors.append(exc)

    def rename(self, run_id: str, former: str) -> None:
        """Rename a run that the dispatcher has forgotten, because a new run is about to take its id."""
        run = self.runs.pop(run_id)
        self.sessions[run.session_id].forget(run_id)
        self.published[former] = self.published.pop(run_id)
        self._outcomes[former] = self._outcomes.pop(run_id)
        for of_those in (self.entered, self.active):
            if run_id in of_those:
                of_those.remove(run_id)
                of_those.add(former)
        for of_those in (self.hooks, self._queued, self._foldable):
            of_those.discard(run_id)

    # What was published.

    def read_published(self) -> list[RunComplete]:
        """Read what subscribers and hooks received, and compare it with the recording."""
        self.errors += map(AssertionError, self.moves.compare())
        unread = self.events._unread
        if not unread and not self.hooked and not self._unread_outcomes:
            return []
        self._unread_outcomes = False
        self._expect_no_delta_after_complete(unread)
        told = [event for event in unread if isinstance(event, RunComplete)]
        self.delivered += told
        unread.clear()
        self.events._sizes.clear()
        self.events._unread_bytes = 0
        hooked = self.hooked.copy()
        self.hooked.clear()
        for complete in told:
            self._take_complete(complete, to_hook=False)
        for complete in hooked:
            self._take_complete(complete, to_hook=True)
        self._compare_with_recorded()
        return told + hooked

    def _expect_no_delta_after_complete(self, events: Collection[object]) -> None:
        """Count the deltas; no delta of a run may come after its RunComplete."""
        complete = set(self.published)
        self.deltas.update(event.session_id for event in events if isinstance(event, Delta | Note))
        for event in events:
            if isinstance(event, RunComplete):
                complete.add(event.run_id)
            elif isinstance(event, Delta | Note) and event.run_id in complete:
                late = f"a delta of {event.run_id} comes after its RunComplete: that should be the last event"
                self.violate(Property.LAST_WORD, late)

    def _take_complete(self, complete: RunComplete, *, to_hook: bool) -> None:
        """Expect a RunComplete to be its run's first, at the right receiver, with the right text."""
        run = complete.run_id
        if to_hook != (run in self.hooks - self._queued):
            whom = f"{run} completes to the wrong one: to its hook, unless it has none or was queued"
            self.violate(Property.EXACTLY_ONE_COMPLETE, whom)
        if run in self.published:
            self.violate(Property.EXACTLY_ONE_COMPLETE, f"{run} gets a second RunComplete")
        self.published[run] = complete
        text = self._texts.get(complete.folded_into or run, "")
        if complete.text != text:
            self.errors.append(AssertionError(f"{run} completes with {complete.text!r}, not {text!r}"))

    def _compare_with_recorded(self) -> None:
        """Expect exactly the runs recorded as complete to be published, each with the recorded outcome."""
        recorded, published = set(self._outcomes), set(self.published)
        for run in sorted(recorded ^ published):
            differ = f"{run} is {'recorded' if run in recorded else 'published'} as complete, but not both"
            self.violate(Property.EXACTLY_ONE_COMPLETE, differ)
        for run, complete in self.published.items():
            if run in recorded and self._outcomes[run] != (complete.cancelled, complete.error):
                changed = f"{run} was complete as {self._outcomes[run]}, and is now {complete}"
                self.violate(Property.TERMINAL_IS_FINAL, changed)

    # What the dispatcher reports about itself.

    def compare(self) -> None:
        """Compare what the dispatcher reports about each session with the abstract session."""
        held = self._dispatcher._sessions.cores
        for session, abstract in self.sessions.items():
            if not self.claimed:
                self._compare(session, abstract)
            if abstract.quiet and session in held:
                residue = f"the dispatcher holds {held[session]}, which is quiet: it should hold nothing"
                self.violate(Property.NO_RESIDUE, residue)

    def at_rest(self) -> None:
        """Look for turns that wait without a reason, while the loop has nothing to do."""
        if self.waiting is not None and not self.claimed:
            self.violations += self.waiting.at_rest(self._dispatcher)

    def _compare(self, session: str, abstract: AbstractSession) -> None:
        dispatcher = self._dispatcher
        accepted = abstract.in_state(DeclaredState.ACCEPTED)
        states: dict[str, str] = {
            run.run_id: run.state for run in self.runs.values() if run.session_id == session
        }
        if states != abstract.states:
            self._differ(session, "states", states, abstract.states)
        if session not in dispatcher._sessions.cores and abstract.quiet:
            return  # the dispatcher does not hold this session, so it reports nothing
        queued = [run.run_id for run in dispatcher.queued(session)]
        if queued != abstract.queue:
            self._differ(session, "queued", queued, abstract.queue)
        count = dispatcher.accepted_count(session)
        if count != len(accepted):
            self._differ(session, "accepted", count, accepted)
        busy = dispatcher.is_busy(session)
        if busy != bool(abstract.turn):
            self._differ(session, "busy", busy, abstract.turn)
        for differs in compare_view(dispatcher, session, abstract):
            self.violate(Property.REFINES, differs)
        if dispatcher.cancel_mark(session) and not abstract.covered.intersection(accepted):
            self._differ(session, "mark", dispatcher.cancel_mark(session), 0)

    def _differ(self, session: str, name: str, said: object, should: object) -> None:
        differ = f"{name} of {session}: the dispatcher says {said}, the abstract session {should}"
        self.violate(Property.REFINES, differ)

    # What is wrong.

    def raise_what_is_broken(self) -> None:
        """Raise Broken for the first violation, and AssertionError for anything else that is wrong.

        A violation that costs users something comes before a disagreement about the inside.
        """
        if self.claimed:
            broken = [each for each in self.violations if each.property in self.claimed]
        else:
            broken = sorted(self.violations, key=lambda each: each.property in _INTERNAL)
        if broken:
            raise Broken(broken[0])
        if self.claimed:
            return
        if self.errors:
            raise self.errors[0]
        if self._loop.problems:
            raise AssertionError(f"the loop was told: {told_to(self._loop)}")


def told_to(loop: VirtualLoop) -> str:
    """Describe what the exception handler of a loop received first."""
    problem = loop.problems[0]
    return f"{problem['message']}: {problem.get('exception')!r}"
