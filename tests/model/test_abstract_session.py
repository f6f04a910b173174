"""The abstract session: what it says of a history, event by event."""

from __future__ import annotations

import pytest

from turngate_model import AbstractSession, DeclaredState, Property
from turngate_model.history import Accept, Cancel, Clear, Complete, Ended, Enter, Event, Fold, Handoff, Wrote


def broken_by(*events: Event) -> list[Property]:
    """Return what the last event breaks; those before it must break nothing."""
    session = AbstractSession()
    for event in events[:-1]:
        assert session.observe(event) == [], event
    return [violation.property for violation in session.observe(events[-1])]


ACTIVE, QUEUED, ON_ENTRY = DeclaredState.ACTIVE, DeclaredState.QUEUED, DeclaredState.CANCEL_ON_ENTRY
A_ACTIVE = (Accept("a"), Enter("a", ACTIVE))
B_QUEUED = (*A_ACTIVE, Accept("b"), Enter("b", QUEUED))
A_OVER = (Ended("a"), Wrote("a", "end_turn"))

HISTORIES = {
    "a cancel on entry that no cancel asked for": (
        (Accept("a"), Enter("a", ON_ENTRY)),
        Property.NEVER_POISONED,
    ),
    "a cancel before the accept": ((Cancel(), Accept("a"), Enter("a", ON_ENTRY)), Property.NEVER_POISONED),
    "a RunComplete cancelled by nobody": (
        (*A_ACTIVE, *A_OVER, Complete("a", cancelled=True)),
        Property.NEVER_POISONED,
    ),
    "a covered run becomes active": ((Accept("a"), Cancel(), Enter("a", ACTIVE)), Property.FULL_COVERAGE),
    "a covered run is queued": (
        (*A_ACTIVE, Accept("b"), Cancel(), Enter("b", QUEUED)),
        Property.FULL_COVERAGE,
    ),
    "a covered run is folded": ((*B_QUEUED, Cancel(), Fold("b", "a")), Property.FULL_COVERAGE),
    "a covered turn says it finished": (
        (*A_ACTIVE, Cancel(), *A_OVER, Complete("a", cancelled=False)),
        Property.FULL_COVERAGE,
    ),
    "a covered run is handed off": (
        (*B_QUEUED, *A_OVER, Complete("a", cancelled=False), Cancel(), Handoff("b")),
        Property.FULL_COVERAGE,
    ),
    "two RunCompletes": (
        (*A_ACTIVE, *A_OVER, Complete("a", cancelled=False), Complete("a", cancelled=False)),
        Property.EXACTLY_ONE_COMPLETE,
    ),
    "two turns": ((*A_ACTIVE, Accept("b"), Enter("b", ACTIVE)), Property.ONE_TURN),
    "a newcomer overtakes the queue": (
        (*B_QUEUED, Accept("c"), *A_OVER, Complete("a", cancelled=False), Enter("c", ACTIVE)),
        Property.FIFO,
    ),
    "the second of the queue is handed off": (
        (*B_QUEUED, Accept("c"), Enter("c", QUEUED), *A_OVER, Complete("a", cancelled=False), Handoff("c")),
        Property.FIFO,
    ),
    "the second of the queue is folded": (
        (*B_QUEUED, Accept("c"), Enter("c", QUEUED), Fold("c", "a")),
        Property.FIFO,
    ),
    "a handoff before the RunComplete": ((*B_QUEUED, Ended("a"), Handoff("b")), Property.LAST_WORD),
    "a RunComplete before the messages": (
        (*A_ACTIVE, Ended("a"), Complete("a", cancelled=False)),
        Property.LAST_WORD,
    ),
    "a message after the RunComplete": (
        (*A_ACTIVE, *A_OVER, Complete("a", cancelled=False), Wrote("a", "canceled")),
        Property.LAST_WORD,
    ),
    "a cancelled turn that is on record as finished": (
        (*A_ACTIVE, Cancel(), *A_OVER, Complete("a", cancelled=True)),
        Property.ON_RECORD,
    ),
    "a queued run leaves a message": ((*B_QUEUED, Wrote("b", "canceled")), Property.ON_RECORD),
    "a complete run enters again": (
        (Accept("a"), Complete("a", cancelled=False, error="released"), Enter("a", ACTIVE)),
        Property.TERMINAL_IS_FINAL,
    ),
    "a run is dropped for no reason": ((*B_QUEUED, Complete("b", cancelled=False)), Property.DECLARED_MOVE),
    "a run that wants its own turn is folded": (
        (*A_ACTIVE, Accept("b", foldable=False), Enter("b", QUEUED), Fold("b", "a")),
        Property.DECLARED_MOVE,
    ),
    "a run is folded into a dying turn": (
        (*A_ACTIVE, Cancel(), Accept("b"), Enter("b", QUEUED), Fold("b", "a")),
        Property.DECLARED_MOVE,
    ),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_what_a_history_breaks(name: str) -> None:
    events, broken = HISTORIES[name]
    assert broken in broken_by(*events)


def test_a_good_history_breaks_nothing() -> None:
    session = AbstractSession()
    history: list[Event] = [
        *B_QUEUED,
        Fold("b", "a"),
        *A_OVER,
        Wrote("b", "end_turn"),
        Complete("a", cancelled=False),
        Complete("b", cancelled=False),
        Accept("c"),
        Cancel(),
        Enter("c", ON_ENTRY),
        Wrote("c", "unwritten"),
        Complete("c", cancelled=True, error="store failed"),
    ]
    for event in history:
        assert session.observe(event) == [], event
    assert session.quiet
    assert session.owed() == []


def test_a_cancel_of_one_run_covers_that_run_alone() -> None:
    session = AbstractSession()
    for event in (Accept("a"), Accept("b"), Cancel(frozenset("a"))):
        session.observe(event)
    assert session.covered == {"a"}


def test_a_cancel_covers_what_is_in_flight_and_nothing_complete() -> None:
    session = AbstractSession()
    for event in (*B_QUEUED, Accept("c"), Complete("c", False, "released"), Cancel(), Accept("d")):
        session.observe(event)
    assert session.covered == {"a", "b"}


def test_what_is_owed() -> None:
    session = AbstractSession()
    for event in (*B_QUEUED, *A_OVER, Complete("a", cancelled=False)):
        session.observe(event)
    assert [violation.property for violation in session.owed()] == [Property.NO_STRAND]
    session.observe(Clear())
    assert [violation.property for violation in session.owed()] == [Property.EXACTLY_ONE_COMPLETE]
    session.observe(Complete("b", False, "cleared"))
    session.observe(Accept("c"))
    assert session.owed() == [], "whoever holds an accepted run has to enter or release it"


def test_a_copy_goes_its_own_way() -> None:
    session = AbstractSession()
    for event in B_QUEUED:
        session.observe(event)
    twin = session.copy()
    assert twin.key() == session.key()
    twin.observe(Cancel())
    assert twin.key() != session.key()


def test_only_the_end_of_its_own_call_ends_a_turn() -> None:
    session = AbstractSession()
    for event in (*A_ACTIVE, Ended("somebody else")):
        session.observe(event)
    assert session.running
    session.observe(Ended("a"))
    assert not session.running


def test_what_a_cancel_covers_is_in_the_order_of_acceptance() -> None:
    session = AbstractSession()
    events = (Accept("a"), Accept("b", True), Accept("c"), Enter("c", ACTIVE), Enter("b", QUEUED))
    for event in (*events, Enter("a", QUEUED)):
        session.observe(event)
    assert session.covered_by_cancel() == ["a", "b", "c"]
    assert session.covered_by_cancel("a") == ["a"]
    assert session.covered_by_cancel("c") == ["c"]
    assert session.covered_by_cancel("nobody") == []
    session.observe(Complete("a", cancelled=False, error="cleared"))
    session.observe(Fold("b", "c"))
    assert session.covered_by_cancel("c") == session.covered_by_cancel("b") == ["b", "c"]
    assert session.covered_by_cancel("a") == []
