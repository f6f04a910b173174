"""The core alone: no loop, no task, no store."""

from __future__ import annotations

import subprocess
import sys
from itertools import count, permutations, product
from typing import Any

import pytest

from turngate import AlreadyEntered, NotRunning, QueueFull, SessionBusy, State, UndeclaredMove
from turngate._core import MOVES, Decided, Edit, Phase, Queue, RunRecord, SessionCore, TurnRecord


class Session:
    """A core with short ways to drive it."""

    def __init__(self) -> None:
        self.core = SessionCore("s", "msg-")
        self._seq = count(1)

    def accept(self, run_id: str, when_busy: Any = "fold", queue_limit: int = 10_000) -> RunRecord:
        run = RunRecord("s", run_id, next(self._seq), f"prompt of {run_id}", when_busy)
        self.core.accept(run, queue_limit)
        return run

    def enter(self, run_id: str, when_busy: Any = "fold") -> RunRecord:
        """Accept and enter; what comes behind a busy session is changed to do so in between."""
        run = self.accept(run_id)
        run.when_busy = when_busy
        self.core.enter(run)
        return run

    @property
    def turn(self) -> TurnRecord:
        assert self.core.turn is not None
        return self.core.turn

    def end(self, turn: TurnRecord, text: str = "text", error: str | None = None) -> Any:
        self.core.end(turn, text, error, None)
        decided = self.core.written(turn, self.core.outcome(turn), None)
        return None if decided is None else decided[0]

    def cancel(self) -> Any:
        covered, decided = self.core.cancel()
        return covered, decided[0]

    def cancel_run(self, run: RunRecord) -> Any:
        covered, decided = self.core.cancel_run(run)
        return covered, decided[0]

    def fold(self, turn: TurnRecord) -> list[RunRecord]:
        return self.core.fold(turn)[0]


def effects_of(decided: Decided | None) -> Any:
    assert decided is not None
    return decided[0]


@pytest.fixture
def s() -> Session:
    return Session()


def test_the_core_needs_no_asyncio() -> None:
    program = "import sys, turngate._core; sys.exit('asyncio' in sys.modules)"
    package = (
        "import types, sys; sys.modules['turngate'] = m = types.ModuleType('turngate'); m.__path__ = [{!r}]"
    )
    path = sys.modules["turngate"].__path__[0]
    subprocess.run([sys.executable, "-c", f"{package.format(path)}\n{program}"], check=True)


def test_entering_an_idle_session_starts_a_turn(s: Session) -> None:
    run = s.accept("a")
    assert s.core.enter(run)[0] == [("start", s.turn)]
    assert run.state is State.ACTIVE
    assert s.turn.runs == [run]


def test_entering_a_busy_session_queues(s: Session) -> None:
    s.enter("a")
    run = s.accept("b")
    assert s.core.enter(run)[0] == []
    assert run.state is State.QUEUED


def test_entering_twice_raises_and_changes_nothing(s: Session) -> None:
    run = s.enter("a")
    before = repr(s.core)
    with pytest.raises(AlreadyEntered, match="run a is active"):
        s.core.enter(run)
    assert repr(s.core) == before


@pytest.mark.parametrize("order", [*map("".join, permutations("bcd"))])
def test_the_queue_is_in_sequence_order_whatever_the_order_of_entry(s: Session, order: str) -> None:
    s.enter("a")
    runs = {name: s.accept(name) for name in "bcd"}
    for name in order:
        s.core.enter(runs[name])
    assert [run.run_id for run in s.core.queue.in_order()] == ["b", "c", "d"]


def test_a_turn_hands_off_in_the_step_in_which_it_completes(s: Session) -> None:
    first, second, third = s.enter("a"), s.enter("b"), s.enter("c")
    turn = s.turn
    effects = s.end(turn)
    assert effects == [("publish", first), ("start", s.turn)]
    assert s.turn is not turn
    assert (s.turn.lead, second.state, third.state) == (second, State.ACTIVE, State.QUEUED)
    assert s.end(s.turn) == [("publish", second), ("start", s.turn)]
    assert s.end(s.turn) == [("publish", third)]
    assert s.core.is_quiet()


def test_a_failed_and_a_cancelled_turn_hand_off_too(s: Session) -> None:
    s.enter("a")
    s.enter("b")
    third = s.enter("c")
    s.end(s.turn, "", "boom")
    s.core.cancel_run(s.turn.lead)
    assert s.end(s.turn, "")[-1] == ("start", s.turn)
    assert s.turn.lead is third


def test_cancel_covers_everything_in_sequence_order(s: Session) -> None:
    a, b, c = s.accept("a"), s.enter("b"), s.enter("c")
    s.core.begin(s.turn)
    covered, effects = s.cancel()
    assert covered == [a, b, c]
    assert effects == [("interrupt", s.turn), ("publish", c)]
    assert c.complete is not None
    assert c.complete.cancelled
    assert s.turn.covered
    assert s.core.mark == c.seq


def test_the_mark_covers_those_before_the_cancel_and_none_after(s: Session) -> None:
    a, b = s.accept("a"), s.accept("b")
    s.core.cancel()
    c = s.accept("c")
    assert s.core.mark == b.seq
    s.core.enter(c)
    assert c.state is State.ACTIVE
    s.core.enter(b)
    assert (b.state, s.core.mark) == (State.CANCEL_ON_ENTRY, b.seq)
    s.core.enter(a)
    assert (a.state, s.core.mark) == (State.CANCEL_ON_ENTRY, 0)


def test_the_mark_never_goes_down_while_it_covers_something(s: Session) -> None:
    a, _, b = s.accept("a"), s.enter("turn"), s.enter("b")
    s.core.cancel()
    assert s.core.mark == b.seq
    s.core.cancel()
    assert s.core.mark == b.seq
    s.core.release(a)
    assert s.core.mark == 0


def test_a_later_cancel_extends_the_mark(s: Session) -> None:
    a = s.accept("a")
    s.core.cancel()
    b = s.accept("b")
    s.core.cancel()
    assert s.core.mark == b.seq
    s.core.enter(b)
    assert s.core.mark == b.seq
    s.core.enter(a)
    assert s.core.mark == 0


def test_a_cancel_with_nothing_accepted_raises_no_mark(s: Session) -> None:
    assert s.cancel() == ([], [])
    s.enter("a")
    s.core.cancel()
    assert s.core.mark == 0


def test_a_cancel_on_entry_is_a_covered_turn_that_is_not_the_sessions_turn(s: Session) -> None:
    a, b = s.accept("a"), s.accept("b")
    s.core.cancel_run(b)
    s.core.enter(a)
    ((do, turn),) = s.core.enter(b)[0]
    assert do == "start"
    assert isinstance(turn, TurnRecord)
    assert turn is not s.turn
    assert not s.core.begin(turn)
    assert s.end(turn, "") == [("publish", b)]
    assert b.complete is not None
    assert b.complete.cancelled
    assert s.turn.lead is a
    assert not s.core.is_quiet()


def test_a_cancel_before_the_first_step_keeps_the_runner_from_being_called(s: Session) -> None:
    s.enter("a")
    assert s.cancel() == ([s.turn.lead], [("interrupt", s.turn)])
    assert not s.core.begin(s.turn)
    assert s.turn.phase is Phase.STARTING


def test_a_running_turn_is_interrupted_by_every_cancel(s: Session) -> None:
    run = s.enter("a")
    assert s.core.begin(s.turn)
    for _ in range(2):
        assert s.cancel() == ([run], [("interrupt", s.turn)])
        assert s.cancel_run(run) == ([run], [("interrupt", s.turn)])


def test_a_cancel_while_settling_interrupts_nothing_and_asks_for_another_write(s: Session) -> None:
    run = s.enter("a")
    s.core.begin(s.turn)
    s.core.end(s.turn, "text", None, None)
    written = s.core.outcome(s.turn)
    assert s.cancel() == ([run], [])
    assert s.core.written(s.turn, written, None) is None
    again = s.core.outcome(s.turn)
    assert [message.id for message in again] == [message.id for message in written]
    assert (written[-1].finish_reason, again[-1].finish_reason) == ("end_turn", "canceled")
    assert effects_of(s.core.written(s.turn, again, None)) == [("publish", run)]
    assert run.complete is not None
    assert (run.complete.text, run.complete.cancelled) == ("text", True)


def test_a_cancel_while_a_failed_turn_settles_asks_for_another_write(s: Session) -> None:
    run = s.enter("a")
    s.core.end(s.turn, "", "boom", None)
    written = s.core.outcome(s.turn)
    assert written[-1].finish_reason == "error"
    s.core.cancel()
    assert s.core.written(s.turn, written, None) is None
    assert effects_of(s.core.written(s.turn, s.core.outcome(s.turn), None)) == [("publish", run)]
    assert run.complete is not None
    assert (run.complete.error, run.complete.cancelled) == (None, True)


def test_a_store_failure_is_the_error_and_ends_the_writing(s: Session) -> None:
    run = s.enter("a")
    s.core.end(s.turn, "text", "boom", None)
    written = s.core.outcome(s.turn)
    s.core.cancel()
    assert effects_of(s.core.written(s.turn, written, "disk full")) == [("publish", run)]
    assert run.complete is not None
    assert run.complete[3:] == ("text", "disk full", True, None, None, "cancelled")


def test_fold_takes_the_foldable_head_of_the_queue(s: Session) -> None:
    lead, b, c = s.enter("a"), s.enter("b"), s.enter("c")
    d, e = s.enter("d", when_busy="queue"), s.enter("e")
    s.core.begin(s.turn)
    assert s.fold(s.turn) == [b, c]
    assert s.fold(s.turn) == []
    assert s.turn.runs == [lead, b, c]
    assert [*s.core.queue.in_order()] == [d, e]
    turn = s.turn
    assert s.end(turn) == [("publish", lead), ("publish", b), ("publish", c), ("start", s.turn)]
    assert b.complete is not None
    assert (b.complete.folded_into, b.complete.text) == ("a", "text")
    assert [run.complete and run.complete.message_id for run in (lead, b, c)] == ["msg-1-reply"] * 3
    assert s.turn.lead is d


@pytest.mark.parametrize("when_busy", ["queue", "interrupt", "reject"])
def test_only_fold_is_foldable(s: Session, when_busy: str) -> None:
    s.enter("a")
    s.enter("b", when_busy=when_busy)
    assert s.fold(s.turn) == []


def test_a_covered_turn_folds_nothing(s: Session) -> None:
    s.enter("a")
    s.core.begin(s.turn)
    s.core.cancel()
    after = s.enter("b")
    assert s.fold(s.turn) == []
    assert after.state is State.QUEUED


def test_messages_of_a_turn(s: Session) -> None:
    s.enter("a")
    s.enter("b")
    s.core.fold(s.turn)
    s.core.end(s.turn, "text", None, None)
    assert [tuple(message) for message in s.core.outcome(s.turn)] == [
        ("msg-1", "s", "a", "user", "prompt of a", None, None),
        ("msg-2", "s", "b", "user", "prompt of b", None, None),
        ("msg-1-reply", "s", "a", "assistant", "text", "end_turn", None),
    ]


def test_clear_drops_the_queue_and_nothing_else(s: Session) -> None:
    a, b, c = s.accept("a"), s.enter("b"), s.enter("c")
    dropped, decided = s.core.clear()
    assert (dropped, decided[0]) == ([c], [("publish", c)])
    assert (a.state, b.state) == (State.ACCEPTED, State.ACTIVE)
    assert c.complete is not None
    assert (c.complete.error, c.complete.cancelled) == ("cleared from the queue", False)


def test_release(s: Session) -> None:
    run = s.accept("a")
    assert s.core.release(run)[0] == [("publish", run)]
    assert s.core.release(run)[0] == []
    assert s.core.is_quiet()


def test_cancel_run_of_a_complete_run_covers_nothing(s: Session) -> None:
    run = s.accept("a")
    s.core.release(run)
    assert s.cancel_run(run) == ([], [])
    assert not run.covered


@pytest.mark.parametrize("trigger", MOVES)
def test_a_move_that_is_not_declared_raises_and_changes_nothing(s: Session, trigger: str) -> None:
    run = s.accept("a")
    was, goals = MOVES[trigger]
    for state, to in product(State, State):
        run.state = state
        if state is was and to in goals:
            s.core._move(run, trigger, to)
            assert run.state is to
        else:
            with pytest.raises(UndeclaredMove, match=f"{trigger} of run a from {state} to {to}"):
                s.core._move(run, trigger, to)
            assert run.state is state


def test_a_turn_that_has_completed_cannot_complete_again(s: Session) -> None:
    run = s.enter("a")
    successor = s.enter("b")
    turn = s.turn
    s.end(turn)
    complete, before = run.complete, repr(s.core)
    with pytest.raises(UndeclaredMove, match="run a from complete to complete"):
        s.end(turn)
    assert (run.complete, repr(s.core)) == (complete, before)
    assert s.turn.lead is successor


def test_quiet_is_nothing_in_flight(s: Session) -> None:
    assert s.core.is_quiet()
    run = s.accept("a")
    assert not s.core.is_quiet()
    s.core.cancel()
    ((_, turn),) = s.core.enter(run)[0]
    assert not s.core.is_quiet()
    assert isinstance(turn, TurnRecord)
    s.end(turn)
    assert s.core.is_quiet()


def test_cores_have_no_room_for_anything_else(s: Session) -> None:
    core: Any = s.core
    with pytest.raises(AttributeError, match="anything_else"):
        core.anything_else = 1


@pytest.mark.parametrize("when_busy", ["fold", "queue"])
def test_room_is_what_accepted_and_queued_runs_leave_of_the_limit(s: Session, when_busy: Any) -> None:
    for name in "abc":
        s.enter(name)
    s.accept("d")
    before = repr(s.core)
    for limit in (1, 2, 3):
        with pytest.raises(QueueFull, match="'s' has 3 runs waiting"):
            s.accept("e", when_busy, limit)
    assert repr(s.core) == before
    s.accept("e", when_busy, 4)


@pytest.mark.parametrize("entered", [("b",), ("b", "c"), ("b", "c", "d"), ()])
def test_an_interrupt_leaves_the_mark_that_a_cancel_leaves(entered: tuple[str, ...]) -> None:
    interrupted, cancelled = Session(), Session()
    for s in (interrupted, cancelled):
        s.accept("a")
        for run_id in entered:
            s.enter(run_id)
    interrupted.accept("last", "interrupt")
    cancelled.core.cancel()
    assert interrupted.core.mark == cancelled.core.mark == 1 + len(entered)


def test_an_interrupt_needs_no_room_for_what_it_drops(s: Session) -> None:
    for name in "abc":
        s.enter(name)
    s.accept("d", "interrupt", 1)
    before = repr(s.core)
    with pytest.raises(QueueFull, match="'s' has 1 run waiting"):
        s.accept("e", "interrupt", 1)
    assert repr(s.core) == before
    s.accept("e", "interrupt", 2)


def test_room_is_counted_not_recognised(s: Session) -> None:
    for number in range(1_000):
        s.accept(f"run {number}")
    with pytest.raises(QueueFull, match="1000 runs waiting"):
        s.accept("one more", "fold", int("1000"))


def test_when_busy_is_what_it_says_not_which_string_it_is(s: Session) -> None:
    words: list[Any] = ["".join(word) for word in ("fold", "interrupt", "reject")]
    fold, interrupt, reject = words
    s.enter("a")
    s.enter("b", when_busy=fold)
    with pytest.raises(SessionBusy, match="'s'"):
        s.accept("c", reject, 100)
    assert [run.run_id for run in s.fold(s.turn)] == ["b"]
    s.accept("d", interrupt, 1)
    assert s.turn.covered


def test_repr_shows_what_a_person_debugging_wants_to_see(s: Session) -> None:
    assert repr(s.core) == "<session 's': no turn, 0 queued, 0 accepted, 0 settling, mark 0>"
    for name in "ab":
        s.enter(name)
    s.core.begin(s.turn)
    assert repr(s.turn) == "<turn of a, running>"
    s.core.fold(s.turn)
    assert repr(s.turn) == "<turn of a and 1 folded, running>"
    s.enter("c")
    s.core.fold(s.turn)
    s.accept("d")
    s.core.cancel()
    s.enter("e")
    assert repr(s.core) == (
        "<session 's': <turn of a and 2 folded, running, covered>, 1 queued, 1 accepted, 0 settling, mark 4>"
    )


@pytest.mark.parametrize("covered", [False, True])
def test_a_turn_whose_process_died_is_lost_unless_a_cancel_covers_it(s: Session, covered: bool) -> None:
    run = s.enter("a")
    turn = s.turn
    turn.is_lost = True
    if covered:
        s.core.cancel()
    s.end(turn, "so far", "the process died")
    assert run.complete is not None
    assert run.complete.outcome == ("cancelled" if covered else "lost")
    assert (run.complete.text, run.complete.cancelled) == ("so far", covered)


# The rest.


def test_there_are_nine_moves() -> None:
    assert {*MOVES} == {"enter", "release", "handoff", "fold", "drop", "settle", "finish"}
    assert sum(len(goals) for _, goals in MOVES.values()) == 9


def test_accepted_is_never_come_back_to_and_complete_is_terminal() -> None:
    assert State.ACCEPTED not in {to for _, goals in MOVES.values() for to in goals}
    assert State.COMPLETE not in {was for was, _ in MOVES.values()}
    assert {was for was, goals in MOVES.values() if State.COMPLETE in goals} == {*State} - {State.COMPLETE}


def test_phases() -> None:
    assert [phase.value for phase in Phase] == ["waiting", "starting", "running", "settling"]


def waiting(seq: int, *, held: bool = False, when_busy: Any = "fold") -> RunRecord:
    run = RunRecord("s", f"r{seq}", seq, "p", when_busy, State.QUEUED)
    run.held = held
    return run


def test_a_queue_counts_its_runs_held_ones_and_those_that_are_not_loaded() -> None:
    queue = Queue(beyond=3)
    for seq, held in enumerate([False, True, False, True, True]):
        queue.add(waiting(seq, held=held))
    assert len(queue) == 2 + 3 + 3
    assert [run.seq for run in queue.free_in_order()] == [0, 2]
    assert [run.seq for run in queue.in_order()] == [0, 1, 2, 3, 4]
    assert len(Queue(beyond=1)) == 1


@pytest.mark.parametrize("size", [5, 40])
def test_ranks_of_runs_that_were_taken_out_of_the_middle_are_swept_once_they_are_most(size: int) -> None:
    queue = Queue()
    runs = [waiting(seq) for seq in range(size)]
    for run in runs:
        queue.add(run)
    for left in range(size - 1, 0, -1):
        before = len(queue._heap)
        queue.take(runs[left])
        # Not with each of them: that would cost as much as the whole queue every time.
        assert len(queue._heap) == (left if before > 2 * left else before)
    queue.refill(runs[:2])
    assert queue._heap == [0, 1]


def test_a_record_begins_empty_and_shows_what_it_is() -> None:
    run = RunRecord("s", "r", 4, "p")
    assert (run.covered, run.held, run.into, run.complete, run.rank) == (False, False, None, None, 4)
    assert "r" in repr(run)
    assert "accepted" in repr(run)
    turn = TurnRecord(run)
    assert (turn.text, turn.error, turn.kept, turn.is_lost, turn.since) == ("", None, None, False, None)
    core = SessionCore("s", "msg-")
    assert (core.covered_accepted, core.mark) == (0, 0)


def test_what_a_fold_would_take_ends_at_the_first_run_of_another_kind_and_with_a_cancel() -> None:
    session = Session()
    session.enter("lead")
    session.core.begin(session.turn)
    folds = [session.enter("a"), session.enter("b")]
    session.enter("own turn", "queue")
    session.enter("behind")
    assert session.core.foldable(session.turn) == folds
    session.turn.covered = True
    assert session.core.foldable(session.turn) == []


def test_a_cancel_of_an_accepted_run_covers_no_turn() -> None:
    session = Session()
    session.enter("lead")
    run = session.accept("r")
    assert session.cancel_run(run) == ([run], [])
    assert not session.turn.covered


def test_a_turn_that_waits_for_a_place_is_started_by_a_cancel() -> None:
    session = Session()
    run = session.enter("waits")
    session.turn.phase = Phase.WAITING
    covered, effects = session.cancel_run(run)
    assert covered == [run]
    assert effects == [("start", session.turn)]
    assert session.turn.phase is Phase.STARTING


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.STARTING, Phase.RUNNING, Phase.SETTLING])
def test_a_cancel_of_what_waits_leaves_a_turn_alone_once_its_runner_was_called(phase: Phase) -> None:
    session = Session()
    run = session.enter("r")
    session.turn.phase = phase
    covered, _ = session.core.cancel_run(run, waiting_only=True)
    is_early = phase in (Phase.WAITING, Phase.STARTING)
    assert covered == ([run] if is_early else [])
    assert session.turn.covered == is_early


def lines(decided: Decided) -> list[dict[str, Any]]:
    return [entry.line for entry in decided[1]]


def test_what_is_done_to_the_line_is_in_the_journal() -> None:
    session = Session()
    session.enter("lead")
    session.core.begin(session.turn)
    first, second = session.enter("a"), session.enter("b")
    *_, held = session.core.stop()
    assert [line["event"] for line in lines(held)] == ["cancel", "hold"]
    edited = session.core.edit(first, Edit("other", None, "queue"))
    assert [line.get("when_busy") for line in lines(edited)] == ["queue"]
    assert [line.get("when_busy", 0) for line in lines(session.core.edit(first, Edit("x", None)))] == [0]
    assert lines(session.core.move(first, "last"))[0]["before"] is None
    assert lines(session.core.move(first, "first"))[0]["before"] == "b"
    second.into = "lead"
    _, sent = session.core.send_now(second)
    resumes = [line for line in lines(sent) if line["event"] == "resume"]
    assert [line.get("unbinds") for line in resumes] == [True]
    _, again = session.core.send_now(second)
    assert ["unbinds" in line for line in lines(again) if line["event"] == "resume"] == [False]


def test_runs_that_could_only_have_joined_a_turn_are_cleared_with_its_end() -> None:
    session = Session()
    session.enter("lead")
    session.core.begin(session.turn)
    turn = session.turn
    bound = RunRecord("s", "bound", 50, "p")
    early = RunRecord("s", "early", 51, "p")
    for run in (bound, early):
        session.core.accept(run, 99, into="lead")
    session.core.enter(bound)
    session.core.end(turn, "text", None, None)
    decided = session.core.written(turn, session.core.outcome(turn), None)
    assert decided is not None
    clears = [line for line in lines(decided) if line["event"] == "clear"]
    assert [line["runs"] for line in clears] == [["bound"]]
    assert [run.complete and run.complete.outcome for run in (bound, early)] == ["cleared", "released"]


@pytest.mark.parametrize(
    ("phase", "covered", "why"),
    [(Phase.WAITING, False, "waits"), (Phase.SETTLING, False, "ended"), (Phase.RUNNING, True, "cancelled")],
)
def test_what_cannot_join_a_turn_learns_why(phase: Phase, covered: bool, why: str) -> None:
    session = Session()
    session.enter("lead")
    session.turn.phase, session.turn.covered = phase, covered
    with pytest.raises(NotRunning, match=why):
        session.core.accept(RunRecord("s", "late", 9, "p"), 99, into="lead")


@pytest.mark.parametrize("error", [None, "why"])
def test_a_turn_fails_exactly_if_there_is_an_error(error: str | None) -> None:
    session = Session()
    run = session.enter("r")
    session.core.begin(session.turn)
    session.end(session.turn, error=error)
    assert run.complete is not None
    assert run.complete.outcome == ("finished" if error is None else "failed")


def test_all_that_waits_counts_for_the_limit() -> None:
    session = Session()
    session.enter("lead")
    for run_id in ("a", "b", "c"):
        session.enter(run_id)
    session.accept("d")
    with pytest.raises(QueueFull, match="4 runs"):
        session.accept("e", queue_limit=4)
    session.accept("e", queue_limit=5)


@pytest.mark.parametrize("outcome", ["cleared", "failed", "finished", "lost", "released"])
def test_only_a_cancelled_run_is_cancelled(outcome: Any) -> None:
    session = Session()
    session.enter("lead")
    run = session.enter("r")
    session.core._complete(run, "drop", outcome)
    assert run.complete is not None
    assert not run.complete.cancelled
