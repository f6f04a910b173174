"""The proof where sessions share places: the tie, the teeth, and mistakes refuted from the start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from broken_places import BROKEN, RELATIONS, CallsTheLastInLine, FoldsWhileItWaits
from turngate_model import Mechanism
from turngate_model.checker import Bounds, Explorer, MemoryModel, steps
from turngate_model.proof.comparison import is_plain, told
from turngate_model.proof.consequences import of_sound_state, of_state, of_step
from turngate_model.proof.paths import RelationPath
from turngate_model.proof.places_kept import of_line, of_places
from turngate_model.proof.readings import Finite
from turngate_model.proof.relation import Relation
from turngate_model.proof.steps import steps_of
from turngate_model.proof.terms import RunState, Sort
from turngate_model.proof.tie_of_places import (
    IN_LINE,
    IN_LONG_LINE,
    TWO_SESSIONS,
    WITH_QUEUES,
    PlacesBounds,
    compare_places,
)
from turngate_model.proof.vocabulary import SIGNATURE, RelationWorld

ONE_SESSION = PlacesBounds(1, 2, 2, 0, 1)


@pytest.mark.requirement("R-PLC-1", "R-PLC-2", "R-PLC-3", "R-PLC-4", "R-PLC-5")
def test_the_relation_is_the_mechanism_where_a_session_waits_for_a_place() -> None:
    result = compare_places(ONE_SESSION)
    assert result.difference == ""
    assert ("call", "") in result.paths


@pytest.mark.deep
@pytest.mark.parametrize("bounds", [TWO_SESSIONS, IN_LINE, WITH_QUEUES, IN_LONG_LINE], ids=str)
def test_the_relation_is_the_mechanism_where_sessions_share_a_place(bounds: PlacesBounds) -> None:
    assert compare_places(bounds).difference == ""


@pytest.mark.deep
@pytest.mark.parametrize("mechanism", BROKEN, ids=lambda mechanism: mechanism.__name__)
def test_a_relation_that_is_not_the_mechanism_is_found(mechanism: type[Mechanism]) -> None:
    bounds = ONE_SESSION if mechanism is FoldsWhileItWaits else TWO_SESSIONS
    assert compare_places(bounds, kind=RELATIONS[mechanism]).difference != ""


@pytest.mark.parametrize("mechanism", BROKEN, ids=lambda mechanism: mechanism.__name__)
def test_a_mistake_is_refuted_from_the_start_in_as_many_steps_as_the_explorer_needs(
    mechanism: type[Mechanism], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The explorer does not look at the books: it judges by what is done, as the proof does."""
    monkeypatch.setattr(steps, "_unrefined_places", lambda _shared: ())
    explored = Explorer(MemoryModel(Bounds(2, 1, 2, turns_limit=1), mechanism)).run()
    example = explored.counterexamples[BROKEN[mechanism]]
    sessions = (0, 0) if mechanism is FoldsWhileItWaits else (0, 1)
    found, broken = refuted(RELATIONS[mechanism], sessions)
    # That only the last in line can be called is wrong before the last is called.
    assert found == len(example.steps) - (mechanism is CallsTheLastInLine), broken


def test_the_sound_relation_is_not_refuted() -> None:
    assert refuted(Relation, (0, 1), deepest=4) == (None, "")


def refuted(kind: type[Relation], sessions: tuple[int, ...], deepest: int = 8) -> tuple[int | None, str]:
    """Return how many steps from the start break something, and what: by plain computation."""
    reading = Finite(sessions)
    here = [reading.nothing(limit=1)]
    seen: set[frozenset[object]] = set()
    for depth in range(1, deepest + 1):
        following = []
        for tables in here:
            for broken, after in _taken(kind, reading, reading.world_of(tables)):
                if broken:
                    return depth, broken
                state = frozenset(told(reading.tables(after)).items())
                if state not in seen:
                    seen.add(state)
                    following.append(reading.tables(after))
        here = following
    return None, ""


def _taken(
    kind: type[Relation], reading: Finite, world: RelationWorld
) -> Iterator[tuple[str, RelationWorld]]:
    """Yield every step of a world: what it breaks, and where it leads."""
    for step in steps_of(kind):
        for session in sorted(set(reading.sessions)):
            for about in _abouts(step.about, reading, world, session, step.name == "accept"):
                for path in step.paths(kind, reading, world, session, about):
                    idle = kind(RelationPath(reading, path.world, [], []))
                    can_go_on = idle.can_go_on(session)
                    held = [
                        *((each.key, each.holds) for each in path.obligations),
                        *(
                            (each.says, each.holds)
                            for each in (
                                *of_state(reading, path.world, session, can_go_on, SIGNATURE),
                                *of_sound_state(reading, path.world, session),
                                *of_step(reading, world, path.world, session, step),
                                *of_line(reading, world, path.world, session, step),
                                *(
                                    each
                                    for other in sorted(set(reading.sessions))
                                    for each in of_places(reading, path.world, other, idle.can_call(other))
                                ),
                            )
                        ),
                    ]
                    wrong = [says for says, holds in held if not is_plain(holds)]
                    yield (wrong[0] if wrong else ""), path.world


def _abouts(
    sorts: tuple[Sort, ...], reading: Finite, world: RelationWorld, session: int, accepts: bool
) -> Iterator[tuple[object, ...]]:
    runs = [run for run in reading.runs if reading.sessions[run] == session]
    if accepts:
        unborn = [run for run in runs if world["state"](run) is RunState.UNBORN]
        yield from ((run, runs.index(run) + 1) for run in unborn[:1])
    else:
        domains: dict[Sort, Sequence[object]] = {Sort.RUN: runs, Sort.BOOL: (True, False)}
        yield from itertools.product(*(domains[sort] for sort in sorts))
