"""HOW, for any number of runs: the mechanism as a relation between worlds.

Method for method as in ``mechanism.py``, so that a known-bad design is an
override here as it is there. A step first says when it can be taken, then
changes the world and lets the judge see its events, in the same order.

Where the mechanism loops, the relation speaks of a set: the queue that a
cancel drops, the follow-ups that a fold takes, the accepted runs that a
shutdown releases. Where the mechanism takes the first or the highest of a list,
the relation chooses a run and says why there is one: a session has had
finitely many runs, so what is ordered has a first and a last. That argument is
prose; everything else is for the solver.

The number that an accept stamps is any that is above those the session has
stamped before. So the proof is about sequences counted across the whole
dispatcher, and about sequences counted within the session.

Shutting down is here the part of one session. The whole is that part for one
session after the other, and ISOLATION says that they do not meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Mechanism
from turngate_model.proof.judge import Judge, Runs, only
from turngate_model.proof.paths import Path
from turngate_model.proof.terms import (
    Formula,
    Individual,
    Number,
    Phase,
    Record,
    Sort,
    State,
    Value,
    all_of,
    any_of,
    at_most,
    choice,
    differ,
    equal,
    implies,
    is_one_of,
    less,
    not_,
    plus,
    the_higher,
)
from turngate_model.proof.vocabulary import SIGNATURE, Symbol

WRITING = (Phase.END_TURN, Phase.ERROR, Phase.CANCELED)


class Relation:
    """The mechanism. A known-bad design is a subclass that does one thing otherwise."""

    modes: ClassVar[tuple[str, ...]] = Mechanism.modes
    symbols: ClassVar[dict[str, Symbol]] = SIGNATURE
    """What it tells a state in; a design may keep more."""
    resumes: ClassVar[tuple[Sort, ...] | None] = None
    """For designs that do in two steps what has to be one: what the second half is about."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reading = path.reading
        self.see = Judge(path)

    # Short words for what every step says.

    def at(self, session: Individual, run: Individual) -> Formula:
        """Say that the run belongs to the session."""
        return equal(self.reading.session_of(run), session)

    def of(self, session: Individual, name: str) -> Runs:
        """Return the runs of the session that are now in one of its sets."""
        members = self.path[name]
        return Runs(lambda run: all_of(members(run), self.at(session, run)))

    def is_any(self, runs: Runs) -> Formula:
        """Say that the set is not empty."""
        return self.reading.exists(runs.has)

    def take_out(self, name: str, runs: Runs) -> None:
        """Take runs out of a set."""
        self.path.give(name, lambda old, run: all_of(old(run), not_(runs.has(run))))

    def put_in(self, name: str, runs: Runs) -> None:
        """Put runs into a set."""
        self.path.give(name, lambda old, run: any_of(old(run), runs.has(run)))

    def set_of(self, name: str, session: Individual, value: Any) -> None:
        """Set what a session keeps."""
        self.path.give(name, lambda old, other: choice(equal(other, session), value, old(other)))

    def needs(self, *formulas: Formula) -> None:
        """Say when a step can be taken."""
        self.path.assume(all_of(*formulas))

    # Steps of the callers.

    def accept(self, s: Individual, run: Individual, number: Number, mode: str) -> None:
        """Take a prompt in; one that interrupts cancels first, in the same step."""
        state, following = self.path["state"], self.path["next"](s)
        self.needs(self.at(s, run), equal(state(run), State.UNBORN), at_most(following, number))
        if mode == "interrupt":
            self.cancel(s)
        self.see.accept(s, run, mode == "fold")
        self.stamp(run, number, mode)
        self.set_of("next", s, plus(number, 1))
        self.put_in("accepted", only(run))
        if mode == "fold":
            self.put_in("foldable", only(run))

    def stamp(self, run: Individual, number: Number, mode: str) -> None:
        """Give the run its sequence."""
        self.path.give("seq", lambda old, other: choice(equal(other, run), number, old(other)))

    def again(self, s: Individual, run: Individual) -> None:
        """Accept under a known run_id: the same run comes back and nothing changes."""
        known = any_of(self.path["accepted"](run), equal(self.path["state"](run), State.COMPLETE))
        self.needs(self.at(s, run), known)

    def enter(self, s: Individual, run: Individual) -> None:
        """Decide what becomes of an accepted run."""
        self.needs(self.at(s, run), self.path["accepted"](run))
        covered = self.is_covered(s, run)
        self.leave_accepted(s, only(run))
        if self.path.branch(covered, "covered"):
            self.take_out("foldable", only(run))
            self.put_in("entering", only(run))
            self.see.enter(s, run, DeclaredState.CANCEL_ON_ENTRY)
        elif self.path.branch(self.is_occupied(s), "occupied"):
            self.enqueue(s, run)
            self.see.enter(s, run, DeclaredState.QUEUED)
        else:
            self.start(s, run)
            self.see.enter(s, run, DeclaredState.ACTIVE)

    def release(self, s: Individual, run: Individual) -> None:
        """Give an accepted run up."""
        self.needs(self.at(s, run), self.path["accepted"](run))
        covered = self.is_covered(s, run)
        self._release(s, only(run), lambda _run: covered)

    def _release(self, s: Individual, runs: Runs, covered: Callable[[Individual], Formula]) -> None:
        self.leave_accepted(s, runs)
        self.take_out("foldable", runs)
        self.see.complete(s, runs, covered)

    def cancel(self, s: Individual) -> None:
        """Cover all that is in flight: mark what is accepted, drop the queue, interrupt the turn."""
        self.see.cancel(s)
        self.raise_mark(s)
        self.drop(s, self.of(s, "queue"), cancelled=True)
        self.interrupt(s)

    def cancel_run(self, s: Individual, run: Individual) -> None:
        """Cover one run, or the whole turn if the run is part of it."""
        now, path = self.path.world, self.path
        leads = differ(now["phase"](run), Phase.NONE)
        joined = self.reading.exists(lambda lead: now["folded"](run, lead))
        waits = any_of(now["accepted"](run), now["entering"](run), now["queue"](run))
        self.needs(self.at(s, run), any_of(waits, leads, joined))
        turn: Individual | None = None
        if path.branch(leads, "leads"):
            turn = run
        elif path.branch(joined, "folded"):
            turn = path.choose(
                "lead", lambda lead: now["folded"](run, lead), "the run is folded into some turn"
            )
        self.see.cancel(s, only(run) if turn is None else self.runs_of(turn))
        if path.branch(now["accepted"](run), "accepted"):
            self.put_in("singled_out", only(run))
        elif path.branch(now["queue"](run), "queued"):
            self.drop(s, only(run), cancelled=True)
        elif turn is not None:
            self.cover(only(turn))

    def clear(self, s: Individual) -> None:
        """Drop what is queued; accepted and active runs go on."""
        queued = self.of(s, "queue")
        self.needs(any_of(self.path["busy"](s), self.is_any(queued)))
        self.see.clear(s)
        self.drop(s, queued, cancelled=False)

    def close(self, s: Individual) -> None:
        """Shut down: cancel everything, and release what has not entered.

        The mechanism releases one after another. The mark that covers a run stays as long as the run is
        accepted, so each is covered at its moment exactly if it is when the first one goes.
        """
        self.cancel(s)
        now = dict(self.path.world)
        self._release(s, self.of(s, "accepted"), lambda run: self.is_covered(s, run, now))

    # Steps of the runner.

    def fold(self, s: Individual, lead: Individual) -> None:
        """Take follow-ups into the turn, from the head of the queue up to the first that wants its own."""
        now, path = dict(self.path.world), self.path
        queued, ahead = self.of(s, "queue"), now["ahead"]
        running = equal(now["phase"](lead), Phase.RUNNING)
        self.needs(self.at(s, lead), running, self.is_any(queued))
        if path.branch(now["interrupted"](lead), "cancelled"):
            return
        own = Runs(lambda run: all_of(queued.has(run), not_(now["foldable"](run))))
        if path.branch(self.is_any(own), "one wants its own"):
            first = self.first_of(own, "first")
            self.join(s, lead, Runs(lambda run: all_of(queued.has(run), ahead(run, first))))
        else:
            self.join(s, lead, queued)

    def end(self, s: Individual, lead: Individual, outcome: Phase) -> None:
        """End the runner's call and begin to write down what came of it."""
        interrupted = self.path["interrupted"](lead)
        running = equal(self.path["phase"](lead), Phase.RUNNING)
        self.needs(self.at(s, lead), running, equal(interrupted, outcome is Phase.CANCELED))
        self.see.ended(s, lead)
        says = choice(interrupted, Phase.CANCELED, outcome)
        self.path.give("phase", lambda old, run: choice(equal(run, lead), says, old(run)))

    # Steps of the store.

    def written(self, s: Individual, lead: Individual, ok: Formula) -> None:
        """Return from the write. If a cancel came meanwhile the record is wrong: write it again first."""
        phase, interrupted = self.path["phase"](lead), self.path["interrupted"](lead)
        self.needs(self.at(s, lead), is_one_of(phase, *WRITING))
        self.record(self.runs_of(lead), phase, ok)
        wrong = all_of(ok, interrupted, differ(phase, Phase.CANCELED))
        if self.path.branch(wrong, "cancelled meanwhile"):
            self.path.give("phase", lambda old, run: choice(equal(run, lead), Phase.CANCELED, old(run)))
            return
        self.complete_turn(s, lead)
        self.hand_off(s, lead)

    def settle(self, s: Individual, run: Individual, ok: Formula) -> None:
        """Return from writing the canceled turn of a run cancelled on entry, well or not."""
        self.needs(self.at(s, run), self.path["entering"](run))
        self.record(only(run), Phase.CANCELED, ok)
        self.take_out("entering", only(run))
        self.see.complete(s, only(run), lambda _run: True)

    def resume(self, s: Individual, *about: Individual) -> None:
        """Do the second half of what a design does in two steps. A sound mechanism has none."""
        raise NotImplementedError

    def can_go_on(self, s: Individual) -> Formula:
        """Say that a step of the session's own can be taken: a turn can end or be written, a run settle."""
        phase, entering = self.path["phase"], self.path["entering"]
        goes_on = Runs(lambda run: any_of(differ(phase(run), Phase.NONE), entering(run)))
        return self.reading.exists(lambda run: all_of(self.at(s, run), goes_on.has(run)))

    # What the steps are made of.

    def is_covered(self, s: Individual, run: Individual, now: dict[str, Any] | None = None) -> Formula:
        """Say that a cancel covers an accepted run."""
        world = now or self.path.world
        return any_of(at_most(world["seq"](run), world["mark"](s)), world["singled_out"](run))

    def is_occupied(self, s: Individual) -> Formula:
        """Say that a newcomer has to wait."""
        return any_of(self.path["busy"](s), self.is_any(self.of(s, "queue")))

    def raise_mark(self, s: Individual) -> None:
        """Cover every accepted run: a later one gets a higher sequence."""
        if self.path.branch(self.is_any(self.of(s, "accepted")), "some are accepted"):
            self.set_of("mark", s, the_higher(self.path["mark"](s), self.highest(s)))

    def highest(self, s: Individual) -> Number:
        """Return the highest sequence of the runs in flight."""
        now = dict(self.path.world)
        seq, folded = now["seq"], now["folded"]

        def held(run: Individual) -> Formula:
            sets = (now[name](run) for name in ("accepted", "entering", "queue"))
            return all_of(self.at(s, run), any_of(*sets, differ(now["phase"](run), Phase.NONE)))

        def joined(run: Individual, lead: Individual) -> Formula:
            return all_of(self.at(s, run), folded(run, lead))

        def is_highest(top: Individual) -> Formula:
            return all_of(
                any_of(held(top), self.reading.exists(lambda lead: joined(top, lead))),
                self.reading.for_all(lambda run: implies(held(run), at_most(seq(run), seq(top)))),
                self.reading.for_all(
                    lambda run, lead: implies(joined(run, lead), at_most(seq(run), seq(top))),
                    Sort.RUN,
                    Sort.RUN,
                ),
            )

        top = self.path.choose(
            "top", is_highest, "of finitely many runs in flight one has the highest sequence"
        )
        number: Number = seq(top)
        return number

    def lower_mark(self, s: Individual) -> None:
        """Take the mark away once no accepted run needs it."""
        accepted, seq, mark = self.path["accepted"], self.path["seq"], self.path["mark"](s)
        needed = self.reading.exists(
            lambda run: all_of(self.at(s, run), accepted(run), at_most(seq(run), mark))
        )
        self.set_of("mark", s, choice(needed, mark, 0))

    def leave_accepted(self, s: Individual, runs: Runs) -> None:
        """Take runs out of those accepted, and with them what was kept about them."""
        self.take_out("accepted", runs)
        self.take_out("singled_out", runs)
        self.lower_mark(s)

    def enqueue(self, s: Individual, run: Individual) -> None:
        """Queue a run where its sequence belongs, however late it entered."""
        self.put_in("queue", only(run))
        queued, seq = self.of(s, "queue"), self.path["seq"]
        self.path.give(
            "ahead",
            lambda old, a, b: choice(all_of(queued.has(a), queued.has(b)), less(seq(a), seq(b)), old(a, b)),
        )

    def first_of(self, queued: Runs, hint: str) -> Individual:
        """Return the first of queued runs of one session."""
        ahead = self.path["ahead"]
        return self.path.choose(
            hint,
            lambda first: all_of(
                queued.has(first),
                self.reading.for_all(
                    lambda run: implies(all_of(queued.has(run), differ(run, first)), ahead(first, run))
                ),
            ),
            "of finitely many queued runs one is the first",
        )

    def start(self, s: Individual, run: Individual) -> None:
        """Make the run active, as the lead of a new turn."""
        self.take_out("foldable", only(run))
        self.path.give("active", lambda old, x: choice(self.at(s, x), equal(x, run), old(x)))
        self.set_of("busy", s, True)
        self.path.give("phase", lambda old, x: choice(equal(x, run), Phase.RUNNING, old(x)))
        self.take_out("interrupted", only(run))

    def join(self, s: Individual, lead: Individual, runs: Runs) -> None:
        """Fold runs that leave the queue into the turn, in the order of the queue."""
        before = self.order_of_joining()
        self.take_out("foldable", runs)
        self.take_out("queue", runs)
        self.path.give(
            "folded", lambda old, x, into: any_of(old(x, into), all_of(equal(into, lead), runs.has(x)))
        )
        self.see.fold(s, runs, lead, before)

    def order_of_joining(self) -> Callable[[Individual, Individual], Formula]:
        """Return which of two runs joins a turn first."""
        return self.path["ahead"]

    def interrupt(self, s: Individual) -> None:
        """Cover the active turn, if there is one."""
        active, phase = self.path["active"], self.path["phase"]
        self.cover(Runs(lambda run: all_of(self.at(s, run), active(run), differ(phase(run), Phase.NONE))))

    def cover(self, leads: Runs) -> None:
        """Cover turns: one that runs ends later; of one that settles, the step after the write will look.

        Without a limit on turns no turn waits for a place.
        """
        self.put_in("interrupted", leads)

    def drop(self, s: Individual, runs: Runs, *, cancelled: bool) -> None:
        """Complete queued runs that will never be active, because of a cancel or of a clear."""
        self.take_out("queue", runs)
        self.take_out("foldable", runs)
        self.see.complete(s, runs, lambda _run: cancelled)

    def record(self, runs: Runs, reason: Value, ok: Formula) -> None:
        """Write the messages of the runs, or fail to."""
        says = choice(equal(reason, Phase.END_TURN), Record.END_TURN, Record.ERROR)
        says = choice(equal(reason, Phase.CANCELED), Record.CANCELED, says)
        self.see.wrote(runs, choice(ok, says, Record.UNWRITTEN))

    def runs_of(self, lead: Individual) -> Runs:
        """Return the lead of a turn and the runs folded into it."""
        folded = self.path["folded"]
        return Runs(lambda run: any_of(equal(run, lead), folded(run, lead)))

    def complete_turn(self, s: Individual, lead: Individual) -> None:
        """Complete every run of the turn, all with the same outcome."""
        interrupted = self.path["interrupted"](lead)
        self.see.complete(s, self.runs_of(lead), lambda _run: interrupted)

    def hand_off(self, s: Individual, lead: Individual) -> None:
        """Start the next queued run in the step that ends the turn, whatever its outcome."""
        self.forget_turn(s, lead)
        self.start_next(s)

    def forget_turn(self, s: Individual, lead: Individual) -> None:
        """Keep nothing of the turn, and hold none to be active."""
        self.path.give("phase", lambda old, x: choice(equal(x, lead), Phase.NONE, old(x)))
        self.take_out("interrupted", only(lead))
        self.path.give("folded", lambda old, x, into: all_of(old(x, into), differ(into, lead)))
        self.vacate(s)

    def vacate(self, s: Individual) -> None:
        """Hold no turn to be active."""
        self.take_out("active", Runs(lambda run: self.at(s, run)))
        self.set_of("busy", s, False)

    def start_next(self, s: Individual) -> None:
        """Start the first of the queue, if there is one."""
        queued = self.of(s, "queue")
        if self.path.branch(self.is_any(queued), "one is queued"):
            run = self.first_of(queued, "successor")
            self.take_out("queue", only(run))
            self.start(s, run)
            self.see.handoff(s, run)
