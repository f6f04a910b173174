"""A counterexample: who does what, step by step, and what should have happened instead."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.bounds import MOST_SESSIONS, NAMES
from turngate_model.checker.steps import Shared, at_rest, take
from turngate_model.history import Complete, Enter, Event, Fold, Handoff
from turngate_model.lifecycle import Successor
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import ModelRun, ModelSession
from turngate_model.properties import AnyProperty, AnyViolation

Way: TypeAlias = list[tuple[int, Action]]
"""Steps one after another, each with the number of its session."""


class PlayedStep(NamedTuple):
    """One step: the number of its session, the action, and the events of it."""

    session: int
    action: Action
    events: tuple[Event, ...]
    at_once: bool = False
    """Whether the next step is taken in the same moment."""
    words: str = ""
    """The step in words, if action and events do not say it all."""
    state: dict[str, str] | None = None
    """What the ledger and each process hold after the step, in words, if the step has kept it."""

    def __str__(self) -> str:
        """Return the step and its consequences in the words of SPEC.md."""
        if self.words:
            return self.words
        at_once = ", and in the same moment" if self.at_once else ""
        return in_words(self.action) + _outcome(self.action, self.events) + at_once


class Counterexample(NamedTuple):
    """A shortest way to break a property."""

    property: AnyProperty
    what: str
    steps: tuple[PlayedStep, ...]

    def told(self) -> list[str]:
        """Return the steps in words. If they are in several sessions, each names its session."""
        if len({step.session for step in self.steps}) == 1:
            return [str(step) for step in self.steps]
        return [f"{step} (session {step.session + 1})" for step in self.steps]


def replay(
    design: type[Mechanism],
    declared: Successor,
    way: Way,
    violation: AnyViolation,
    *,
    refine: bool,
    turns_limit: int | None = None,
) -> Counterexample:
    """Take the steps of a way again, in a new world, and name the runs in the order of acceptance."""
    sessions = [
        (ModelSession(), AbstractSession(declared, limited=turns_limit is not None))
        for _ in range(MOST_SESSIONS)
    ]
    names: dict[tuple[int, str], str] = {}
    shared = Shared.at_first(turns_limit)
    steps: list[PlayedStep] = []
    said = violation.what
    for session, action in way:
        run = None
        if action.name == "accept":
            names[session, action.run] = NAMES[len(names)]
            run = ModelRun(names[session, action.run], len(names))
        named = action._replace(run=" ".join(names[session, each] for each in action.run.split()))
        events: list[Event] = []
        found: list[AnyViolation] = []
        for each in range(MOST_SESSIONS) if action.name == "close" else [session]:
            held, abstract = sessions[each]
            taken = take(design, held, abstract, shared, named, run, session=each)
            shared = taken.shared
            events += taken.events
            found += [*taken.violations, *at_rest(design, held, abstract, refine=refine)]
        steps.append(PlayedStep(session, named, tuple(events)))
        said = next((fault.what for fault in found if fault.property is violation.property), violation.what)
    return Counterexample(violation.property, said, tuple(steps))


def in_words(action: Action) -> str:
    """Return an action in the words of SPEC.md."""
    match action.name, action.how:
        case "accept", "fold":
            return f"accept {action.run}"
        case "accept", "into":
            return f"accept {action.run}, for the active turn alone"
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
        case (("hold" | "resume"), _):
            return f"{action.name} the session"
        case (("hold_run" | "resume_run"), _):
            return f"{action.name.removesuffix('_run')} run {action.run}"
        case "stop", _:
            return "stop"
        case "send_now", _:
            return f"send {action.run} now"
        case "edit", how:
            return f"edit {action.run} ({how})"
        case "move", "last":
            return f"move {action.run} behind all"
        case "move", _:
            return "move {} before {}".format(*action.run.split())
        case "call", _:
            return f"the runner is called for {action.run}"
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
        case "second_half", how:
            return how + (f" {action.run}" if action.run else "")
        case name, _:
            return f"{name} {action.run}".rstrip()


def _outcome(action: Action, events: tuple[Event, ...]) -> str:
    if action.name == "enter":
        return "".join(f": {event.state}" for event in events if isinstance(event, Enter))
    seen = consequences(events)
    return f": {seen}" if seen else ""


def consequences(events: tuple[Event, ...]) -> str:
    """Return the consequences of a step in the words of SPEC.md."""
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
