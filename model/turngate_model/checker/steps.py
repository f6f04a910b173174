"""Taking one step, and judging it.

``take`` takes a step of the mechanism and has the abstract session judge every event of it. ``at_rest`` looks
at the session that a step has led to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from turngate_model.abstract_places import AbstractPlaces
from turngate_model.abstract_session import AbstractSession
from turngate_model.checker.exercised import SessionWitness
from turngate_model.history import Event
from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import INTERNAL, Action, Mechanism
from turngate_model.model_session import ModelRun, ModelSession
from turngate_model.places import ModelPlaces
from turngate_model.properties import Property, Violation


class Shared(NamedTuple):
    """What the sessions of a world share."""

    common: int = 0
    """What a mechanism keeps outside its sessions. A sound one keeps nothing there."""
    places: ModelPlaces | None = None
    """The places as the mechanism keeps them, if the number of runner calls is limited."""
    abstract_places: AbstractPlaces | None = None
    """The places as they must be."""

    @classmethod
    def at_first(cls, turns_limit: int | None) -> Shared:
        """Return what the sessions share before the first step."""
        if turns_limit is None:
            return cls()
        return cls(0, ModelPlaces(turns_limit), AbstractPlaces(turns_limit))


class JudgedStep(NamedTuple):
    """A step that was taken: its events, what they break, and what the sessions share after it."""

    events: tuple[Event, ...]
    violations: tuple[Violation, ...]
    shared: Shared


class _Judge:
    """Shows every event of one step to the abstract session and to the abstract places."""

    def __init__(
        self,
        abstract: AbstractSession,
        places: AbstractPlaces | None,
        session: int,
        witness: SessionWitness | None,
    ) -> None:
        self.abstract, self.places, self.session, self.witness = abstract, places, session, witness
        self.events: list[Event] = []
        self.violations: list[Violation] = []

    def see(self, event: Event) -> None:
        """Judge one event."""
        if self.witness:
            self.witness.event(event, self.abstract)
        self.events.append(event)
        self.violations += self.abstract.observe(event)
        if self.places is not None:
            self.violations += self.places.broken_by(self.session, event)
            before, self.places = self.places, self.places.after(self.session, event, self.abstract)
            if self.witness:
                self.witness.places(self.session, event, before, self.places)


def take(
    design: type[Mechanism],
    held: ModelSession,
    abstract: AbstractSession,
    shared: Shared,
    action: Action,
    run: ModelRun | None = None,
    *,
    session: int = 0,
    witness: SessionWitness | None = None,
) -> JudgedStep:
    """Take one step in a session and judge it. The step changes ``held`` and ``abstract`` in place.

    ``held`` is the session that the mechanism holds, ``abstract`` the abstract session beside it, ``session``
    the number of the session in its world. ``run`` is the new run of an accept; by default its sequence is
    its rank in the session.
    """
    if run is None and action.name == "accept":
        run = ModelRun(action.run, len(abstract.states) + 1)
    was_quiet = abstract.quiet
    before = (held.frozen(), shared[:2]) if was_quiet and action.name in ("cancel", "hold", "stop") else None
    judge = _Judge(abstract, shared.abstract_places, session, witness)
    mechanism = at(design, judge.see, shared, session)
    if run:
        mode: Any = action.how
        mechanism.accept(held, run, mode)
    else:
        mechanism.take(held, action)
    after = Shared(mechanism.common, mechanism.places, judge.places)
    if witness:
        witness.step(action, was_quiet, abstract)
    if before and (held.frozen(), after[:2]) != before:
        unchanged = f"the session was idle: the {action.name} should have changed nothing"
        judge.violations.append(Violation(Property.IDLE_CANCEL, unchanged))
    judge.violations += _unrefined_places(after)
    return JudgedStep(tuple(judge.events), tuple(judge.violations), after)


def at(design: type[Mechanism], see: Any, shared: Shared, session: int) -> Mechanism:
    """Return a mechanism that is about to take a step in one session of a world."""
    mechanism = design(see)
    mechanism.common, mechanism.places, mechanism.session = shared.common, shared.places, session
    return mechanism


def unseen(event: Event) -> None:
    """Stand for the receiver of events where no step may be taken."""
    raise AssertionError(f"listing the steps of a session must not take one: {event}")


def at_rest(
    design: type[Mechanism], held: ModelSession, abstract: AbstractSession, *, refine: bool
) -> Iterator[Violation]:
    """Yield what is wrong with a session that a step has led to.

    A session whose turn waits for a place is not judged for what it owes, because its next step depends on
    other sessions. The explorer checks that such a turn is called.
    """
    actions = design(unseen).actions(held, [])
    waits = any(turn.waits for turn in held.turns)
    if not waits and not any(action.name in INTERNAL for action in actions):
        yield from abstract.owed()
        if abstract.quiet and held.frozen() != ModelSession().frozen():
            yield Violation(Property.NO_RESIDUE, "nothing is in flight: the session should hold nothing")
    if refine:
        yield from _unrefined(design(unseen).line(held), held, abstract)


def _unrefined(line: list[ModelRun], held: ModelSession, abstract: AbstractSession) -> Iterator[Violation]:
    """Yield every difference between a session of the mechanism and the abstract session beside it."""
    turn = held.turns[0] if held.turns else None
    runs = [run.name for run in turn.runs] if turn else []
    covered = {run.name for run in held.accepted if run.seq <= held.mark or run.name in held.singled_out}
    covered.update(run.name for run in held.entering)
    if turn and turn.cancelled:
        covered.update(runs)
    pairs = {
        "accepted": ([run.name for run in held.accepted], abstract.in_state(DeclaredState.ACCEPTED)),
        "cancel_on_entry": (
            {run.name for run in held.entering},
            set(abstract.in_state(DeclaredState.CANCEL_ON_ENTRY)),
        ),
        "queued": ([run.name for run in held.queue], abstract.queue),
        "in line": ([run.name for run in line], abstract.line),
        "held": (held.held, abstract.held),
        "for one turn": (held.bound, set(abstract.bound)),
        "for another turn": ([], [run for run, lead in abstract.bound.items() if lead != abstract.lead]),
        "active": (runs, abstract.turn),
        "covered": (covered, abstract.covered),
        "running": (bool(turn and turn.called and turn.writing == ""), abstract.running),
        "stranded": (False, bool(abstract.first and not abstract.turn)),
        "foldable": (held.foldable, abstract.foldable),
        "turns": (len(held.turns), bool(abstract.turn)),
    }
    for name, (has, should) in pairs.items():
        if has != should:
            yield Violation(
                Property.REFINES, f"{name}: the mechanism has {has}, the abstract session {should}"
            )


def _unrefined_places(shared: Shared) -> Iterator[Violation]:
    """Yield every difference between the places of the mechanism and the abstract places."""
    held, abstract = shared.places, shared.abstract_places
    if held is None or abstract is None:
        return
    pairs: dict[str, tuple[object, object]] = {
        "free places": (held.free, abstract.limit - len(abstract.called)),
        "sessions in line": ([each + 1 for each in held.line], [int(each) + 1 for each in abstract.waiting]),
    }
    for name, (has, should) in pairs.items():
        if has != should:
            yield Violation(Property.REFINES, f"{name}: the mechanism has {has}, but should have {should}")
