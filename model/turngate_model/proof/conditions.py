"""The conditions of the proof: each says that something follows, and a solver has to agree.

Five kinds, and together they are the proof by induction:

* *first*: every clause holds where nothing has happened yet;
* *kept*: every clause holds after every path of every step, if all held before;
* *event*: every event of a path breaks nothing, if the invariant held before;
* *follows*: what a property says of a state, of a step or of progress follows;
* *unique*: what a path chooses is one run and no other.

ISOLATION has conditions of its own, about two worlds (``isolation.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from turngate_model.proof.consequences import of_cancel, of_sound_state, of_state, of_step
from turngate_model.proof.invariant import INVARIANT, Clause
from turngate_model.proof.paths import Path
from turngate_model.proof.progress import of_progress, of_waiting
from turngate_model.proof.readings import Definition, Finite, Reading, Unbounded
from turngate_model.proof.relation import Relation
from turngate_model.proof.steps import Step, steps_of
from turngate_model.proof.terms import Formula, Individual, Sort, Value, Variable, all_of, equal, implies
from turngate_model.proof.vocabulary import NOTHING, SIGNATURE, World

Kind: TypeAlias = Literal["first", "kept", "event", "follows", "unique", "apart", "never"]
NUMBER, OK = Variable("n", Sort.INT), Variable("ok", Sort.BOOL)
"""The number that an accept stamps, and whether a write has gone well."""
THE_INVARIANT = "the invariant"
"""What the conditions are part of that keep the invariant, and no property alone."""


@dataclass(frozen=True)
class Condition:
    """From what is assumed the goal follows, for any number of runs and sessions."""

    kind: Kind
    part_of: str
    """The property that it is part of, or the invariant."""
    where: str
    """The step and the branches of it; or between steps."""
    says: str
    assumes: tuple[Formula, ...]
    """What is known besides the invariant."""
    goal: Formula
    definitions: tuple[Definition, ...] = ()
    constants: tuple[Variable, ...] = ()
    clauses: tuple[tuple[Clause, Formula], ...] = ()
    """The invariant of before, clause by clause."""
    worlds: tuple[str, ...] = ("",)
    """The tags of the worlds that it is about."""

    def __str__(self) -> str:
        return f"{self.part_of}: {self.says} ({self.where})"


class Stage:
    """What every condition starts from: any world in which the invariant holds, and a session of it."""

    def __init__(self, kind: type[Relation] = Relation) -> None:
        reading = Unbounded()
        self.kind = kind
        self.reading: Reading = reading
        self.world: World = reading.world()
        self.session: Individual = Variable("s", Sort.SESSION)
        self.names: dict[Sort, Value] = {Sort.RUN: Variable("r", Sort.RUN), Sort.INT: NUMBER, Sort.BOOL: OK}
        """What steps are about, by its sort."""
        self.invariant = invariant_of(self.reading, self.world)

    def about(self, step: Step) -> tuple[Any, ...]:
        """Return what a step is about."""
        return tuple(self.names[sort] for sort in step.about)

    def paths(self, step: Step) -> Iterator[tuple[Path, tuple[Variable, ...]]]:
        """Yield every path of a step, and the names that its formulas speak of."""
        about = self.about(step)
        for path in step.paths(self.kind, self.reading, self.world, self.session, about):
            named = (self.session, *about, *(each.run for each in path.chosen))
            yield path, tuple(each for each in named if isinstance(each, Variable))


class SmallStage(Stage):
    """The same for so many runs, the first of which a step is about: a solver can try all there is."""

    def __init__(self, sessions: tuple[int, ...], kind: type[Relation] = Relation) -> None:
        reading = Finite(sessions, kind.symbols)
        self.kind = kind
        self.reading = reading
        self.world = reading.world("now")
        self.session = sessions[0]
        self.names = {Sort.RUN: 0, Sort.INT: NUMBER, Sort.BOOL: OK}
        self.invariant = invariant_of(reading, self.world)


def invariant_of(reading: Reading, world: World) -> tuple[tuple[Clause, Formula], ...]:
    """Return every clause of the invariant, with what it says of a world."""
    return tuple((each, each.says(reading, world)) for each in INVARIANT)


def conditions(stage: Stage | None = None) -> Iterator[Condition]:
    """Yield every condition of the proof, but those of two worlds."""
    stage = stage or Stage()
    yield from _first(stage)
    yield from _of_any_state(stage)
    for step in steps_of(stage.kind):
        for path, constants in stage.paths(step):
            yield from _of_path(stage, step, path, constants)


def where(step: Step, path: Path) -> str:
    """Say which way through a step a path is."""
    return f"{step}: {', '.join(path.trail)}" if path.trail else str(step)


def _first(stage: Stage) -> Iterator[Condition]:
    start = nothing_yet(stage.reading, stage.world)
    for clause, formula in stage.invariant:
        yield Condition("first", THE_INVARIANT, "at first", clause.name, (start,), formula)


def nothing_yet(reading: Any, world: World) -> Formula:
    """Say that nothing has happened: no run is born, and every session is empty."""
    free = ("seq", "ahead", "outcome", "next")
    empty = [
        reading.for_all(
            lambda *arguments, n=name, v=NOTHING[symbol.result]: equal(world[n](*arguments), v),
            *symbol.arguments,
        )
        for name, symbol in SIGNATURE.items()
        if name not in free
    ]
    return all_of(*empty, reading.for_all(lambda session: equal(world["next"](session), 1), Sort.SESSION))


def _of_any_state(stage: Stage) -> Iterator[Condition]:
    reading, world, session = stage.reading, stage.world, stage.session
    idle = stage.kind(Path(reading, world, [], []))
    can_go_on = idle.can_go_on(session)
    for part_of, says, holds in (
        *of_state(reading, world, session, can_go_on, SIGNATURE),
        *of_sound_state(reading, world, session),
        *of_waiting(reading, world, session),
    ):
        yield Condition(
            "follows",
            part_of,
            "between steps",
            says,
            (),
            holds,
            constants=(session,) if isinstance(session, Variable) else (),
            clauses=stage.invariant,
        )


def _of_path(stage: Stage, step: Step, path: Path, constants: tuple[Variable, ...]) -> Iterator[Condition]:
    def condition(kind: Kind, part_of: str, says: str, goal: Formula, assumed: int) -> Condition:
        return Condition(
            kind,
            part_of,
            where(step, path),
            says,
            tuple(path.assumes[:assumed]),
            goal,
            tuple(path.definitions),
            constants,
            stage.invariant,
        )

    everything = len(path.assumes)
    for each in path.obligations:
        yield condition("event", each.property, each.key, each.holds, each.assumed)
    for chosen in path.chosen:
        goal = stage.reading.for_all(lambda other, c=chosen: implies(c.holds(other), equal(other, c.run)))
        yield condition("unique", THE_INVARIANT, f"one run only: {chosen.why}", goal, chosen.assumed + 1)
    for clause, _ in stage.invariant:
        goal = clause.says(stage.reading, path.world)
        yield condition("kept", THE_INVARIANT, clause.name, goal, everything)
    for part_of, says, holds in (
        *of_step(stage.reading, stage.world, path.world, stage.session, step),
        *of_progress(stage.reading, stage.world, path.world, stage.session, step),
        *(of_cancel(stage.reading, stage.world, path.world, stage.session) if step.name == "cancel" else ()),
    ):
        yield condition("follows", part_of, says, holds, everything)
