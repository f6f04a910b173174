"""A counterexample: who did what, in what order, and what should have been."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.nodes import at_rest, take
from turngate_model.history import Complete, Enter, Event, Fold, Handoff
from turngate_model.lifecycle import Successor
from turngate_model.mechanism import Action, Mechanism, ModelRun, ModelSession
from turngate_model.properties import Property, Violation

Place: TypeAlias = int
"""Which session: 0 or 1."""

_NAMES = "abcdefgh"


class Step(NamedTuple):
    """One step: in which session, what was done, and what was seen of it."""

    session: Place
    action: Action
    events: tuple[Event, ...]

    def __str__(self) -> str:
        """Say the step in domain words."""
        return told(self.action) + _outcome(self.action, self.events)


class Counterexample(NamedTuple):
    """The shortest way to break a property."""

    property: Property
    what: str
    steps: tuple[Step, ...]

    def told(self) -> list[str]:
        """Return the steps in words, naming the session where there are two."""
        if len({step.session for step in self.steps}) == 1:
            return [str(step) for step in self.steps]
        return [f"{step} (session {step.session + 1})" for step in self.steps]


def replay(
    design: type[Mechanism],
    declared: Successor,
    path: list[tuple[Place, Action]],
    violation: Violation,
    *,
    refine: bool,
) -> Counterexample:
    """Take the steps again in a world of their own, with the runs named in the order of acceptance."""
    sessions = [(ModelSession(), AbstractSession(declared)) for _ in range(2)]
    names: dict[tuple[Place, str], str] = {}
    common = 0
    steps: list[Step] = []
    said = violation.what
    for place, action in path:
        run = None
        if action.name == "accept":
            names[place, action.run] = _NAMES[len(names)]
            run = ModelRun(names[place, action.run], len(names))
        named = action._replace(run=" ".join(names[place, each] for each in action.run.split()))
        events: list[Event] = []
        found: list[Violation] = []
        for each in range(2) if action.name == "close" else [place]:
            how, what = sessions[each]
            taken = take(design, how, what, common, named, run)
            common = taken.common
            events += taken.events
            found += [*taken.violations, *at_rest(design, how, what, refine=refine)]
        steps.append(Step(place, named, tuple(events)))
        said = next((fault.what for fault in found if fault.property is violation.property), violation.what)
    return Counterexample(violation.property, said, tuple(steps))


def told(action: Action) -> str:
    """Say in domain words what was done."""
    match action.name, action.how:
        case "accept", "fold":
            return f"accept {action.run}"
        case "accept", how:
            return f"accept {action.run} ({how})"
        case "again", _:
            return f"accept {action.run} again, under the same run_id"
        case "cancel", _:
            return "cancel"
        case "cancel_run", _:
            return f"cancel run {action.run}"
        case "clear", _:
            return "clear the queue"
        case "close", _:
            return "shut down"
        case "fold", _:
            return f"the runner of {action.run} asks for follow-ups"
        case "end", "end_turn":
            return f"the turn of {action.run} ends"
        case "end", "error":
            return f"the turn of {action.run} fails"
        case "end", _:
            return f"the turn of {action.run} ends, cancelled"
        case (("written" | "settle"), "ok"):
            return f"the messages of {action.run} are written"
        case (("written" | "settle"), _):
            return f"writing the messages of {action.run} fails"
        case "resume", how:
            return how + (f" {action.run}" if action.run else "")
        case name, _:
            return f"{name} {action.run}".rstrip()


def _outcome(action: Action, events: tuple[Event, ...]) -> str:
    if action.name == "enter":
        return "".join(f": {event.state}" for event in events if isinstance(event, Enter))
    seen = consequences(events)
    return f": {seen}" if seen else ""


def consequences(events: tuple[Event, ...]) -> str:
    """Say in domain words what was seen to come of a step."""
    seen = []
    for event in events:
        match event:
            case Enter(run, state):
                seen.append(f"{run} is {state}")
            case Handoff(run):
                seen.append(f"{run} becomes active")
            case Fold(run, into):
                seen.append(f"{run} joins the turn of {into}")
            case Complete(run, cancelled, error):
                outcome = [*(["cancelled"] if cancelled else []), *([error] if error else [])]
                seen.append(f"RunComplete of {run}: {', '.join(outcome) or 'finished'}")
            case _:
                pass
    return ", ".join(seen)
