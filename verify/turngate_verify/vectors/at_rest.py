"""The mechanism behind the port: performs an operation, then every step that follows, until it is at rest.

What follows an operation can happen in more than one order: a run enters before or after the turn that a
cancel covers has ended. So one operation has several outcomes, each with its events. All of them lead to the
same state, or programs would not be enough to say what may be seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from turngate_model.history import Complete, Enter, Event, Fold, Handoff, Wrote
from turngate_model.mechanism import INTERNAL, Action, Mechanism
from turngate_model.model_session import Mode, ModelRun, ModelSession
from turngate_verify.conform.port import Features, Observed, Refused
from turngate_verify.conform.programs import SESSIONS, TAKING_IN, Name, Op

_USED = 2
"""How many sessions are enough to show whether they are isolated."""
_MODES: dict[str, Mode] = {"accept": "fold", "interrupt": "interrupt", "reject": "queue"}


class RestingWorld(NamedTuple):
    """What the mechanism holds for every session, and how many runs there were."""

    sessions: tuple[ModelSession, ...]
    runs: int = 0
    common: int = 0

    @classmethod
    def at_first(cls) -> RestingWorld:
        """Return a world in which nothing has happened."""
        return cls(tuple(ModelSession() for _ in range(_USED)))

    def frozen(self) -> tuple[Any, ...]:
        """Return a value that is equal for two worlds exactly if every step treats them alike."""
        return (*(session.frozen() for session in self.sessions), self.common)

    def copy(self) -> RestingWorld:
        """Return a copy. What happens to the one changes nothing in the other."""
        return RestingWorld(tuple(session.copy() for session in self.sessions), self.runs, self.common)


class Outcome(NamedTuple):
    """What an operation came to: the events that it showed, in order, and the world at rest after it."""

    events: tuple[Observed, ...]
    world: RestingWorld


class Motion(NamedTuple):
    """A world that may still move in one session, with what it has shown, and the runs yet to enter."""

    world: RestingWorld
    events: tuple[Observed, ...]
    entering: tuple[str, ...] = ()


def outcomes(design: type[Mechanism], world: RestingWorld, op: Op, *, two_phase: bool) -> Iterator[Outcome]:
    """Yield the possible outcomes of an operation, one for each order of the steps that follow it."""
    moving = [_performed(design, world, op, two_phase=two_phase)]
    known = set()
    while moving:
        at = moving.pop()
        steps = list(_following(design, at, op.place))
        if not steps:
            yield Outcome(at.events, at.world)
        for action in steps:
            after = _taken(design, at, op.place, action)
            key = (after.world.frozen(), after.events, after.entering)
            if key not in known:
                known.add(key)
                moving.append(after)


def first_outcome(design: type[Mechanism], world: RestingWorld, op: Op, *, two_phase: bool) -> Outcome:
    """Return the outcome of an operation if every step that follows is taken as soon as it can be."""
    at = _performed(design, world, op, two_phase=two_phase)
    while action := next(_following(design, at, op.place), None):
        at = _taken(design, at, op.place, action)
    return Outcome(at.events, at.world)


def _performed(design: type[Mechanism], world: RestingWorld, op: Op, *, two_phase: bool) -> Motion:
    """Take the step of the caller or the runner that an operation is."""
    session = world.sessions[op.place]
    if op.name in TAKING_IN:
        at = Motion(world._replace(runs=world.runs + 1), (), () if two_phase else (op.run,))
        if op.name == "reject" and getattr(design, "is_busy", _is_busy)(session):
            return Motion(at.world, (Refused(op.run),))
        return _taken(design, at, op.place, op.action, _MODES[op.name])
    at = Motion(world, ())
    if op.name in ("finish", "fail", "fold") and not _runs(session, op.run):
        return at
    return _taken(design, at, op.place, op.action)


def _is_busy(session: ModelSession) -> bool:
    return bool(session.in_flight)


def _runs(session: ModelSession, lead: str) -> bool:
    turn = session.turn_of(lead)
    return turn is not None and turn.writing == ""


def _following(design: type[Mechanism], at: Motion, place: int) -> Iterator[Action]:
    """Yield the steps that the session takes by itself: no store fails, and an interrupted runner stops."""
    session = at.world.sessions[place]
    for run in at.entering:
        yield Action("caller", "enter", run)
    for action in design(lambda _: None).actions(session, []):
        told_to_end = action.name == "end" and action.how != "canceled"
        if action.name in INTERNAL and not told_to_end and action.how != "fails":
            yield action


def _taken(
    design: type[Mechanism], at: Motion, place: int, action: Action, mode: Mode | None = None
) -> Motion:
    """Take one step on a copy of the world."""
    world = at.world.copy()
    seen: list[Event] = []
    mechanism = design(seen.append)
    mechanism.session, mechanism.common = place, world.common
    session = world.sessions[place]
    if mode is not None:
        mechanism.accept(session, ModelRun(action.run, world.runs), mode)
    else:
        mechanism.take(session, action)
    shown = tuple(event for event in seen if isinstance(event, Enter | Handoff | Fold | Complete | Wrote))
    entering = at.entering if action.name != "enter" else ()
    return Motion(world._replace(common=mechanism.common), (*at.events, *shown), entering)


class ModelSubject:
    """The mechanism, or a known-bad design, as a subject of the conformance kit."""

    def __init__(self, design: type[Mechanism] = Mechanism, *, two_phase: bool = True) -> None:
        self.features = Features(
            two_phase=two_phase,
            folds=True,
            clear=True,
            messages=True,
            cancel_run=True,
            interrupt=True,
            reject=True,
        )
        self._design = design
        self._world = RestingWorld.at_first()
        self._seen: list[Observed] = []
        self._place_of: dict[str, int] = {}

    def _perform(self, name: Name, run: str = "", session: str = "") -> None:
        place = SESSIONS.index(session) if session else self._place_of[run]
        self._place_of.setdefault(run, place)
        outcome = first_outcome(
            self._design, self._world, Op(name, run, place), two_phase=self.features.two_phase
        )
        self._world = outcome.world
        self._seen += outcome.events

    def accept(self, session: str, run: str) -> None:
        """Accept; and enter, if there is one phase only."""
        self._perform("accept", run, session)

    def interrupt(self, session: str, run: str) -> None:
        """Cancel what came before, and accept."""
        self._perform("interrupt", run, session)

    def reject(self, session: str, run: str) -> None:
        """Accept, unless the session is busy."""
        self._perform("reject", run, session)

    def enter(self, run: str) -> None:
        """Enter."""
        self._perform("enter", run)

    def cancel(self, session: str) -> None:
        """Cancel."""
        self._perform("cancel", session=session)

    def cancel_run(self, run: str) -> None:
        """Cancel one run."""
        self._perform("cancel_run", run)

    def clear(self, session: str) -> None:
        """Clear the queue."""
        self._perform("clear", session=session)

    def fold(self, run: str) -> None:
        """Fold."""
        self._perform("fold", run)

    def finish(self, run: str) -> None:
        """Finish."""
        self._perform("finish", run)

    def fail(self, run: str) -> None:
        """Fail."""
        self._perform("fail", run)

    def observe(self) -> Sequence[Observed]:
        """Return what happened since the last call."""
        seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        """Release everything."""
