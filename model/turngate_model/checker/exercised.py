"""What must have happened at least once, so that a check which saw nothing fails.

A property that holds because nothing ever put it to the test is no evidence.
The witness listens while steps are worked out and notes three things: which
actions were taken, which guards were seen true and false where a row asks for
them, and in which ways runs ended. It also notes which properties were put to
the test at all.
"""

from __future__ import annotations

from turngate_model.abstract_session import AbstractSession
from turngate_model.history import Accept, Cancel, Complete, Enter, Event, Fold, Handoff, Wrote
from turngate_model.lifecycle import TABLE, DeclaredState, Guard
from turngate_model.mechanism import Action
from turngate_model.properties import Property

_ASKED = {
    state: tuple(
        (int(guard), f"guard {guard.label} true", f"guard {guard.label} false")
        for guard in Guard
        if any(guard in (*row.conditions, *row.unless) for row in TABLE if row.source is state)
    )
    for state in DeclaredState
}
"""For each state, the guards that a row leaving it asks for, and how to note them."""

# What needs more than one prompt or any cancel at all, as (prompts, cancels) at the least.
_NEEDS = {
    "action cancel": (1, 1),
    "action cancel_run": (1, 1),
    "action clear": (1, 0),
    "action fold": (2, 0),
    "action end canceled": (2, 0),
    "guard cleared true": (2, 0),
    "guard cleared false": (2, 0),
    "guard first true": (2, 0),
    "guard first false": (3, 0),
    "guard vacated true": (2, 0),
    "guard vacated false": (2, 0),
    "guard joinable true": (2, 0),
    "guard joinable false": (2, 0),
    "guard foldable true": (2, 0),
    "guard foldable false": (2, 0),
    "guard occupied true": (2, 0),
    "ending cleared": (2, 0),
    "ending finished, folded": (2, 0),
    "ending failed, folded": (2, 0),
    "ending cancelled while folded": (2, 0),
    "ending cancelled while queued": (2, 0),
    "ending cancelled on entry": (1, 1),
}
_ALWAYS = (
    "action accept fold",
    "action accept queue",
    "action accept interrupt",
    "action again",
    "action enter",
    "action release",
    "action close",
    "action end end_turn",
    "action end error",
    "action written ok",
    "action written fails",
    "action settle ok",
    "action settle fails",
    "guard covered false",
    "guard covered true",
    "guard occupied false",
    "guard settled false",
    "guard settled true",
    "ending finished",
    "ending failed",
    "ending released",
    "ending released and cancelled",
    "ending cancelled while active",
    "a cancel during the write of a turn",
    "ending store failed",
)


def required(prompts: int, cancels: int) -> frozenset[str]:
    """Return what must have happened at least once within these bounds."""
    reachable = (what for what, (least, fewest) in _NEEDS.items() if prompts >= least and cancels >= fewest)
    return frozenset((*_ALWAYS, *reachable))


class Witness:
    """Notes what happened at least once."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self.exercised: set[Property] = set()

    def at_rest(self, what: AbstractSession) -> None:
        """Note the guards of every run in a session between two steps."""
        for run in what.in_flight:
            self._guards(run, what)

    def event(self, event: Event, what: AbstractSession) -> None:
        """Note an event, before the session has taken it in."""
        match event:
            case Accept() if what.covered:
                self.exercised.add(Property.NEVER_POISONED)
            case Cancel() if not what.quiet:
                self.exercised.add(Property.FULL_COVERAGE)
            case Enter(run, state):
                self._guards(run, what)
                self.exercised.add(Property.DECLARED_MOVE)
                if state is DeclaredState.ACTIVE:
                    self.exercised.add(Property.ONE_TURN)
            case Handoff(run) | Fold(run, _):
                self._guards(run, what)
                self.exercised |= {Property.FIFO, Property.NO_STRAND}
            case Wrote(run, reason) if run in what.covered and reason in ("end_turn", "error"):
                self.seen.add("a cancel during the write of a turn")
            case Complete(run, cancelled, error):
                self._guards(run, what)
                self._ending(run, cancelled, error, what)
            case _:
                pass

    def step(self, action: Action, was_quiet: bool, what: AbstractSession) -> None:
        """Note a step, after the session has taken in its events."""
        told_apart = action.name in ("accept", "end", "written", "settle")
        self.seen.add(f"action {action.name} {action.how}" if told_apart else f"action {action.name}")
        self.exercised.add(Property.REFINES)
        if action.name == "cancel" and was_quiet:
            self.exercised.add(Property.IDLE_CANCEL)
        if what.quiet and not was_quiet:
            self.exercised.add(Property.NO_RESIDUE)
        if action.name == "again" and what.states[action.run] is DeclaredState.COMPLETE:
            self.exercised.add(Property.TERMINAL_IS_FINAL)

    def _guards(self, run: str, what: AbstractSession) -> None:
        facts = what.facts(run)
        for guard, true, false in _ASKED[what.states[run]]:
            self.seen.add(true if facts & guard else false)

    def _ending(self, run: str, cancelled: bool, error: str | None, what: AbstractSession) -> None:
        self.exercised.add(Property.EXACTLY_ONE_COMPLETE)
        state = what.states[run]
        folded = run != what.lead
        if state in (DeclaredState.ACTIVE, DeclaredState.CANCEL_ON_ENTRY):
            self.exercised.add(Property.LAST_WORD)
            if cancelled:
                self.exercised.add(Property.ON_RECORD)
        match state, cancelled, error:
            case DeclaredState.ACCEPTED, _, _:
                ending = "released and cancelled" if cancelled else "released"
            case DeclaredState.QUEUED, _, _:
                ending = "cancelled while queued" if cancelled else "cleared"
            case _, _, "store failed":
                ending = "store failed"
            case DeclaredState.CANCEL_ON_ENTRY, _, _:
                ending = "cancelled on entry"
            case _, True, _:
                ending = "cancelled while folded" if folded else "cancelled while active"
            case _:
                ending = ("failed" if error else "finished") + (", folded" if folded else "")
        self.seen.add(f"ending {ending}")
