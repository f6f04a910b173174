"""HOW: the mechanism, at the grain of its atomic steps.

One method per step. A step is uninterruptible; between two steps anything else
may happen. Every accepted run carries a sequence, a session keeps one cancel
mark, and an accepted run is covered if its sequence is at or below the mark.

What a step does is told by the events it lets be seen (``_history.py``). The
abstract session (``_what.py``) judges them, so nothing here decides whether it
is right.

The invariants that the steps keep between them:

* The queue is in sequence order and holds no covered run: a cancel drops it in
  the same step.
* A run that leaves ``accepted`` takes its coverage along: as cancelled on
  entry, or not at all.
* The mark is 0 unless an accepted run is covered by it.
* Ending a turn and starting its successor is one step.

Left out, because no step depends on it: the text of prompts and messages,
deltas, subscribers, the hook ``on_complete``, refused calls (they change
nothing), a runner that is told to stop twice, the time a step takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from turngate_model.history import (
    Accept,
    Cancel,
    Clear,
    Complete,
    Ended,
    Enter,
    Event,
    FinishReason,
    Fold,
    Handoff,
    Wrote,
)
from turngate_model.lifecycle import DeclaredState

Mode: TypeAlias = Literal["fold", "queue", "interrupt", "in-process"]
"""``when_busy`` of an accept; ``in-process`` exists in designs that treat such prompts apart."""


class ModelRun(NamedTuple):
    """A run as the mechanism knows it: a name, and the sequence stamped at accept."""

    name: str
    seq: int


class Half(NamedTuple):
    """What is still to be done by a design that does in two steps what has to be one."""

    name: str
    runs: tuple[ModelRun, ...] = ()
    mark: int = 0

    @property
    def about(self) -> str:
        """The runs it is about, by name."""
        return " ".join(run.name for run in self.runs)


@dataclass
class ModelTurn:
    """One call of the runner, and the settling after it."""

    lead: ModelRun
    folded: list[ModelRun] = field(default_factory=list)
    cancelled: bool = False
    writing: FinishReason | Literal["", "paused"] = ""
    """Empty while the runner runs; then what is being written about the turn."""

    @property
    def runs(self) -> list[ModelRun]:
        """The lead, then the runs folded in."""
        return [self.lead, *self.folded]

    def frozen(self) -> tuple[Any, ...]:
        """Return the turn as a value that can be compared and hashed."""
        return (self.lead, tuple(self.folded), self.cancelled, self.writing)


@dataclass
class ModelSession:
    """All that the mechanism holds for one session. A quiet session holds nothing."""

    accepted: list[ModelRun] = field(default_factory=list)
    foldable: set[str] = field(default_factory=set)
    """Of the accepted and queued runs, those that may join an active turn."""
    mark: int = 0
    singled_out: set[str] = field(default_factory=set)
    """Accepted runs that were cancelled alone."""
    entering: list[ModelRun] = field(default_factory=list)
    """Runs cancelled on entry whose canceled turn is being written."""
    queue: list[ModelRun] = field(default_factory=list)
    active: str = ""
    """The lead of the turn that the dispatcher holds to be active."""
    turns: list[ModelTurn] = field(default_factory=list)
    """The turns that there really are; a sound mechanism never has two."""
    pending: int = 0
    """For designs that keep a flag or a count instead of a mark."""
    unfinished: list[Half] = field(default_factory=list)
    """For designs that do in two steps what has to be one: the second halves still to come."""

    def frozen(self) -> tuple[Any, ...]:
        """Return what makes two sessions the same.

        Whether an accepted run that the mark covers was also cancelled alone, or could have been folded,
        no step will ask again.
        """
        marked = {run.name for run in self.accepted if run.seq <= self.mark}
        return (
            tuple(self.accepted),
            frozenset(self.foldable - marked - self.singled_out),
            self.mark,
            frozenset(self.singled_out - marked),
            tuple(self.entering),
            tuple(self.queue),
            self.active,
            tuple(turn.frozen() for turn in self.turns),
            self.pending,
            tuple(self.unfinished),
        )

    def copy(self) -> ModelSession:
        """Return a session that goes its own way from here."""
        return ModelSession(
            list(self.accepted),
            set(self.foldable),
            self.mark,
            set(self.singled_out),
            list(self.entering),
            list(self.queue),
            self.active,
            [ModelTurn(turn.lead, list(turn.folded), turn.cancelled, turn.writing) for turn in self.turns],
            self.pending,
            list(self.unfinished),
        )

    def turn_of(self, lead: str) -> ModelTurn | None:
        """Return the turn that a run leads."""
        return next((turn for turn in self.turns if turn.lead.name == lead), None)

    @property
    def in_flight(self) -> list[ModelRun]:
        """Every run that the mechanism still holds, in sequence order."""
        turns = [run for turn in self.turns for run in turn.runs]
        return sorted([*self.accepted, *self.entering, *self.queue, *turns], key=lambda run: run.seq)


class Action(NamedTuple):
    """One step that could be taken next: by whom, which, about which run, and how."""

    actor: Literal["caller", "runner", "store", "session"]
    name: str
    run: str = ""
    how: str = ""


ENVIRONMENT = ("accept", "again", "enter", "release", "cancel", "cancel_run", "clear", "fold", "close")
"""Steps that users take, or do not: nothing is owed because one of them did not happen."""
INTERNAL = ("end", "written", "settle", "resume")
"""Steps that happen of themselves, if runners end and stores answer."""


class Mechanism:
    """The mechanism. A known-bad design is a subclass that does one thing otherwise."""

    modes: tuple[Mode, ...] = ("fold", "queue", "interrupt")

    common = 0
    """Memory outside every session. A sound mechanism keeps nothing there."""

    def __init__(self, see: Callable[[Event], None]) -> None:
        self.see = see

    # Steps of the callers.

    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        """Take a prompt in; one that interrupts cancels first, in the same step."""
        if mode == "interrupt":
            self.cancel(s)
        self.see(Accept(run.name, mode == "fold"))
        s.accepted.append(run)
        if mode == "fold":
            s.foldable.add(run.name)

    def again(self, s: ModelSession, run: ModelRun) -> None:
        """Accept under a known run_id: the same run comes back and nothing changes."""

    def enter(self, s: ModelSession, run: ModelRun) -> None:
        """Decide what becomes of an accepted run."""
        covered = self.is_covered(s, run)
        self.leave_accepted(s, run)
        if covered:
            s.foldable.discard(run.name)
            s.entering.append(run)
            self.see(Enter(run.name, DeclaredState.CANCEL_ON_ENTRY))
        elif self.is_occupied(s):
            self.enqueue(s, run)
            self.see(Enter(run.name, DeclaredState.QUEUED))
        else:
            self.start(s, run)
            self.see(Enter(run.name, DeclaredState.ACTIVE))

    def release(self, s: ModelSession, run: ModelRun) -> None:
        """Give an accepted run up."""
        covered = self.is_covered(s, run)
        self.leave_accepted(s, run)
        s.foldable.discard(run.name)
        self.see(Complete(run.name, covered, "released before entry"))

    def cancel(self, s: ModelSession) -> None:
        """Cover all that is in flight: mark what is accepted, drop the queue, interrupt the turn."""
        self.see(Cancel())
        self.raise_mark(s)
        self.drop(s, s.queue, cancelled=True)
        self.interrupt(s)

    def cancel_run(self, s: ModelSession, run: ModelRun) -> None:
        """Cover one run, or the whole turn if the run is part of it."""
        turn = next((turn for turn in s.turns if run in turn.runs), None)
        self.see(Cancel(frozenset(each.name for each in (turn.runs if turn else [run]))))
        if run in s.accepted:
            s.singled_out.add(run.name)
        elif run in s.queue:
            self.drop(s, [run], cancelled=True)
        elif turn:
            turn.cancelled = True

    def clear(self, s: ModelSession) -> None:
        """Drop what is queued; accepted and active runs go on."""
        self.see(Clear())
        self.drop(s, s.queue, cancelled=False)

    def close(self, s: ModelSession) -> None:
        """Shut down: cancel everything, and release what has not entered."""
        self.cancel(s)
        for run in list(s.accepted):
            self.release(s, run)

    # Steps of the runner.

    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        """Take follow-ups into the turn, from the head of the queue up to the first that wants its own."""
        while s.queue and s.queue[0].name in s.foldable and not turn.cancelled:
            self.join(s, turn, s.queue.pop(0))

    def end(self, s: ModelSession, turn: ModelTurn, outcome: FinishReason) -> None:
        """End the runner's call and begin to write down what came of it."""
        self.see(Ended(turn.lead.name))
        turn.writing = "canceled" if turn.cancelled else outcome

    # Steps of the store.

    def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
        """Return from the write. If a cancel came meanwhile the record is wrong: write it again first."""
        self.record(turn.runs, turn.writing, ok)
        if ok and turn.cancelled and turn.writing != "canceled":
            turn.writing = "canceled"
            return
        self.complete_turn(s, turn, None if ok else "store failed")
        self.hand_off(s, turn)

    def settle(self, s: ModelSession, run: ModelRun, ok: bool) -> None:
        """Return from writing the canceled turn of a run cancelled on entry, well or not."""
        self.record([run], "canceled", ok)
        s.entering.remove(run)
        self.see(Complete(run.name, True, None if ok else "store failed"))

    def resume(self, s: ModelSession, half: Half) -> None:
        """Do the second half of what a design does in two steps. A sound mechanism has none."""
        raise NotImplementedError(half)

    def resumable(self, s: ModelSession, half: Half) -> bool:
        """Tell whether a second half can be done yet."""
        return True

    # What the steps are made of.

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        """Tell whether a cancel covers an accepted run."""
        return run.seq <= s.mark or run.name in s.singled_out

    def is_occupied(self, s: ModelSession) -> bool:
        """Tell whether a newcomer has to wait."""
        return bool(s.active or s.queue)

    def raise_mark(self, s: ModelSession) -> None:
        """Cover every accepted run: a later one gets a higher sequence."""
        if s.accepted:
            s.mark = max(s.mark, s.in_flight[-1].seq)

    def lower_mark(self, s: ModelSession) -> None:
        """Take the mark away once no accepted run needs it."""
        if not any(run.seq <= s.mark for run in s.accepted):
            s.mark = 0

    def leave_accepted(self, s: ModelSession, run: ModelRun) -> None:
        """Take a run out of those accepted, and with it what was kept about it."""
        s.accepted.remove(run)
        s.singled_out.discard(run.name)
        self.lower_mark(s)

    def enqueue(self, s: ModelSession, run: ModelRun) -> None:
        """Queue a run where its sequence belongs, however late it entered."""
        s.queue.append(run)
        s.queue.sort(key=lambda queued: queued.seq)

    def start(self, s: ModelSession, run: ModelRun) -> None:
        """Make the run active, as the lead of a new turn."""
        s.foldable.discard(run.name)
        s.active = run.name
        s.turns.append(ModelTurn(run))

    def join(self, s: ModelSession, turn: ModelTurn, run: ModelRun) -> None:
        """Fold a run that has left the queue into the turn."""
        s.foldable.discard(run.name)
        turn.folded.append(run)
        self.see(Fold(run.name, turn.lead.name))

    def interrupt(self, s: ModelSession) -> None:
        """Cancel the active turn; if it is being written already, the step after the write will look."""
        turn = s.turn_of(s.active)
        if turn:
            turn.cancelled = True

    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        """Complete queued runs that will never be active, because of a cancel or of a clear."""
        for run in list(runs):
            s.queue.remove(run)
            s.foldable.discard(run.name)
            self.see(Complete(run.name, cancelled, None if cancelled else "cleared from the queue"))

    def record(self, runs: list[ModelRun], reason: Any, ok: bool) -> None:
        """Write the messages of the runs, or fail to."""
        for run in runs:
            self.see(Wrote(run.name, reason if ok else "unwritten"))

    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        """Complete every run of the turn, all with the same outcome."""
        failed = "runner failed" if turn.writing == "error" else None
        for run in turn.runs:
            self.see(Complete(run.name, turn.cancelled, error or failed))

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        """Start the next queued run in the step that ends the turn, whatever its outcome."""
        s.turns.remove(turn)
        s.active = ""
        self.start_next(s)

    def start_next(self, s: ModelSession) -> None:
        """Start the first of the queue, if there is one."""
        if s.queue:
            run = s.queue.pop(0)
            self.start(s, run)
            self.see(Handoff(run.name))

    # The steps that could be taken next, and taking one.

    def actions(self, s: ModelSession, complete: list[str]) -> Iterator[Action]:
        """Yield every step but accept and close, which need to know about other sessions.

        Of the complete runs one is enough to be accepted again: they are all alike.
        """
        for name in complete[:1]:
            yield Action("caller", "again", name)
        for run in dict.fromkeys(s.accepted):
            yield Action("caller", "again", run.name)
            yield Action("caller", "enter", run.name)
            yield Action("caller", "release", run.name)
        yield Action("caller", "cancel")
        for run in s.in_flight:
            yield Action("caller", "cancel_run", run.name)
        if s.active or s.queue:
            yield Action("caller", "clear")
        for turn in s.turns:
            yield from self.turn_actions(s, turn)
        for run in s.entering:
            yield from _stored("settle", run)
        for half in s.unfinished:
            if self.resumable(s, half):
                yield Action("session", "resume", half.about, half.name)

    def turn_actions(self, s: ModelSession, turn: ModelTurn) -> Iterator[Action]:
        """Yield the steps that a turn could take next."""
        if turn.writing == "":
            if s.queue:
                yield Action("runner", "fold", turn.lead.name)
            for outcome in ("canceled",) if turn.cancelled else ("end_turn", "error"):
                yield Action("runner", "end", turn.lead.name, outcome)
        elif turn.writing != "paused":
            yield from _stored("written", turn.lead)

    def take(self, s: ModelSession, action: Action) -> None:
        """Take one step, changing the session in place."""
        step = getattr(self, action.name)
        if action.name in ("fold", "end", "written"):
            turn = s.turn_of(action.run)
            assert turn is not None
            step(s, turn, *_argument(action))
        elif action.name == "resume":
            half = next(half for half in s.unfinished if (half.about, half.name) == (action.run, action.how))
            s.unfinished.remove(half)
            step(s, half)
        elif action.name in ("cancel", "clear", "close"):
            step(s)
        else:
            held = next((run for run in s.in_flight if run.name == action.run), ModelRun(action.run, 0))
            step(s, held, *_argument(action))


def _stored(name: str, run: ModelRun) -> Iterator[Action]:
    yield Action("store", name, run.name, "ok")
    yield Action("store", name, run.name, "fails")


def _argument(action: Action) -> tuple[Any, ...]:
    if action.name == "end":
        return (action.how,)
    if action.name in ("written", "settle"):
        return (action.how == "ok",)
    return ()
