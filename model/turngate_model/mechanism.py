"""The mechanism: how a dispatcher keeps the promises, one method per step.

Nothing interrupts a step; anything may happen between two. A step shows what it does as events
(``history.py``), and the abstract session judges these events. The mechanism never judges itself.

Every accepted run carries a sequence, and every session keeps one cancel mark. A cancel covers an accepted
run if the run's sequence is at or below the mark.

A run waits while it is accepted or queued. What waits is in line. A waiting run has a rank: its position in
line is that of its rank. The rank is the sequence, until a move gives the run the rank of another.

Laws
====

Every step keeps these laws:

1. The queue is in the order of ranks.
2. The queue holds no covered run, because a cancel drops the queue in its own step.
3. A step looks at the mark when a run leaves ``accepted``, and never again for that run. If the mark covers
   the run, the run becomes cancel_on_entry or completes as cancelled.
4. The mark is 0 unless it covers an accepted run.
5. One step ends a turn and starts its successor.
6. While no turn is active, every queued run is held. Handoff and fold pass held runs by.
7. A move permutes the ranks of waiting runs and makes up none. So every later sequence is above every rank.
8. Coverage asks for the sequence, order asks for the rank, and nothing asks for both.
9. A run that is for one turn alone waits only as long as that turn is active.
10. With a limit on turns, turns wait for a place in the order in which they became active. A covered turn
    does not wait.

Places
======

Without a limit on turns (``places`` is None) the runner is called in the step that makes a turn active. With
a limit, that step puts the turn in line, and a later step (``call``) gives it a place and calls its runner. A
turn in line is active: its session is busy, and follow-ups are queued behind it. But it takes nothing in and
cannot end, because its runner has not been called. A cancel that covers it lets it settle as cancelled at
once, and its runner is never called.

What is left out
================

No step depends on the text of prompts and messages, on deltas, on subscribers, on the hook ``on_complete``,
on calls that are refused (they change nothing), on a runner that is interrupted twice, or on time. So the
steps here are only those that callers are allowed to take: see ``line_actions`` for what must be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

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
    FinishReason,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
    Wrote,
)
from turngate_model.lifecycle import DeclaredState
from turngate_model.model_session import Half, Mode, ModelRun, ModelSession, ModelTurn
from turngate_model.places import ModelPlaces


class Action(NamedTuple):
    """A step that could be taken next.

    ``actor`` takes the step, ``name`` is the method of the mechanism, ``run`` the run that it is about; a
    move before another run names both. ``how`` is the ``when_busy`` of an accept or an edit, ``before`` or
    ``last`` for a move, the outcome of a runner, or whether the store has written (``ok``) or failed
    (``fails``).
    """

    actor: Literal["caller", "runner", "store", "session", "process"]
    name: str
    run: str = ""
    how: str = ""


INTERNAL = ("call", "end", "written", "settle", "second_half")
"""The steps that do happen, sooner or later, as long as runners end and stores answer.

Callers and runners are free to take the other steps or not.
"""


class Mechanism:
    """The mechanism. A known-bad design is a subclass that does one thing differently.

    An instance takes one step. ``see`` receives the events of the step.
    """

    modes: tuple[Mode, ...] = ("fold", "queue", "interrupt")

    pending_is: Literal["", "flag", "count"] = ""
    """What ``ModelSession.pending`` is to a known-bad design. A sound mechanism does not use it."""
    common = 0
    """What all sessions share, places aside. A sound mechanism keeps nothing here; a broken one may."""
    places: ModelPlaces | None = None
    """The places that all sessions share, or None if the number of runner calls is not limited."""
    session = 0
    """The number of the session in which the step is taken."""

    def __init__(self, see: Callable[[Event], None]) -> None:
        self.see = see

    # Steps of the callers.

    def accept(self, s: ModelSession, run: ModelRun, mode: Mode) -> None:
        """Take a prompt in. It is last in line, and it is not held, whatever was held before.

        One that interrupts first cancels the session, in the same step. One that is for one turn alone
        (``into``) is refused unless that turn runs and is not covered: see ``can_bind``.
        """
        if mode == "interrupt":
            self.cancel(s)
        foldable = mode in ("fold", "into")
        self.see(Accept(run.name, foldable, s.active if mode == "into" else ""))
        s.accepted.append(run)
        if foldable:
            s.foldable.add(run.name)
        if mode == "into":
            s.bound.add(run.name)

    def again(self, s: ModelSession, run: ModelRun) -> None:
        """Accept a prompt under a known run_id: the caller gets the same run, and nothing changes."""

    def enter(self, s: ModelSession, run: ModelRun) -> None:
        """Decide, once, whether an accepted run is cancelled on entry, queued or active.

        A held run is queued, even if no turn is active. A run that is not held is queued if a turn is active
        or if something is queued that is not held.
        """
        covered = self.is_covered(s, run)
        self.leave_accepted(s, run)
        if covered:
            self.leave_line(s, run)
            s.entering.append(run)
            self.see(Enter(run.name, DeclaredState.CANCEL_ON_ENTRY))
        elif self.is_held(s, run) or self.is_occupied(s):
            self.enqueue(s, run)
            self.see(Enter(run.name, DeclaredState.QUEUED))
        else:
            self.start(s, run)
            self.see(Enter(run.name, DeclaredState.ACTIVE))

    def release(self, s: ModelSession, run: ModelRun) -> None:
        """Complete an accepted run whose caller gives it up before it enters."""
        covered = self.is_covered(s, run)
        self.leave_accepted(s, run)
        self.leave_line(s, run)
        self.see(Complete(run.name, covered, "released before entry"))

    def cancel(self, s: ModelSession) -> None:
        """Cover every run in flight: mark the accepted ones, drop the queue, cover the active turn.

        Held runs are covered like all others.
        """
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
            self.cover(turn)

    def clear(self, s: ModelSession) -> None:
        """Drop the queued runs, held or not. Accepted and active runs go on."""
        self.see(Clear())
        self.drop(s, s.queue, cancelled=False)

    # Steps of the callers who have the line in their hands.

    def hold(self, s: ModelSession) -> None:
        """Hold every run that waits at this moment. A run that is accepted later is not held."""
        self.see(Hold())
        s.held.update(run.name for run in self.line(s))

    def hold_run(self, s: ModelSession, run: ModelRun) -> None:
        """Hold one run that waits. Runs behind it pass it by."""
        self.see(Hold(frozenset({run.name})))
        s.held.add(run.name)

    def resume(self, s: ModelSession) -> None:
        """Resume every held run. If no turn is active, the first of the queue starts, in the same step."""
        self.see(Resume())
        s.held.clear()
        self.start_if_idle(s)

    def resume_run(self, s: ModelSession, run: ModelRun) -> None:
        """Resume one run. The others stay held. If no turn is active and it is queued, it starts."""
        self.see(Resume(frozenset({run.name})))
        s.held.discard(run.name)
        self.start_if_idle(s)

    def stop(self, s: ModelSession) -> None:
        """Cover the active turn alone, if there is one, and hold every run that waits, in one step.

        A caller who names a turn means that turn: unless it is the active one, nothing happens at all.
        """
        self.cover_active(s)
        self.hold(s)

    def move(self, s: ModelSession, run: ModelRun, before: ModelRun | None) -> None:
        """Put a waiting run before another one, or behind all that wait.

        The runs between its old position and its new one, and the run itself, exchange their ranks. Nothing
        else changes: what a cancel covers, what is held and which turn is active stay as they are.
        """
        self.see(Move(run.name, before.name if before else ""))
        line = self.line(s)
        ranks = [self.rank(s, each) for each in line]
        line.remove(run)
        line.insert(line.index(before) if before else len(line), run)
        s.ranks = {each.name: rank for each, rank in zip(line, ranks, strict=True) if rank != each.seq}
        s.queue.sort(key=lambda queued: self.rank(s, queued))

    def edit(self, s: ModelSession, run: ModelRun, foldable: bool | None = None) -> None:
        """Change the prompt of a waiting run. The run keeps its sequence, its position and its hold.

        ``foldable`` follows from the new ``when_busy``; None if that stays as it is. With a new one the run
        is no longer for one turn alone.
        """
        self.see(Edit(run.name, foldable))
        if foldable is not None:
            s.bound.discard(run.name)
            (s.foldable.add if foldable else s.foldable.discard)(run.name)

    def send_now(self, s: ModelSession, run: ModelRun) -> None:
        """Make a queued run, held or not, the next one: first in line, not held, the active turn covered.

        It is one step. Were the turn covered later, the run could have been folded into it meanwhile, and
        would be covered too. With no active turn the run starts at once. It is no longer for one turn alone,
        because the turn that it was for is covered. A caller who names a turn means that turn: unless it is
        the active one, nothing happens at all.
        """
        first = self.line(s)[0]
        if first != run:
            self.move(s, run, first)
        self.cover_active(s)
        self.see(Resume(frozenset({run.name}), unbinds=True))
        s.held.discard(run.name)
        s.bound.discard(run.name)
        self.start_if_idle(s)

    def close(self, s: ModelSession) -> None:
        """Shut down: cancel the session, and release the runs that have not entered."""
        self.cancel(s)
        for run in list(s.accepted):
            self.release(s, run)

    # Steps of a turn and of its runner.

    def call(self, s: ModelSession, turn: ModelTurn) -> None:
        """Give the turn a place and call its runner."""
        assert self.places is not None
        self.places = self.places.taken(self.session)
        turn.called = True
        self.see(Called(turn.lead.name))

    def fold(self, s: ModelSession, turn: ModelTurn) -> None:
        """Fold queued runs into the turn, from the head of the queue up to the first that is not foldable.

        Held runs are passed by: one that is held neither joins nor stops the fold.
        """
        while (run := self.first(s)) and run.name in s.foldable and not turn.cancelled:
            s.queue.remove(run)
            self.join(s, turn, run)

    def end(self, s: ModelSession, turn: ModelTurn, outcome: FinishReason) -> None:
        """Take the runner's return: the turn gives its place back, and the store begins to write."""
        self.see(Ended(turn.lead.name))
        turn.writing = "canceled" if turn.cancelled else outcome
        self.give_back_place()

    # Steps of the store.

    def written(self, s: ModelSession, turn: ModelTurn, ok: bool) -> None:
        """Take the store's answer about a turn: complete its runs and hand off.

        If a cancel came during the write, the messages do not say so. Then the store writes them again first.
        """
        self.record(turn.runs, turn.writing, ok)
        if ok and turn.cancelled and turn.writing != "canceled":
            turn.writing = "canceled"
            return
        self.complete_turn(s, turn, None if ok else "store failed")
        self.hand_off(s, turn)

    def settle(self, s: ModelSession, run: ModelRun, ok: bool) -> None:
        """Take the store's answer about a run that was cancelled on entry: complete the run."""
        self.record([run], "canceled", ok)
        s.entering.remove(run)
        self.see(Complete(run.name, True, None if ok else "store failed"))

    def second_half(self, s: ModelSession, half: Half) -> None:
        """Do the second half of a step that a known-bad design takes in two. A sound mechanism has none."""
        raise NotImplementedError(half)

    def can_do_second_half(self, s: ModelSession, half: Half) -> bool:
        """Return whether a second half can be done yet."""
        return True

    # The parts that steps are made of.

    def is_covered(self, s: ModelSession, run: ModelRun) -> bool:
        """Return whether a cancel covers an accepted run."""
        return run.seq <= s.mark or run.name in s.singled_out

    def is_occupied(self, s: ModelSession) -> bool:
        """Return whether a run that enters now, and is not held, must be queued."""
        return bool(s.active or self.first(s))

    def is_held(self, s: ModelSession, run: ModelRun) -> bool:
        """Return whether a waiting run is held."""
        return run.name in s.held

    def can_bind(self, s: ModelSession) -> bool:
        """Return whether a prompt can be for the active turn alone: the turn runs, and is not covered."""
        turn = s.turn_of(s.active)
        return turn is not None and turn.called and turn.writing == "" and not turn.cancelled

    def first(self, s: ModelSession) -> ModelRun | None:
        """Return the first queued run that is not held: the one that goes next."""
        return next((run for run in s.queue if not self.is_held(s, run)), None)

    def rank(self, s: ModelSession, run: ModelRun) -> int:
        """Return the rank of a waiting run: its sequence, unless a move has given it another."""
        return s.ranks.get(run.name, run.seq)

    def line(self, s: ModelSession) -> list[ModelRun]:
        """Return the runs that wait, accepted or queued, in the order of their ranks."""
        return sorted([*s.accepted, *s.queue], key=lambda run: self.rank(s, run))

    def leave_line(self, s: ModelSession, run: ModelRun) -> None:
        """Forget what was kept about a run because it waited."""
        s.foldable.discard(run.name)
        s.held.discard(run.name)
        s.bound.discard(run.name)
        s.ranks.pop(run.name, None)

    def raise_mark(self, s: ModelSession) -> None:
        """Cover every accepted run. A run that is accepted later has a higher sequence."""
        if s.accepted:
            s.mark = max(s.mark, s.in_flight[-1].seq)

    def lower_mark(self, s: ModelSession) -> None:
        """Remove the mark once it covers no accepted run."""
        if not any(run.seq <= s.mark for run in s.accepted):
            s.mark = 0

    def leave_accepted(self, s: ModelSession, run: ModelRun) -> None:
        """Take a run out of the accepted ones, and forget what was kept about it there."""
        s.accepted.remove(run)
        s.singled_out.discard(run.name)
        self.lower_mark(s)

    def enqueue(self, s: ModelSession, run: ModelRun) -> None:
        """Put a run into the queue, at the position of its rank."""
        s.queue.append(run)
        s.queue.sort(key=lambda queued: self.rank(s, queued))

    def start(self, s: ModelSession, run: ModelRun) -> None:
        """Make the run active, as the lead of a new turn, which waits for a place if there is a limit."""
        self.leave_line(s, run)
        s.active = run.name
        s.turns.append(ModelTurn(run, called=self.places is None))
        if self.places is not None:
            self.places = self.places.joined(self.session)

    def join(self, s: ModelSession, turn: ModelTurn, run: ModelRun) -> None:
        """Fold a run, which has just left the queue, into the turn."""
        self.leave_line(s, run)
        turn.folded.append(run)
        self.see(Fold(run.name, turn.lead.name))

    def cover_active(self, s: ModelSession) -> None:
        """Cover the active turn, if there is one, and no run that waits."""
        turn = s.turn_of(s.active)
        if turn:
            self.see(Cancel(frozenset(run.name for run in turn.runs)))
            self.cover(turn)

    def interrupt(self, s: ModelSession) -> None:
        """Cover the active turn, if there is one."""
        turn = s.turn_of(s.active)
        if turn:
            self.cover(turn)

    def cover(self, turn: ModelTurn) -> None:
        """Cover a turn. There are three cases.

        1. It waits for a place. It waits no longer and settles as cancelled; its runner is never called.
        2. It runs. Its runner is interrupted, and ends later.
        3. It settles. The step ``written`` looks whether a cancel has come.
        """
        turn.cancelled = True
        if turn.waits:
            self.give_up_waiting()
            turn.writing = "canceled"

    def give_up_waiting(self) -> None:
        """Let the turn of this session wait for a place no longer."""
        assert self.places is not None
        self.places = self.places.left(self.session)

    def give_back_place(self) -> None:
        """Take back the place of the turn whose runner has returned."""
        if self.places is not None:
            self.places = self.places.given_back()

    def can_call(self) -> bool:
        """Return whether the turn of this session is the first that waits and a place is free."""
        return self.places is not None and self.places.first() == self.session

    def drop(self, s: ModelSession, runs: list[ModelRun], *, cancelled: bool) -> None:
        """Complete queued runs that a cancel or a clear has taken out of the queue."""
        for run in list(runs):
            s.queue.remove(run)
            self.leave_line(s, run)
            self.see(Complete(run.name, cancelled, None if cancelled else "cleared from the queue"))

    def record(self, runs: list[ModelRun], reason: Any, ok: bool) -> None:
        """Show that the store has written the messages of the runs, or has failed to."""
        for run in runs:
            self.see(Wrote(run.name, reason if ok else "unwritten"))

    def complete_turn(self, s: ModelSession, turn: ModelTurn, error: str | None) -> None:
        """Complete every run of the turn with the same outcome."""
        failed = "runner failed" if turn.writing == "error" else None
        for run in turn.runs:
            self.see(Complete(run.name, turn.cancelled, error or failed))

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        """End the turn and start the first queued run that is not held, whatever the outcome of the turn was.

        The runs that were for this turn alone complete in the same step.
        """
        s.turns.remove(turn)
        s.active = ""
        self.drop_bound(s)
        self.start_next(s)

    def drop_bound(self, s: ModelSession) -> None:
        """Complete the runs that were for the turn that has ended: clear the queued, release the accepted."""
        if queued := [run for run in s.queue if run.name in s.bound]:
            self.see(Clear(frozenset(run.name for run in queued)))
            self.drop(s, queued, cancelled=False)
        for run in [run for run in s.accepted if run.name in s.bound]:
            self.release(s, run)

    def start_next(self, s: ModelSession) -> None:
        """Start the first queued run that is not held, if there is one."""
        if run := self.first(s):
            s.queue.remove(run)
            self.start(s, run)
            self.see(Handoff(run.name))

    def start_if_idle(self, s: ModelSession) -> None:
        """Start the next run unless a turn is active, settling turns included: that turn will hand off."""
        if not s.active:
            self.start_next(s)

    # Which steps could be taken next, and how one is taken.

    def actions(self, s: ModelSession, complete: list[str]) -> Iterator[Action]:
        """Yield every step that could be taken next in this session, except accept and close.

        The explorer adds those two, because they depend on other sessions. What callers can do with the line
        is in ``line_actions``. ``complete`` names the complete runs. Only the first of them is accepted again
        here: to the mechanism all complete runs are alike.
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
            if self.can_do_second_half(s, half):
                yield Action("session", "second_half", half.about, half.name)

    def line_actions(self, s: ModelSession) -> Iterator[Action]:
        """Yield every step by which callers could hold, resume, move, edit or send now what waits.

        What is not here must be refused and changes nothing: to hold, resume, move or edit a run that does
        not wait, to move a run before one that does not wait, to send now a run that is not queued. To stop
        or hold a session is always allowed.
        """
        line = list(dict.fromkeys(self.line(s)))
        yield Action("caller", "hold")
        yield Action("caller", "stop")
        if s.held:
            yield Action("caller", "resume")
        for run in line:
            yield Action("caller", "resume_run" if run.name in s.held else "hold_run", run.name)
            yield from self.edits(s, run)
            for before in line:
                if before != run:
                    yield Action("caller", "move", f"{run.name} {before.name}", "before")
            if len(line) > 1:
                yield Action("caller", "move", run.name, "last")
        for run in dict.fromkeys(s.queue):
            yield Action("caller", "send_now", run.name)

    def edits(self, s: ModelSession, run: ModelRun) -> Iterator[Action]:
        """Yield every edit of a waiting run that changes what the mechanism keeps about it."""
        if run.name in s.foldable:
            yield Action("caller", "edit", run.name, "queue")
        if run.name not in s.foldable or run.name in s.bound:
            yield Action("caller", "edit", run.name, "fold")

    def turn_actions(self, s: ModelSession, turn: ModelTurn) -> Iterator[Action]:
        """Yield every step that a turn, its runner or its store could take next."""
        if turn.waits:
            if self.can_call():
                yield Action("session", "call", turn.lead.name)
        elif turn.writing == "":
            if s.queue:
                yield Action("runner", "fold", turn.lead.name)
            for outcome in ("canceled",) if turn.cancelled else ("end_turn", "error"):
                yield Action("runner", "end", turn.lead.name, outcome)
        elif turn.writing != "paused":
            yield from _stored("written", turn.lead)

    def take(self, s: ModelSession, action: Action) -> None:
        """Take one step. It changes the session in place."""
        step = getattr(self, action.name)
        if action.name in ("call", "fold", "end", "written"):
            turn = s.turn_of(action.run)
            assert turn is not None
            step(s, turn, *_argument(action))
        elif action.name == "second_half":
            half = next(half for half in s.unfinished if (half.about, half.name) == (action.run, action.how))
            s.unfinished.remove(half)
            step(s, half)
        elif action.name in ("cancel", "clear", "close", "hold", "resume", "stop"):
            step(s)
        elif action.name == "move":
            waiting = {run.name: run for run in self.line(s)}
            run, *before = [waiting[name] for name in action.run.split()]
            step(s, run, before[0] if before else None)
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
    if action.name == "edit":
        return (action.how == "fold",)
    return ()
