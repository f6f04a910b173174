"""The runs and turns that a process knows, each call by itself: with a stepper that answers as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from dispatching import in_loop
from stepping import SteppingLoop, in_steps
from turngate import RunComplete, TurnEnded, WrongLoop
from turngate._core import ACCEPTED, ACTIVE, COMPLETE, QUEUED, RUNNING, SETTLING, STARTING, WAITING
from turngate._events import Waiters
from turngate._loop import HomeLoop
from turngate.durable import LedgerUnavailable
from turngate.durable._ledger import LedgerGone, NotStorable
from turngate.durable._records import ALL, RunRow
from turngate.durable._step import Fenced
from turngate.durable._turns import REFUSED_BY_LEDGER, KnownRuns, LedgerTurns, OwnedTurn, PendingAccept


class Told:
    """Stands in for the stepper and the feed; answers each step as it is told."""

    def __init__(self, *answers: Any, limit: int | None = None) -> None:
        self.answers = [*answers]
        self.asked: list[Any] = []
        self.sent_in: list[dict[str, Any]] = []
        self.ended: list[str] = []
        self.settings = SimpleNamespace(turns_limit=limit, poll=3.0)
        self.loop = HomeLoop()
        self.tasks = self
        self.idle = Waiters()
        self.name = 1
        self.is_closed = False
        self.spawned: list[asyncio.Task[Any]] = []
        self.meanwhile: Callable[[], object] = lambda: None

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        self.spawned.append(asyncio.get_running_loop().create_task(coroutine))
        return self.spawned[-1]

    async def end_turn(self, run_id: str) -> None:
        self.ended.append(run_id)

    def begin_turn(self, run_id: str, position: int) -> None:
        self.asked.append((run_id, position))

    async def send(self, ask: Any, fn: Any, *, owner: bool) -> Any:
        assert (ask.session_id, ask.head) == ("s", 1)
        return await self.step(ask.session_id, fn, owner=owner)

    async def step(self, session_id: str, fn: Any, *, owner: bool, head: int = 0) -> Any:
        assert (session_id, owner) == ("s", True)
        step = SimpleNamespace(
            begin=lambda fence: ("begin", fence),
            finish=lambda *about: ("finish", *about),
            fold=lambda fence: ("fold", fence, head),
        )
        fn_says = fn(step)
        self.asked.append(fn_says)
        if fn_says is None:  # what finishes returns nothing
            self.asked[-1] = self.finished(fn)
        await asyncio.sleep(0)
        self.meanwhile()
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @staticmethod
    def finished(fn: Any) -> tuple[Any, ...]:
        """Return the result with which a step finishes the turn."""
        found: list[tuple[Any, ...]] = []
        fn(SimpleNamespace(finish=lambda *about: found.append(about)))
        return found[0]


class Turn:
    """Stands in for a turn."""

    def __init__(self, fence: int = 5) -> None:
        self.fence = fence
        self.record = SimpleNamespace(covered=False, phase=STARTING, text="", error=None, kept=None)
        self.run = SimpleNamespace(run_id=f"r{fence}", session_id="s", turn=self)
        self.runs = [self.run]
        self.given_up = False
        self.parts: tuple[str, ...] = ()
        self.kept: str | None = None
        self.execution = self.task = None
        self.checked: list[str] = []

    @property
    def covered(self) -> bool:
        return bool(self.record.covered)

    def check_open(self, what: str) -> None:
        self.checked.append(what)


def turns_on(told: Any, runs: Any = None) -> Any:
    turns: Any = LedgerTurns(None, told, runs, told, None)  # type: ignore[arg-type]  # stand-ins
    turns.interrupted = []
    turns.runner.interrupt = lambda turn: turns.interrupted.append(turn.fence)
    return turns


def own(turns: Any, turn: Turn) -> OwnedTurn:
    owned: Any = OwnedTurn(turn)  # type: ignore[arg-type]  # a stand-in
    turns.owned[turn.fence] = owned
    return owned  # type: ignore[no-any-return]


AWAY = LedgerUnavailable("away")


def begun(
    *answers: Any, limit: int | None = 2, meanwhile: Callable[[Turn, Told], object] = lambda *_: None
) -> tuple[Any, Turn, Told, float, Any]:
    """Begin a turn; return what the caller gets, the turn, what was asked, and how long it took."""
    told, turn = Told(*answers, limit=limit), Turn()
    told.meanwhile = lambda: meanwhile(turn, told)

    async def main(loop: SteppingLoop) -> tuple[Any, float, Any]:
        turns = turns_on(told)
        own(turns, turn)
        try:
            found: Any = await turns.begin(turn)
        except Exception as exc:
            found = exc
        return found, loop.time(), turns

    found, seconds, turns = in_steps(main)
    return found, turn, told, seconds, turns


def test_a_turn_begins_on_record_where_the_number_of_calls_is_limited() -> None:
    found, turn, told, seconds, _ = begun(True)
    assert (found, turn.record.phase, told.asked, seconds) == (True, RUNNING, [("begin", 5)], 0)
    found, turn, told, seconds, _ = begun(limit=None)
    assert (found, turn.record.phase, told.asked) == (True, RUNNING, [])


def test_a_turn_that_cannot_begin_yet_begins_later(caplog: pytest.LogCaptureFixture) -> None:
    found, turn, told, seconds, _ = begun(AWAY, OSError("cut"), True)
    assert (found, turn.record.phase, len(told.asked), seconds) == (True, RUNNING, 3, 6.0)
    assert [each.exc_info and each.exc_info[1] for each in caplog.records][:1] == [AWAY]
    assert len(caplog.records) == 2


def test_a_turn_that_was_cancelled_before_it_began_does_not_call_its_runner() -> None:
    found, turn, told, _, _ = begun(False)
    assert (found, turn.covered, turn.record.phase) == (False, True, STARTING)

    def cover(turn: Turn, _: Told) -> None:
        turn.record.covered = True

    found, turn, told, seconds, _ = begun(AWAY, meanwhile=cover)
    assert (found, turn.record.phase, len(told.asked), seconds) == (False, STARTING, 1, 3.0)
    found, turn, told, seconds, _ = begun(True, meanwhile=cover)  # the cancel came with the answer
    assert (found, turn.covered) == (False, True)


@pytest.mark.parametrize("limit", [None, 2])
def test_a_turn_that_is_covered_already_needs_no_record_of_its_begin(limit: int | None) -> None:
    @in_loop
    async def check() -> None:
        told, turn = Told(limit=limit), Turn()
        turn.record.covered = True
        assert not await turns_on(told).begin(turn)
        assert told.asked == []
        assert turn.record.phase is STARTING

    check()


@pytest.mark.parametrize("why", [Fenced("lost"), LedgerGone("gone")])
def test_a_turn_that_belongs_to_others_before_it_begins_is_given_up(
    why: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    found, turn, _, seconds, turns = begun(why)
    assert (found, turn.given_up, turn.record.phase, seconds) == (False, True, STARTING, 0)
    assert (turns.owned, turn.run.turn) == ({}, None)
    assert not caplog.records


def test_a_turn_that_cannot_begin_before_the_close_is_not_tried_again() -> None:
    def closed(_: Turn, told: Told) -> None:
        told.is_closed = True

    found, _, told, seconds, _ = begun(AWAY, meanwhile=closed)
    assert (found, len(told.asked), seconds) == (AWAY, 1, 0)


def finished(
    *answers: Any, given_up: bool = False, meanwhile: Callable[[Turn], object] = lambda _: None
) -> tuple[Turn, Told, float]:
    """Settle a turn; return it, what was asked, and how long it took."""
    told, turn = Told(*answers), Turn()
    told.meanwhile = lambda: meanwhile(turn)
    turn.given_up = given_up

    async def main(loop: SteppingLoop) -> float:
        turns = turns_on(told)
        own(turns, turn)
        turn.parts, turn.kept = ("te", "xt"), "{}"
        turns.end(turn, None, None)
        assert turn.record.phase is SETTLING
        await turns.settle(turn, wait=True)
        assert told.ended == ["r5"]
        assert turns.owned.keys() == ({5} if answers and answers[-1] is None else set())
        return loop.time()

    return turn, told, in_steps(main)


def test_a_result_is_tried_again_until_it_is_on_record(caplog: pytest.LogCaptureFixture) -> None:
    _, told, seconds = finished(None)
    assert (told.asked, seconds) == ([(5, "text", None, "{}", None)], 0)
    _, told, seconds = finished(AWAY, OSError("cut"), None)
    assert (told.asked, seconds) == ([(5, "text", None, "{}", None)] * 3, 6.0)
    assert len(caplog.records) == 2


def test_a_result_that_the_ledger_refuses_is_replaced_and_then_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = NotStorable("too odd")
    _, told, seconds = finished(refused, refused, refused, refused, None)
    without = (5, "", REFUSED_BY_LEDGER, None)
    assert told.asked == [
        (5, "text", None, "{}", None), (*without, None), *[(*without, REFUSED_BY_LEDGER)] * 3
    ]  # fmt: skip
    assert seconds == 6.0  # only what will never be accepted waits
    assert len(caplog.records) == 4


@pytest.mark.parametrize("why", [Fenced("lost"), LedgerGone("gone")])
def test_the_result_of_a_turn_that_belongs_to_others_is_discarded(
    why: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    turn, told, seconds = finished(why)
    assert (len(told.asked), seconds, turn.run.turn) == (1, 0, None)
    turn, told, seconds = finished(given_up=True)
    assert (told.asked, seconds, turn.run.turn) == ([], 0, None)
    _, told, seconds = finished(AWAY, meanwhile=lambda turn: setattr(turn, "given_up", True))
    assert (len(told.asked), seconds) == (1, 0)
    assert [bool(each.exc_info) for each in caplog.records] == [False, False, True, False]


def test_the_text_of_a_runner_that_returned_none_is_what_it_has_written() -> None:
    turns, turn = turns_on(Told()), Turn()
    turn.parts, turn.kept = ("a", "b"), "1"
    turns.end(turn, None, "why")
    record = turn.record
    assert (record.phase, record.text, record.error, record.kept) == (SETTLING, "ab", "why", "1")
    turns.end(turn, "c", None)
    assert (record.text, record.error) == ("c", None)


@in_loop
async def test_a_settle_is_waited_for_through_every_cancel_of_the_caller() -> None:
    told, turn = Told(None), Turn()
    turns, may_answer = turns_on(told), asyncio.Event()
    answer = told.step

    async def slow(*about: Any, **more: Any) -> Any:
        await may_answer.wait()
        return await answer(*about, **more)

    told.step = slow  # type: ignore[method-assign]  # it takes a while
    settling = asyncio.create_task(turns.settle(turn, wait=True))
    for _ in range(3):
        await asyncio.sleep(0)
        settling.cancel()
    await asyncio.sleep(0)
    assert not settling.done()
    may_answer.set()
    await settling
    assert told.spawned[0].done()


@in_loop
async def test_a_settle_that_is_itself_cancelled_is_not_waited_for() -> None:
    told, turn = Told(None), Turn()
    turns = turns_on(told)
    settling = asyncio.create_task(turns.settle(turn, wait=True))
    await asyncio.sleep(0)
    told.spawned[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await settling


@in_loop
async def test_a_settle_without_a_wait_goes_on_by_itself() -> None:
    told, turn = Told(None), Turn()
    await turns_on(told).settle(turn, wait=False)
    assert not told.spawned[0].done()
    await told.spawned[0]
    assert len(told.asked) == 1


def test_a_turn_is_settled_at_once_only_where_the_loop_goes_on() -> None:
    told = Told(None)
    turns = turns_on(told)

    @in_loop
    async def check() -> None:
        told.loop.check_loop()
        turns.settle_at_once(Turn())
        await told.spawned[0]
        assert len(told.asked) == 1

    check()
    turns.settle_at_once(Turn())
    assert len(told.spawned) == 1


@in_loop
async def test_a_fold_returns_those_that_have_joined() -> None:
    told, turn = Told([SimpleNamespace(run_id="b"), SimpleNamespace(run_id="a")]), Turn()
    told.loop.check_loop()
    turn.runs += [SimpleNamespace(run_id=each, turn=turn) for each in ("a", "before", "b")]
    taken = await turns_on(told).fold(turn)
    assert [run.run_id for run in taken] == ["a", "b"]  # in the order of the turn
    assert (told.asked, turn.checked) == ([("fold", 5, ALL)], ["fold into"])


@in_loop
async def test_a_fold_into_a_turn_that_was_given_up_is_refused() -> None:
    told = Told(Fenced("lost"))
    told.loop.check_loop()
    with pytest.raises(TurnEnded, match="given up"):
        await turns_on(told).fold(Turn())


@in_loop
async def test_what_a_fold_would_take_is_the_head_of_the_line_that_is_not_held() -> None:
    told, turn = Told(), Turn()
    told.loop.check_loop()
    turns = turns_on(told)

    def waiting(rank: int, when_busy: str = "fold", held: bool = False) -> Any:
        return SimpleNamespace(rank=rank, held=held, when_busy=when_busy, record=SimpleNamespace(rank=rank))

    owned = own(turns, turn)
    assert turns.foldable(Turn(6)) == []  # it is not ours
    line = [waiting(9), waiting(2), waiting(3, held=True), waiting(5, "queue"), waiting(1)]
    owned.queue = dict(enumerate(line))
    assert not owned.is_asked
    assert [run.rank for run in turns.foldable(turn)] == [1, 2]
    assert owned.is_asked
    turn.record.covered = True
    assert turns.foldable(turn) == []
    assert turn.checked == ["fold into"] * 2


def test_a_fold_from_elsewhere_is_refused() -> None:
    told = Told([])
    turns, turn = turns_on(told), Turn()

    async def belong() -> None:
        told.loop.check_loop()

    asyncio.run(belong())
    with pytest.raises(WrongLoop):
        turns.foldable(turn)
    with pytest.raises(WrongLoop):
        asyncio.run(turns.fold(turn))
    assert told.asked == turn.checked == []


def test_a_cancel_interrupts_a_runner_once_and_reaches_a_turn_that_has_not_started_yet() -> None:
    turns = turns_on(Told())
    running, starting = Turn(5), Turn(6)
    running.record.phase = RUNNING
    for turn in (running, starting):
        own(turns, turn)
    for fence in (5, 5, 6):
        turns.cover(fence, 1)
    assert (running.covered, starting.covered, turns.interrupted) == (True, True, [5])
    turns.cover(7, 1)
    turns.cover(8, 2)  # it runs elsewhere
    turns.cover(9, None)
    assert turns.covered_early == {7}


def test_giving_up_stops_runners_and_forgets_turns() -> None:
    told = Told(limit=1)
    turns = turns_on(told)
    running, waiting = Turn(5), Turn(6)
    running.record.phase, waiting.record.phase = RUNNING, WAITING
    for turn in (running, waiting):
        own(turns, turn)
    places = turns.runner._places
    places.line[waiting] = None
    woken: list[None] = []
    told.idle = SimpleNamespace(wake=lambda: woken.append(None))  # type: ignore[assignment]  # a stand-in
    turns.give_up_all()
    assert (running.given_up, waiting.given_up, turns.interrupted) == (True, True, [5])
    assert (turns.owned, places.line, len(woken)) == ({}, {}, 2)
    assert (running.run.turn, waiting.run.turn) == (None, None)
    assert turns.turn_of(5) is None


def test_a_turn_is_over_once_its_runner_has_ended_or_will_not_be_called() -> None:
    turn = Turn()
    owned = own(turns_on(Told()), turn)
    assert not owned.is_over()
    assert owned.checkpoint == (0, None)  # the ledger has nothing of its text
    turn.record.phase = SETTLING
    assert owned.is_over()
    turn.record.phase, turn.given_up = RUNNING, True
    assert owned.is_over()


FILE = '["notes.txt"]'


def row(run_id: str = "r", seq: int = 1, state: Any = ACCEPTED, **more: Any) -> RunRow:
    made = RunRow(run_id, "s", seq, state, "fold", False, 1, 0, "p", "", "", rank=seq)
    return made._replace(**more)


class Runs(KnownRuns):
    """The runs of a process, and those whose hook was called."""

    def __init__(self) -> None:
        self.hooked: list[tuple[str, int]] = []
        home: Any = SimpleNamespace()
        super().__init__(home, lambda run_id, position: self.hooked.append((run_id, position)))


def completion(run_id: str = "r", text: str = "done", message_id: str | None = "m") -> RunComplete:
    return RunComplete("s", run_id, 1, text, None, False, message_id, None, "finished")


def test_only_runs_that_are_not_complete_are_looked_for() -> None:
    runs = Runs()
    done, going_on = runs.handle_of(row("done", state=COMPLETE)), runs.handle_of(row("going on", 2))
    for run in (done, going_on):
        runs.watch(run)
    assert (runs.waited_for, runs.unlooked) == ({"going on": going_on}, {"going on"})
    assert runs.elsewhere() == ["going on"]
    going_on.turn = Turn()  # type: ignore[assignment]  # a stand-in
    assert runs.elsewhere() == []
    runs.is_purged(going_on)
    assert (runs.waited_for, runs.unlooked, going_on.state) == ({}, set(), COMPLETE)
    waiting = runs.handle_of(row("waiting", 3, QUEUED))
    runs.watch(waiting)
    assert runs.unlooked == {"waiting"}


@pytest.mark.parametrize("what", ["nothing", "a hook", "a callback"])
def test_a_run_that_was_purged_ends_its_waits_and_says_which_calls_are_missing(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    runs, loop = Runs(), SteppingLoop()
    run = runs.handle_of(row())
    waits = asyncio.Future[None](loop=loop)
    run.waiters = Waiters({waits: None})
    if what == "a hook":
        run.on_complete = lambda _: None
    elif what == "a callback":
        run.callbacks = (lambda _: None,)
    runs.is_purged(run)
    assert (run.state, run.on_complete, run.callbacks, run.context) == (COMPLETE, None, (), None)
    assert waits.done()
    assert "r" not in runs.handles
    assert len(caplog.records) == (what != "nothing")
    loop.close()


@pytest.mark.parametrize("seq", [1, 3])
@pytest.mark.parametrize("is_complete", [True, False])
def test_a_run_whose_id_was_purged_and_used_again_has_a_handle_of_its_own(
    is_complete: bool, seq: int, caplog: pytest.LogCaptureFixture
) -> None:
    runs = Runs()
    before = runs.handle_of(row(seq=2))
    before.callbacks = (lambda _: pytest.fail("it was purged"),)
    if is_complete:
        before.callbacks = ()
        runs.complete(completion())
    after = runs.handle_of(row(seq=seq))
    assert after is not before
    assert runs.handle_of(row(seq=seq)) is after
    assert (before.state, before.complete is None) == (COMPLETE, not is_complete)
    assert (after.state, after.seq) == (ACCEPTED, seq)
    assert len(caplog.records) == (not is_complete)  # its callback will never be called


def test_a_handle_never_goes_back() -> None:
    runs = Runs()
    run = runs.handle_of(row(state=QUEUED))
    run.on_complete = lambda _: None
    assert runs.handle_of(row(state=ACCEPTED, prompt="old")) is run
    assert (run.state, run.prompt) == (QUEUED, "p")
    assert runs.has_hook("r")
    runs.handle_of(row(state=QUEUED, prompt="new", held=True, rank=7, bound="lead", data="1"))
    assert (run.prompt, run.record.held, run.record.rank, run.record.into) == ("new", True, 7, "lead")
    assert run.record.data == "1"
    runs.handle_of(row(state=ACTIVE, covered=True, attachments=FILE))
    assert (run.state, run.covered, run.attachments) == (ACTIVE, True, ("notes.txt",))
    runs.handle_of(row(state=QUEUED, prompt="older", covered=True))
    assert (run.prompt, run.attachments) == ("p", ("notes.txt",))
    runs.handle_of(row(state=COMPLETE))  # without its RunComplete it is not complete here
    assert (run.state, run.covered) == (ACTIVE, True)
    runs.handle_of(row(state=COMPLETE), completion(), 9)
    assert run.complete == completion()
    assert runs.hooked == [("r", 9)]
    runs.handle_of(row(state=QUEUED))
    assert run.state is COMPLETE


def test_a_run_that_is_queued_completes_to_the_subscribers() -> None:
    runs = Runs()
    run = runs.handle_of(row())
    run.on_complete = lambda _: None
    assert runs.has_hook("r")
    runs.handle_of(row(state=QUEUED))
    assert not runs.has_hook("r")
    assert not runs.has_hook("unknown")


def test_what_is_accepted_here_is_known_with_what_only_this_process_has() -> None:
    runs, context, hook = Runs(), object(), lambda _: None
    before = runs.handle_of(row("a", 3))  # a purge has forgotten its session, which began again
    pending = PendingAccept(context, hook)  # type: ignore[arg-type]  # it is only kept
    assert pending.handle is None
    step: Any = SimpleNamespace(accepted={"a": pending, "b": None}, rows={"a": row("a", 3), "b": row("b", 4)})
    runs.accept(step)
    run = runs.handles["a"]
    assert run is not before
    assert pending.handle is run
    assert (run.context, run.on_complete, run.seq) == (context, hook, 3)
    assert (runs.handles["b"].context, runs.handles["b"].on_complete) == (None, None)
    assert runs.waited_for.keys() == {"a", "b"}


def test_a_run_is_complete_once_and_wakes_what_waits_for_it() -> None:
    runs, called = Runs(), list[RunComplete]()
    run = runs.handle_of(row(state=ACTIVE, held=True))
    runs.watch(run)
    run.callbacks = (called.append,)
    loop = SteppingLoop()
    waits = asyncio.Future[None](loop=loop)
    run.waiters = Waiters({waits: None})
    runs.complete(completion(text=""), 3)
    assert waits.done()
    loop.close()
    assert (run.state, run.pieces, run.record.held) == (COMPLETE, (), False)
    runs.complete(completion(text="again"), 4)
    runs.complete(completion("unknown"), 4)
    assert called == [completion(text="")]
    assert (runs.waited_for, runs.hooked) == ({}, [])
    unwritten = runs.handle_of(row("q", 2))
    runs.complete(completion("q", message_id=None))
    assert unwritten.pieces is None
    written = runs.handle_of(row("t", 2))
    runs.complete(completion("t"))
    assert written.pieces == ("done",)


@pytest.mark.parametrize("by_look", [True, False])
def test_a_hook_is_called_once_and_told_to_the_feed(by_look: bool) -> None:
    runs, called = Runs(), list[RunComplete]()
    run = runs.handle_of(row())
    run.on_complete = called.append
    if by_look:
        runs.handle_of(row(state=COMPLETE), completion())
    else:
        runs.complete(completion())
    assert (called, runs.hooked) == ([completion()], [("r", 0)])
    assert not runs.has_hook("r")


def test_a_run_that_only_a_key_remembers_is_complete() -> None:
    name: Any = SimpleNamespace(session_id="s", run_id="r", seq=4)
    run = Runs().forgotten(name)
    assert (run.session_id, run.run_id, run.seq, run.prompt, run.state) == ("s", "r", 4, "", COMPLETE)


def test_the_text_of_a_turn_of_this_process_outlives_it() -> None:
    runs = Runs()
    kept, given_up, elsewhere = (runs.handle_of(row(each, state=ACTIVE)) for each in "kge")
    turn: Any = SimpleNamespace(
        run=kept, parts=("a", "b"), record=SimpleNamespace(text="ab"), is_over=True, given_up=False
    )
    lost: Any = SimpleNamespace(run=given_up, parts=("x",), is_over=True, given_up=True)
    kept.turn, given_up.turn, elsewhere.turn = turn, lost, lost
    runs.complete(completion("k"), 1, turn)
    runs.complete(completion("g"), 1, lost)
    runs.complete(completion("e"), 1, turn)
    assert (kept.pieces, given_up.pieces, elsewhere.pieces) == (("a", "b"), ("done",), ("done",))
    assert (kept.turn, given_up.turn, elsewhere.turn) == (None, None, None)


def seen(runs: Runs, **rows: Any) -> Any:
    """Return a step that has seen these runs."""
    records = {run_id: each.as_record() for run_id, each in rows.items()}
    return SimpleNamespace(runs=records, rows=rows, row_of=lambda run: rows[run.run_id])


def test_a_step_brings_the_handles_up_to_date_unless_a_later_one_has() -> None:
    runs = Runs()
    run = runs.handle_of(row())
    run.on_complete = lambda _: None
    runs.see(seen(runs, r=row(prompt="new", covered=True, attachments=FILE), unknown=row("unknown")), 4)
    assert (run.version, run.prompt, run.covered, runs.has_hook("r")) == (4, "new", True, True)
    assert run.attachments == ("notes.txt",)
    runs.see(seen(runs, r=row(prompt="older")), 3)
    assert (run.version, run.prompt) == (4, "new")
    runs.see(seen(runs, r=row(state=QUEUED, prompt="same")), 4)
    assert (run.state, run.prompt, run.covered, runs.has_hook("r")) == (QUEUED, "same", False, False)
    step = seen(runs, r=row(state=COMPLETE, covered=True))
    step.runs["r"].complete = completion()
    runs.see(step, 5)  # what completes it is announced later
    assert (run.state, run.covered, run.version) == (QUEUED, True, 5)
    runs.complete(completion())
    runs.see(seen(runs, r=row(state=QUEUED)), 6)
    assert (run.state, run.version) == (COMPLETE, 5)


def started(lead: RunRow, *folded: RunRow, waiting: tuple[RunRow, ...] = (), fence: int = 5) -> Any:
    """Return a step that has started a turn, or has seen it."""
    rows = {each.run_id: each for each in (lead, *folded, *waiting)}
    records = {run_id: each.as_record() for run_id, each in rows.items()}
    turn = SimpleNamespace(runs=[records[each.run_id] for each in (lead, *folded)])
    queue = SimpleNamespace(in_order=lambda: [records[each.run_id] for each in waiting])
    return SimpleNamespace(
        started=turn, runs=records, row_of=lambda run: rows[run.run_id], fence=fence, attempts=2,
        core=SimpleNamespace(turn=turn, queue=queue),
    )  # fmt: skip


@pytest.mark.parametrize("is_covered", [True, False])
def test_a_turn_starts_with_all_its_runs_and_the_queue_behind_it(is_covered: bool) -> None:
    runs, told = Runs(), Told()
    turns, begun_here = turns_on(told, runs), list[Any]()
    turns.runner.start = begun_here.append
    lead = runs.handle_of(row("lead", 1))
    lead.listeners = Waiters()
    reader: asyncio.Future[None] = asyncio.Future(loop=SteppingLoop())
    lead.listeners[reader] = None
    if is_covered:
        turns.cover(5, 1)
    step = started(
        row("lead", 1, ACTIVE), row("folded", 2, ACTIVE), waiting=(row("later", 4, QUEUED, rank=9),)
    )
    turns.start(step, 77)
    (turn,) = begun_here
    assert [run.run_id for run in turn.runs] == ["lead", "folded"]
    assert [run.turn for run in turn.runs] == [turn, turn]
    assert [run.state for run in turn.runs] == [ACTIVE, ACTIVE]
    assert (turn.fence, turn.attempt, turn.covered) == (5, 2, is_covered)
    assert told.asked == [("lead", 77)]
    assert reader.done()
    reader.get_loop().close()
    assert {seq: run.run_id for seq, run in turns.owned[5].queue.items()} == {4: "later"}
    assert turns.covered_early == set()
    # What others have done to the line and to the turn is seen with the next step.
    changed = started(
        row("lead", 1, ACTIVE), row("folded", 2, ACTIVE), row("later", 4, ACTIVE),
        waiting=(row("new", 6, QUEUED),),
    )  # fmt: skip
    turns.see(changed, turn)
    assert [run.run_id for run in turn.runs] == ["lead", "folded", "later"]
    assert {seq: run.run_id for seq, run in turns.owned[5].queue.items()} == {6: "new"}
    turns.see(started(row("other", 9, ACTIVE), fence=6), turn)
    assert turns.owned == {}
    assert lead.turn is None


def test_a_turn_that_is_not_on_record_any_more_is_forgotten() -> None:
    turns, turn = turns_on(Told()), Turn()
    own(turns, turn)
    turns.see(SimpleNamespace(core=SimpleNamespace(turn=None), fence=5, runs={}), turn)
    assert turns.owned == {}


def test_all_that_wait_are_woken_and_all_that_a_step_has_seen_have_handles() -> None:
    runs = Runs()
    step = seen(runs, a=row("a"), b=row("b", 2, COMPLETE), c=row("c", 3))
    step.runs["b"].complete = completion("b")
    a, b, c = runs.all_seen(step, [*step.runs.values()])
    assert [run.run_id for run in (a, b, c)] == ["a", "b", "c"]
    assert (a.complete, b.complete) == (None, completion("b"))
    loop = SteppingLoop()
    waits, reads = (asyncio.Future[None](loop=loop) for _ in range(2))
    a.waiters, c.listeners = Waiters({waits: None}), Waiters({reads: None})
    for run in (a, b, c):
        runs.watch(run)
    runs.wake_all()
    assert waits.done()
    assert reads.done()
    loop.close()
