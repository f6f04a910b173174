"""What must have happened at least once, so that a check that saw nothing does not pass.

A property that nothing has tested is not shown to hold. So the witness watches every step that the
explorer works out, and notes four things:

1. which actions were taken,
2. which guards were true and which were false, in the states whose rows ask for them,
3. in which ways runs ended and were passed by, and turns waited,
4. which properties were tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from turngate_model.abstract_places import AbstractPlaces
from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import Bounds, DurableBounds
from turngate_model.history import Accept, Cancel, Complete, Edit, Enter, Event, Fold, Handoff, Resume, Wrote
from turngate_model.lifecycle import TABLE, DeclaredState, Guard
from turngate_model.mechanism import Action
from turngate_model.properties import AnyProperty, Property

_ASKED = {
    state: tuple(
        (int(guard), f"guard {guard.label} true", f"guard {guard.label} false")
        for guard in Guard
        if any(guard in (*row.conditions, *row.unless) for row in TABLE if row.source is state)
    )
    for state in DeclaredState
}
"""For each state, the guards that its rows ask for: the guard, and what to note when it is true or false."""

Needs: TypeAlias = Mapping[str, Mapping[str, int]]
"""What must happen at least once, each with the least bounds within which it can happen."""

SESSION_NEEDS: Needs = {
    "action accept fold": {},
    "action accept queue": {},
    "action accept interrupt": {},
    "action again": {},
    "action enter": {},
    "action release": {},
    "action close": {},
    "action end end_turn": {},
    "action end error": {},
    "action written ok": {},
    "action written fails": {},
    "action settle ok": {},
    "action settle fails": {},
    "guard covered false": {},
    "guard covered true": {},
    "guard occupied false": {},
    "guard settled false": {},
    "guard settled true": {},
    "ending finished": {},
    "ending failed": {},
    "ending released": {},
    "ending released and cancelled": {},
    "ending cancelled while active": {},
    "a cancel during the write of a turn": {},
    "ending store failed": {},
    "action cancel": {"cancels": 1},
    "action cancel_run": {"cancels": 1},
    "action clear": {},
    "action fold": {"prompts": 2},
    "action end canceled": {"prompts": 2},
    "guard cleared true": {"prompts": 2},
    "guard cleared false": {"prompts": 2},
    "guard first true": {"prompts": 2},
    "guard first false": {"prompts": 3},
    "guard vacated true": {"prompts": 2},
    "guard vacated false": {"prompts": 2},
    "guard joinable true": {"prompts": 2},
    "guard joinable false": {"prompts": 2},
    "guard foldable true": {"prompts": 2},
    "guard foldable false": {"prompts": 2},
    "guard occupied true": {"prompts": 2},
    "ending cleared": {"prompts": 2},
    "ending finished, folded": {"prompts": 2},
    "ending failed, folded": {"prompts": 2},
    "ending cancelled while folded": {"prompts": 2},
    "ending cancelled while queued": {"prompts": 2},
    "ending cancelled on entry": {"cancels": 1},
    "action call": {"turns_limit": 1},
    "a turn waits while every place is taken": {"turns_limit": 1},
    "two turns wait for a place": {"turns_limit": 1},
    "a cancel covers a turn that waits for a place": {"turns_limit": 1},
    "guard held false": {},
    "guard held true": {"holds": 1},
    "action hold": {"holds": 1},
    "action hold_run": {"holds": 1},
    "action stop": {"holds": 1},
    "action resume": {"holds": 1},
    "action resume_run": {"holds": 1},
    "a held run enters a session without a turn": {"holds": 1},
    "a run passes one that is held": {"holds": 1, "prompts": 2},
    "a cancel drops a held run": {"holds": 1},
    "a run is resumed while a turn settles": {"holds": 1, "prompts": 2},
    "a resume starts a turn": {"holds": 1},
    "action move": {"moves": 1, "prompts": 2},
    "action edit": {"moves": 1},
    "action send_now": {"moves": 1, "prompts": 2},
    "a moved run passes an earlier one": {"moves": 1, "prompts": 3},
    "action accept into": {"into": 1, "prompts": 2},
    "guard bound false": {},
    "guard bound true": {"into": 1, "prompts": 2},
    "a run joins the one turn that it is for": {"into": 1, "prompts": 2},
    "ending cleared with its turn": {"into": 1, "prompts": 2},
    "ending released with its turn": {"into": 1, "prompts": 2},
    "a run is sent now that was for one turn": {"into": 1, "moves": 1, "prompts": 2},
}


def required(needs: Needs, bounds: Bounds | DurableBounds) -> frozenset[str]:
    """Return what must have happened at least once within these bounds."""
    return frozenset(
        what
        for what, least in needs.items()
        if all((getattr(bounds, name, None) or 0) >= amount for name, amount in least.items())
    )


class Witness:
    """Notes what has happened at least once, and which properties were tested."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.exercised: set[AnyProperty] = set()


class SessionWitness(Witness):
    """Watches the steps of sessions."""

    def at_rest(self, abstract: AbstractSession) -> None:
        """Note which guards are true for each run of a session, between two steps."""
        for run in abstract.in_flight:
            self._guards(run, abstract)

    def event(self, event: Event, abstract: AbstractSession) -> None:
        """Note an event. The abstract session has not taken it in yet."""
        match event:
            case Accept() if abstract.covered:
                self.exercised.add(Property.NEVER_POISONED)
            case Cancel() if not abstract.quiet:
                self.exercised.add(Property.FULL_COVERAGE)
            case Edit():
                self.exercised.add(Property.AS_EDITED)
            case Resume(runs, unbinds=True) if runs and runs.intersection(abstract.bound):
                self.seen.add("a run is sent now that was for one turn")
            case Enter(run, state):
                self._guards(run, abstract)
                self.exercised.add(Property.DECLARED_MOVE)
                if state is DeclaredState.ACTIVE:
                    self.exercised.add(Property.ONE_TURN)
                    self._passes(run, abstract)
                elif run in abstract.held and not abstract.turn:
                    self.seen.add("a held run enters a session without a turn")
            case Handoff(run) | Fold(run, _):
                self._guards(run, abstract)
                self._passes(run, abstract)
                if run in abstract.bound:
                    self.seen.add("a run joins the one turn that it is for")
                self.exercised |= {Property.FIFO, Property.NO_STRAND}
            case Wrote(run, reason) if run in abstract.covered and reason in ("end_turn", "error"):
                self.seen.add("a cancel during the write of a turn")
            case Complete(run, cancelled, error):
                self._guards(run, abstract)
                self._ending(run, cancelled, error, abstract)
            case _:
                pass

    def step(self, action: Action, was_quiet: bool, abstract: AbstractSession) -> None:
        """Note a step. The abstract session has taken its events in."""
        told_apart = action.name in ("accept", "end", "written", "settle")
        self.seen.add(f"action {action.name} {action.how}" if told_apart else f"action {action.name}")
        self.exercised.add(Property.REFINES)
        if action.name == "cancel" and was_quiet:
            self.exercised.add(Property.IDLE_CANCEL)
        if action.name in ("resume", "resume_run") and abstract.turn:
            settles = "a run is resumed while a turn settles"
            self.seen.add("a resume starts a turn" if abstract.running else settles)
        if abstract.quiet and not was_quiet:
            self.exercised.add(Property.NO_RESIDUE)
        if action.name == "again" and abstract.states[action.run] is DeclaredState.COMPLETE:
            self.exercised.add(Property.TERMINAL_IS_FINAL)

    def places(self, session: int, event: Event, before: AbstractPlaces, after: AbstractPlaces) -> None:
        """Note how turns wait for places, before and after an event of a session."""
        if isinstance(event, Cancel) and session in before.waiting and session not in after.waiting:
            self.seen.add("a cancel covers a turn that waits for a place")
        if after.waiting and len(after.called) == after.limit:
            self.seen.add("a turn waits while every place is taken")
        if len(after.waiting) > 1:
            self.seen.add("two turns wait for a place")

    def _passes(self, run: str, abstract: AbstractSession) -> None:
        """Note which queued runs a run passes as it becomes active."""
        queue = [other for other in abstract.queue if other != run]
        if abstract.held.intersection(queue):
            self.exercised.add(Property.HELD)
            self.seen.add("a run passes one that is held")
        accepted = [*abstract.states]
        if any(accepted.index(other) < accepted.index(run) for other in queue if other not in abstract.held):
            self.seen.add("a moved run passes an earlier one")

    def _guards(self, run: str, abstract: AbstractSession) -> None:
        facts = abstract.facts(run)
        for guard, true, false in _ASKED[abstract.states[run]]:
            self.seen.add(true if facts & guard else false)

    def _ending(self, run: str, cancelled: bool, error: str | None, abstract: AbstractSession) -> None:
        self.exercised.add(Property.EXACTLY_ONE_COMPLETE)
        state = abstract.states[run]
        folded = run != abstract.lead
        if state in (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY):
            self.exercised.add(Property.LAST_WORD)
            if cancelled:
                self.exercised.add(Property.ON_RECORD)
        match state, cancelled, error:
            case DeclaredState.ACCEPTED, _, _:
                ending = "released and cancelled" if cancelled else "released"
                if run in abstract.bound and not abstract.turn:
                    ending = "released with its turn"
            case DeclaredState.QUEUED, _, _:
                ending = "cancelled while queued" if cancelled else "cleared"
                if run in abstract.bound and not abstract.turn:
                    ending = "cleared with its turn"
                if cancelled and run in abstract.held:
                    self.seen.add("a cancel drops a held run")
            case _, _, "store failed":
                ending = "store failed"
            case DeclaredState.CANCEL_ON_ENTRY, _, _:
                ending = "cancelled on entry"
            case _, True, _:
                ending = "cancelled while folded" if folded else "cancelled while active"
            case _:
                ending = ("failed" if error else "finished") + (", folded" if folded else "")
        self.seen.add(f"ending {ending}")
