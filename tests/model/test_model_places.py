"""A limit on turns: it bounds concurrent runner calls, in the order in which turns became active."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broken_places import BROKEN, KeepsThePlaceWhileSettling
from turngate_model import AbstractSession, DeclaredState, Mechanism, Property, Violation
from turngate_model.abstract_places import AbstractPlaces
from turngate_model.checker import Bounds, Explorer, MemoryModel, steps
from turngate_model.checker.steps import Shared, take
from turngate_model.history import Accept, Called, Cancel, Complete, Ended, Enter, Event, Handoff, Wrote
from turngate_model.mechanism import Action
from turngate_model.model_session import ModelRun, ModelSession

ONE_PLACE = Bounds(prompts=3, cancels=1, sessions=2, turns_limit=1)
ACTIVE = DeclaredState.ACTIVE


@pytest.mark.parametrize("bounds", [Bounds(2, 1, 2, turns_limit=1), Bounds(2, 0, 2, turns_limit=2)])
def test_symmetry_changes_no_verdict(bounds: Bounds) -> None:
    small, large = (Explorer(MemoryModel(bounds, symmetry=symmetry)).run() for symmetry in (True, False))
    assert large.states > 1.5 * small.states
    assert (large.depth, large.exercised, large.missed) == (small.depth, small.exercised, small.missed)
    assert large.counterexamples == small.counterexamples == {}


def test_a_limit_that_keeps_no_turn_waiting_is_unknown() -> None:
    result = Explorer(MemoryModel(Bounds(2, 1, 2, turns_limit=2))).run()
    assert (result.verdict, result.missed) == ("unknown", ("a turn waits while every place is taken",))


def test_a_limit_must_make_sense() -> None:
    with pytest.raises(ValueError, match="turns_limit must be from 1 to 3, not 0"):
        Bounds(turns_limit=0)


# What a waiting turn can and cannot do.


class PlacesWorld:
    """Sessions of the mechanism that share one place."""

    def __init__(self, sessions: int = 2) -> None:
        self.held = [ModelSession() for _ in range(sessions)]
        self.abstract = [AbstractSession(limited=True) for _ in range(sessions)]
        self.shared = Shared.at_first(1)

    def take(self, session: int, name: str, run: str = "", how: str = "") -> list[Event]:
        made = ModelRun(run, ord(run)) if name == "accept" else None
        action = Action("caller", name, run, how)
        taken = take(
            Mechanism, self.held[session], self.abstract[session], self.shared, action, made, session=session
        )
        assert taken.violations == ()
        self.shared = taken.shared
        return list(taken.events)

    def start(self, session: int, run: str) -> None:
        self.take(session, "accept", run, "fold")
        self.take(session, "enter", run)

    def can(self, session: int) -> set[str]:
        """Return the names of the steps that a session can take next."""
        mechanism = steps.at(Mechanism, steps.unseen, self.shared, session)
        return {action.name for action in mechanism.actions(self.held[session], [])}


def waiting() -> PlacesWorld:
    """Return a world in which the runner is called for a, and b waits in the other session."""
    world = PlacesWorld()
    world.start(0, "a")
    world.take(0, "call", "a")
    world.start(1, "b")
    return world


def test_a_turn_that_waits_is_active_and_can_neither_fold_nor_end() -> None:
    world = waiting()
    world.start(1, "c")
    assert world.abstract[1].in_state(ACTIVE) == ["b"]
    assert world.abstract[1].in_state(DeclaredState.QUEUED) == ["c"]
    assert not world.abstract[1].running
    assert world.can(1).isdisjoint({"call", "fold", "end", "written"})
    assert {"cancel", "cancel_run", "clear"} <= world.can(1)


@pytest.mark.requirement("R-PLC-4", "R-PLC-5")
def test_the_place_is_free_while_the_turn_before_settles() -> None:
    world = waiting()
    world.take(0, "end", "a", "end_turn")
    assert "written" in world.can(0)
    assert world.take(1, "call", "b") == [Called("b")]
    assert {"fold", "end"} & world.can(1) == {"end"}


@pytest.mark.requirement("R-PLC-3")
@pytest.mark.parametrize("how", ["cancel", "cancel_run", "close"])
def test_a_waiting_turn_that_is_cancelled_completes_without_a_call(how: str) -> None:
    world = waiting()
    seen = world.take(1, how, "b" if how == "cancel_run" else "")
    assert [event for event in seen if not isinstance(event, Cancel)] == []
    assert world.shared.places == (0, ())
    assert world.take(1, "written", "b", "ok") == [Wrote("b", "canceled"), Complete("b", cancelled=True)]
    world.take(0, "end", "a", "end_turn")
    assert world.shared.places == (1, ())


def test_the_queue_behind_a_cancelled_waiting_turn_waits_in_its_stead() -> None:
    world = waiting()
    world.start(1, "c")
    world.take(1, "cancel_run", "b")
    assert world.take(1, "written", "b", "ok")[-1] == Handoff("c")
    assert world.shared.places == (0, (1,))


@pytest.mark.requirement("R-PLC-2")
def test_a_handoff_goes_to_the_end_of_the_line() -> None:
    world = PlacesWorld(3)
    for session, run in enumerate("abc"):
        world.start(session, run)
    world.start(0, "d")
    world.take(0, "call", "a")
    world.take(0, "end", "a", "end_turn")
    world.take(0, "written", "a", "ok")
    assert world.shared.places == (1, (1, 2, 0))
    assert [session for session in range(3) if "call" in world.can(session)] == [1]


# What the abstract places say.


def judged(*events: tuple[int, Event]) -> list[str]:
    """Return what the last event breaks, with one place; those before it must break nothing."""
    sessions = [AbstractSession(limited=True) for _ in range(3)]
    places = AbstractPlaces(1)
    broken: list[Violation] = []
    for session, event in events:
        assert broken == []
        sessions[session].observe(event)
        broken = list(places.broken_by(session, event))
        places = places.after(session, event, sessions[session])
    assert {each.property for each in broken} <= {Property.REFINES}
    return [each.what for each in broken]


def active(session: int, run: str) -> tuple[tuple[int, Event], ...]:
    return (session, Accept(run)), (session, Enter(run, ACTIVE))


A, B, C = active(0, "a"), active(1, "b"), active(2, "c")


@pytest.mark.requirement("R-PLC-1", "R-PLC-2", "R-PLC-3")
@pytest.mark.parametrize(
    ("events", "said"),
    [
        ((*A, *B, (0, Called("a"))), None),
        ((*A, *B, (0, Called("a")), (0, Ended("a")), (1, Called("b"))), None),
        ((*A, *B, (0, Called("a")), (1, Called("b"))), "no place is free"),
        ((*A, *B, (1, Called("b"))), "ahead of the turn of session 1"),
        ((*A, *B, *C, (0, Called("a")), (0, Ended("a")), (2, Called("c"))), "ahead of the turn of session 2"),
        ((*A, (0, Cancel()), (0, Called("a"))), "waits for no place"),
        ((*A, (0, Cancel(frozenset({"a"}))), (0, Called("a"))), "waits for no place"),
        ((*A, (0, Accept("x")), (0, Cancel(frozenset({"x"}))), (0, Called("a"))), None),
        ((*A, (0, Called("a")), (0, Ended("a")), (0, Called("a"))), "waits for no place"),
        (((0, Accept("a")), (0, Called("a"))), "waits for no place"),
    ],
)
def test_a_call_is_judged(events: tuple[tuple[int, Event], ...], said: str | None) -> None:
    broken = judged(*events)
    assert len(broken) == (said is not None)
    assert said is None or said in broken[0]


# Would the checks tell?


@pytest.mark.parametrize("mechanism", BROKEN, ids=lambda mechanism: mechanism.__name__)
@pytest.mark.parametrize("books", [True, False], ids=["by its books", "by what it does"])
def test_a_broken_mechanism_is_reported(
    mechanism: type[Mechanism], books: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is also found without comparing how many places the mechanism believes to be free."""
    if not books:
        monkeypatch.setattr(steps, "_unrefined_places", lambda _shared: ())
    result = Explorer(MemoryModel(ONE_PLACE, mechanism)).run()
    assert BROKEN[mechanism] in result.counterexamples
    example = result.counterexamples[BROKEN[mechanism]]
    assert 1 <= len(example.steps) <= 8


def test_a_counterexample_names_the_turn_that_is_called() -> None:
    example = Explorer(MemoryModel(ONE_PLACE, KeepsThePlaceWhileSettling)).run().counterexample
    assert example is not None
    assert example.told() == [
        "accept a",
        "enter a: active",
        "the runner is called for a",
        "the turn of a ends",
    ]
    assert example.what == "free places: the mechanism has 0, but should have 1"


def test_without_a_limit_a_broken_use_of_places_is_no_news() -> None:
    assert Explorer(MemoryModel(Bounds(2, 1), KeepsThePlaceWhileSettling)).run().verdict == "holds"


@pytest.mark.requirement("ISOLATION")
def test_a_session_may_feel_another_only_by_the_moment_of_a_call() -> None:
    class ClearsOnlyIfAPlaceIsFree(Mechanism):
        """What a caller can do in one session depends on the calls of another."""

        def actions(self, s: ModelSession, complete: list[str]) -> Iterator[Action]:
            full = self.places is not None and self.places.free == 0
            for action in super().actions(s, complete):
                if action.name != "clear" or not full:
                    yield action

    result = Explorer(MemoryModel(ONE_PLACE, ClearsOnlyIfAPlaceIsFree), claimed=(Property.ISOLATION,)).run()
    example = result.counterexamples[Property.ISOLATION]
    assert "the runner is called" in example.told()[-1]
