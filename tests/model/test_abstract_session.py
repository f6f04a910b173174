"""The abstract session: what it says of a history, event by event."""

from __future__ import annotations

import pytest

from turngate_model import AbstractSession, DeclaredState, Property
from turngate_model.history import (
    Accept,
    Cancel,
    Clear,
    Complete,
    Edit,
    Ended,
    Enter,
    Event,
    Fold,
    Handoff,
    Hold,
    Move,
    Resume,
    Wrote,
    with_names,
)


def broken_by(*events: Event) -> list[Property]:
    """Return what the last event breaks; those before it must break nothing."""
    session = AbstractSession()
    for event in events[:-1]:
        assert session.observe(event) == [], event
    return [violation.property for violation in session.observe(events[-1])]


ACTIVE, QUEUED, ON_ENTRY = DeclaredState.ACTIVE, DeclaredState.QUEUED, DeclaredState.CANCEL_ON_ENTRY
A_ACTIVE = (Accept("a"), Enter("a", ACTIVE))
B_QUEUED = (*A_ACTIVE, Accept("b"), Enter("b", QUEUED))
C_QUEUED = (*B_QUEUED, Accept("c"), Enter("c", QUEUED))
B_FOR_A = (*A_ACTIVE, Accept("b", into="a"), Enter("b", QUEUED))
C_ACTIVE = (Hold(frozenset("b")), Accept("c"), Enter("c", ACTIVE), Resume(frozenset("b")))
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
    "a held run becomes active": ((Accept("a"), Hold(), Enter("a", ACTIVE)), Property.HELD),
    "a run that was held alone becomes active": (
        (Accept("a"), Accept("b"), Hold(frozenset("b")), Enter("b", ACTIVE)),
        Property.HELD,
    ),
    "a held run is handed off": (
        (*B_QUEUED, Hold(), *A_OVER, Complete("a", cancelled=False), Handoff("b")),
        Property.HELD,
    ),
    "a held run is folded": ((*B_QUEUED, Hold(), Fold("b", "a")), Property.HELD),
    "a run is queued because something else is held": (
        (Accept("a"), Hold(), Enter("a", QUEUED), Accept("b"), Enter("b", QUEUED)),
        Property.DECLARED_MOVE,
    ),
    "what was moved to the front is passed": (
        (*C_QUEUED, Move("c", "b"), *A_OVER, Complete("a", cancelled=False), Handoff("b")),
        Property.FIFO,
    ),
    "what was resumed is passed": (
        (*C_QUEUED, Hold(), Resume(), *A_OVER, Complete("a", cancelled=False), Handoff("c")),
        Property.FIFO,
    ),
    "an active run is moved": ((*B_QUEUED, Move("a")), Property.DECLARED_MOVE),
    "a run is moved before an active one": ((*B_QUEUED, Move("b", "a")), Property.DECLARED_MOVE),
    "an active run is edited": ((*A_ACTIVE, Edit("a")), Property.AS_EDITED),
    "a run is folded that an edit gave its own turn": (
        (*B_QUEUED, Edit("b", foldable=False), Fold("b", "a")),
        Property.DECLARED_MOVE,
    ),
    "a prompt is for a turn that is covered": (
        (*A_ACTIVE, Cancel(), Accept("b", into="a")),
        Property.DECLARED_MOVE,
    ),
    "a prompt is for a turn that has ended": (
        (*A_ACTIVE, Ended("a"), Accept("b", into="a")),
        Property.DECLARED_MOVE,
    ),
    "a prompt is for a run that is queued": ((*B_QUEUED, Accept("c", into="b")), Property.DECLARED_MOVE),
    "a prompt for one turn is handed off": (
        (*B_FOR_A, *A_OVER, Complete("a", cancelled=False), Handoff("b")),
        Property.DECLARED_MOVE,
    ),
    "a prompt for one turn joins another": (
        (*B_FOR_A, *A_OVER, Complete("a", cancelled=False), *C_ACTIVE, Fold("b", "c")),
        Property.DECLARED_MOVE,
    ),
    "a prompt enters whose turn has ended": (
        (*A_ACTIVE, Accept("b", into="a"), *A_OVER, Complete("a", cancelled=False), Enter("b", QUEUED)),
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
    assert session.owed() == [], "the holder of an accepted run has to enter or release it"


GOOD: dict[str, tuple[Event, ...]] = {
    "a held run waits without a turn": (Accept("a"), Hold(), Enter("a", QUEUED)),
    "a later run passes it": (
        Accept("a"),
        Hold(),
        Accept("b"),
        Enter("b", ACTIVE),
        Enter("a", QUEUED),
        *(Ended("b"), Wrote("b", "end_turn"), Complete("b", cancelled=False)),
    ),
    "a resume hands off": (
        *(Accept("a"), Hold(), Enter("a", QUEUED), Resume(), Handoff("a")),
        *(*A_OVER, Complete("a", cancelled=False)),
    ),
    "a stop and a resume": (
        *(*B_QUEUED, Cancel(frozenset("a")), Hold(), Ended("a"), Wrote("a", "canceled")),
        *(Complete("a", cancelled=True), Resume(frozenset("b")), Handoff("b")),
        *(Ended("b"), Wrote("b", "end_turn"), Complete("b", cancelled=False)),
    ),
    "sent now": (
        *(*C_QUEUED, Move("c", "b"), Cancel(frozenset("a")), Resume(frozenset("c"))),
        *(Ended("a"), Wrote("a", "canceled"), Complete("a", cancelled=True), Handoff("c")),
        *(Cancel(), Complete("b", cancelled=True), Ended("c"), Wrote("c", "canceled")),
        Complete("c", cancelled=True),
    ),
    "a move of what has not entered": (
        *(Accept("a"), Accept("b"), Move("a"), Enter("b", ACTIVE), Enter("a", QUEUED), Fold("a", "b")),
        *(Ended("b"), Wrote("b", "end_turn"), Wrote("a", "end_turn")),
        *(Complete("b", cancelled=False), Complete("a", cancelled=False)),
    ),
    "for one turn, and folded": (
        *(*B_FOR_A, Fold("b", "a"), *A_OVER, Wrote("b", "end_turn")),
        *(Complete("a", cancelled=False), Complete("b", cancelled=False)),
    ),
    "for one turn, and cleared with it": (
        *(*B_FOR_A, *A_OVER, Complete("a", cancelled=False)),
        *(Clear(frozenset("b")), Complete("b", cancelled=False, error="cleared from the queue")),
    ),
    "for one turn, and released with it": (
        *(*A_ACTIVE, Accept("b", into="a"), *A_OVER, Complete("a", cancelled=False)),
        Complete("b", cancelled=False, error="released before entry"),
    ),
    "for one turn until it is edited": (
        *(*B_FOR_A, Edit("b", foldable=True), *A_OVER, Complete("a", cancelled=False), Handoff("b")),
        *(Ended("b"), Wrote("b", "end_turn"), Complete("b", cancelled=False)),
    ),
    "for one turn until it is sent now": (
        *(*B_FOR_A, Cancel(frozenset("a")), Resume(frozenset("b"), unbinds=True)),
        *(Ended("a"), Wrote("a", "canceled"), Complete("a", cancelled=True), Handoff("b")),
        *(Ended("b"), Wrote("b", "end_turn"), Complete("b", cancelled=False)),
    ),
}


@pytest.mark.requirement("HELD", "AS_EDITED", "NO_STRAND", "FIFO")
@pytest.mark.parametrize("name", GOOD)
def test_a_good_history_with_holds_and_moves_breaks_nothing(name: str) -> None:
    session = AbstractSession()
    for event in GOOD[name]:
        assert session.observe(event) == [], event
    assert session.owed() == []
    assert session.quiet or session.held


def test_a_run_for_one_turn_is_owed_its_end_when_the_turn_is_over() -> None:
    for entered in ((), (Enter("b", QUEUED),)):
        session = AbstractSession()
        for event in (*A_ACTIVE, Accept("b", into="a"), *entered, *A_OVER, Complete("a", cancelled=False)):
            session.observe(event)
        assert [violation.property for violation in session.owed()] == [Property.EXACTLY_ONE_COMPLETE]


def test_an_event_can_be_renamed() -> None:
    events: tuple[Event, ...] = (
        *(Accept("a"), Accept("b", False, "a"), Enter("a", ACTIVE), Fold("b", "a"), Hold(frozenset("ab"))),
        *(Cancel(), Clear(frozenset("b")), Resume(frozenset("a"), unbinds=True), Move("a"), Move("a", "b")),
        *(Edit("a", False), Complete("b", True, "failed")),
    )
    assert [with_names(event, str.upper) for event in events] == [
        *(Accept("A"), Accept("B", False, "A"), Enter("A", ACTIVE), Fold("B", "A"), Hold(frozenset("AB"))),
        *(Cancel(), Clear(frozenset("B")), Resume(frozenset("A"), unbinds=True), Move("A"), Move("A", "B")),
        *(Edit("A", False), Complete("B", True, "failed")),
    ]


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
