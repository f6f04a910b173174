"""Walks: a history step by step, with what the sessions look like after each step.

A walk is made by taking steps, so it shows nothing that was not done. ``walked`` takes the steps of a
counterexample on the design that they break. ``beside`` takes the same steps on the sound mechanism, as far
as there are such steps there. ``shown`` and ``following`` do the same for a history that another
dispatcher has shown, where only the events are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeAlias

from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.counterexample import PlayedStep, in_words
from turngate_model.checker.steps import JudgedStep, Shared, at_rest, take, unseen
from turngate_model.history import (
    Accept,
    Cancel,
    Clear,
    Complete,
    Enter,
    Event,
    Fold,
    Hold,
    Move,
    Resume,
)
from turngate_model.lifecycle import DeclaredState, successor
from turngate_model.mechanism import Action, Mechanism
from turngate_model.model_session import ModelRun, ModelSession
from turngate_model.pictures.views import View, of_history, of_mechanism
from turngate_model.properties import Violation

NOTHING = View({}, {}, {})
"""What there is before the first step."""


class Moment(NamedTuple):
    """One step of a walk: who did what, in which session, and the result."""

    session: int
    actor: str
    words: str
    events: tuple[Event, ...]
    view: View
    """What the sessions look like after the step."""
    broken: tuple[Violation, ...] = ()
    missing: str = ""
    """Why there is no such step here; empty if there is one."""
    about: str = ""
    """The run that a caller's step is about; empty if it is about the session, or unknown."""


Walk: TypeAlias = tuple[Moment, ...]

_OF_WAITING = ("hold_run", "resume_run", "move", "edit", "send_now")
"""The operations that are refused where the run does not wait."""


class _World:
    """A mechanism with its sessions, and the abstract sessions beside them."""

    def __init__(self, design: type[Mechanism], *, refine: bool) -> None:
        self.design, self.refine = design, refine
        self.sessions: list[tuple[ModelSession, AbstractSession]] = []
        self.seqs: dict[str, int] = {}
        self.ended: dict[str, str] = {}
        self.shared = Shared()

    def at(self, session: int) -> tuple[ModelSession, AbstractSession]:
        while len(self.sessions) <= session:
            self.sessions.append((ModelSession(), AbstractSession(successor)))
        return self.sessions[session]

    def has(self, session: int, action: Action) -> bool:
        """Return whether this step could be taken now."""
        held, abstract = self.at(session)
        mechanism = self.design(unseen)
        if action.name == "accept":
            return action.run not in self.seqs and (action.how != "into" or mechanism.can_bind(held))
        if action.name == "close":
            return True
        complete = abstract.in_state(DeclaredState.COMPLETE)
        return action in (*mechanism.actions(held, complete), *mechanism.line_actions(held))

    def take(self, session: int, action: Action) -> JudgedStep:
        held, abstract = self.at(session)
        run = None
        if action.name == "accept":
            run = ModelRun(action.run, len(self.seqs) + 1)
            self.seqs[action.run] = 0 if action.how == "in-process" else run.seq
        taken = take(self.design, held, abstract, self.shared, action, run, session=session)
        self.shared = taken.shared
        self.ended |= _ends(taken.events)
        found = (*taken.violations, *at_rest(self.design, held, abstract, refine=self.refine))
        return taken._replace(violations=tuple(dict.fromkeys(found)))

    def view(self) -> View:
        return of_mechanism(self.design, self.sessions, self.seqs, self.ended)


def _ends(events: Iterable[Event]) -> dict[str, str]:
    """Return what RunCompletes say, by the run."""
    return {event.run: outcome(event) for event in events if isinstance(event, Complete)}


def outcome(event: Complete) -> str:
    """Say how a run has ended."""
    return (
        ", ".join([*(["cancelled"] if event.cancelled else []), *filter(None, [event.error])]) or "finished"
    )


def walked(design: type[Mechanism], steps: Iterable[PlayedStep]) -> Walk:
    """Take the steps of a counterexample on the design that they break."""
    world, walk = _World(design, refine=design is Mechanism), list[Moment]()
    for step in steps:
        places = range(len(world.sessions)) if step.action.name == "close" else [step.session]
        taken = [world.take(place, step.action) for place in places]
        events = tuple(event for each in taken for event in each.events)
        broken = tuple(violation for each in taken for violation in each.violations)
        walk.append(_moment(step, events, world.view(), broken))
    return tuple(walk)


def beside(steps: Iterable[PlayedStep]) -> Walk:
    """Take the same steps on the sound mechanism, as far as there are such steps there."""
    world, walk = _World(Mechanism, refine=True), list[Moment]()
    for step in steps:
        action = _sound_form(world, step)
        if action is None:
            why = {"second_half": "there is nothing left to do"}.get(action_name := step.action.name)
            why = why or ("it is refused" if action_name in _OF_WAITING else "there is no such step")
            walk.append(_moment(step, (), world.view())._replace(missing=why))
            continue
        taken = world.take(step.session, action)
        walk.append(
            _moment(step._replace(action=action), taken.events, world.view(), _sound(taken.violations))
        )
    return tuple(walk)


def _sound(violations: tuple[Violation, ...]) -> tuple[Violation, ...]:
    assert not violations, f"the sound mechanism breaks something: {violations}"
    return ()


def _moment(
    step: PlayedStep, events: tuple[Event, ...], view: View, broken: tuple[Violation, ...] = ()
) -> Moment:
    action = step.action
    return Moment(step.session, action.actor, in_words(action), events, view, broken, about=action.run)


def _sound_form(world: _World, step: PlayedStep) -> Action | None:
    """Return what a step is on the sound mechanism, or None if there is nothing to be taken."""
    action = step.action
    if action.how == "in-process":
        action = action._replace(how="fold")
    forms = [action]
    if action.name == "end":
        forms += [action._replace(how="canceled"), action._replace(how="end_turn")]
    elif action.name in ("written", "settle"):
        forms.append(action._replace(name="settle" if action.name == "written" else "written"))
    return next((form for form in forms if world.has(step.session, form)), None)


# Histories of other dispatchers.


class Shown(NamedTuple):
    """A step of another dispatcher: who did what, in which session, and the events it showed."""

    session: str
    actor: str
    words: str
    events: tuple[Event, ...]
    broken: tuple[Violation, ...] = ()


def shown(steps: Iterable[Shown]) -> Walk:
    """Say what follows from each step of a history that another dispatcher has shown."""
    steps = list(steps)
    names = list(dict.fromkeys(step.session for step in steps))
    sessions = {name if len(names) > 1 else "": AbstractSession() for name in names}
    place_of: dict[str, AbstractSession] = {}
    ended: dict[str, str] = {}
    walk = []
    for step in steps:
        own = sessions[step.session if len(names) > 1 else ""]
        for event in step.events:
            run = getattr(event, "run", "")
            at = place_of.setdefault(run, own) if run else own
            if run and run not in at.states and not isinstance(event, Accept):
                continue  # The accept of this run is not part of what is shown.
            at.observe(event)
        ended |= _ends(step.events)
        view = of_history(sessions, ended)
        walk.append(Moment(names.index(step.session), step.actor, step.words, step.events, view, step.broken))
    return tuple(walk)


def following(steps: Iterable[Shown], *, at_once: bool = False) -> Walk:
    """Let the sound mechanism do what callers and runners did in a history of another dispatcher.

    The events say what they did: who was accepted, who entered, what was cancelled, which turn ended. What
    the dispatcher itself did is not followed: that is for the mechanism to decide. With ``at_once`` nothing
    waits between the steps: an interrupted turn ends, and messages are written, in the step that
    causes it.
    """
    world, walk = _World(Mechanism, refine=True), list[Moment]()
    names: list[str] = []
    for step in steps:
        if step.session not in names:
            names.append(step.session)
        session, events = names.index(step.session), list[Event]()
        actions = list(dict.fromkeys(_asked(world, session, step)))
        while actions:
            action = actions.pop(0)
            if world.has(session, action):
                events += world.take(session, action).events
            if not actions and at_once:
                actions = _by_themselves(world, session)
        view = world.view()
        idle = "" if events else "nothing happens here"
        walk.append(Moment(session, step.actor, step.words, tuple(events), view, (), idle))
    return tuple(walk)


def _asked(world: _World, session: int, step: Shown) -> Iterator[Action]:
    """Yield what callers and runners did in a step, as steps of the mechanism."""
    for event in step.events:
        match event:
            case Accept(run, foldable, into):
                yield Action("caller", "accept", run, "into" if into else "fold" if foldable else "queue")
            case Enter(run, _):
                yield Action("caller", "enter", run)
            case Cancel(None):
                yield Action("caller", "cancel")
            case Cancel(runs) if runs:
                yield Action("caller", "cancel_run", min(runs))
            case Clear(None):
                yield Action("caller", "clear")
            case Hold(runs) | Resume(runs):
                does = "hold" if isinstance(event, Hold) else "resume"
                yield from (Action("caller", f"{does}_run", run) for run in sorted(runs or ()))
                if runs is None:
                    yield Action("caller", does)
            case Move(run, before):
                yield Action("caller", "move", f"{run} {before}".strip(), "before" if before else "last")
            case Fold(_, into):
                yield Action("runner", "fold", into)
            case Complete(run, cancelled, error):
                yield from _ended(world, session, run, "error" if error and not cancelled else "end_turn")
            case _:
                pass


def _ended(world: _World, session: int, run: str, outcome: str) -> Iterator[Action]:
    """Yield how a run comes to its end, from where it is on the sound mechanism."""
    held, _ = world.at(session)
    turn = next((turn for turn in held.turns if run in [each.name for each in turn.runs]), None)
    if turn is not None:
        yield Action("runner", "end", turn.lead.name, "canceled" if turn.cancelled else outcome)
        yield Action("store", "written", turn.lead.name, "ok")
    elif run in [each.name for each in held.entering]:
        yield Action("store", "settle", run, "ok")
    elif run in [each.name for each in held.accepted]:
        yield Action("caller", "release", run)


def _by_themselves(world: _World, session: int) -> list[Action]:
    """Return a step that happens by itself: an interrupted turn ends, a store has written."""
    held, _ = world.at(session)
    for run in held.entering:
        return [Action("store", "settle", run.name, "ok")]
    for turn in held.turns:
        if turn.writing:
            return [Action("store", "written", turn.lead.name, "ok")]
        if turn.cancelled:
            return [Action("runner", "end", turn.lead.name, "canceled")]
    return []
