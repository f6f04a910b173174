"""The close of a dispatcher on a ledger, in virtual time, with stand-ins for all that it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from stepping import SteppingLoop, in_steps
from turngate._core import RUNNING, WAITING
from turngate._events import Waiters
from turngate.durable import LedgerUnavailable, _close
from turngate.durable._close import LedgerClose
from turngate.durable._ledger import LedgerGone
from turngate.durable._step import Fenced

CLOSED = ["stop recovery", "flush", "let go", "stop feed", "retire 7", "end tasks", "close ledger"]
"""What a close does on the ledger when it has nothing to wait for."""
TOLD = ["close feed", "wake all"]
"""And after that, whatever has happened before."""


class Part:
    """Stands in for everything that a close ends; writes down when it was asked for what."""

    def __init__(self, loop: SteppingLoop) -> None:
        self.event_loop = loop
        self.calls: list[str] = []
        self.times: list[float] = []
        self.wrong: dict[str, list[BaseException | None]] = {}
        """What the calls of a name raise, one after the other; the last is raised again and again."""
        # The stepper.
        self.ledger = self.loop = self.tasks = self.supervisor = self
        self.settings = SimpleNamespace(lease=30.0, poll=1.0)
        self.opening: asyncio.Future[None] | None = None
        self.is_open, self.is_closing, self.is_closed = True, False, False
        self.under_way, self.last_position = 0, 42
        self.idle = Waiters()
        # The turns, and the feed.
        self.owned: dict[int, Any] = {}
        self.runner = SimpleNamespace(__len__=lambda: 0, interrupt=self.interrupt)
        self.running: set[int] = set()
        """Fences of turns whose runner has not ended."""
        self.following = False
        self.spawned: list[asyncio.Task[Any]] = []

    def say(self, what: str) -> None:
        self.calls.append(what)
        self.times.append(self.event_loop.time())
        wrong = self.wrong.get(what, [])
        trouble = wrong[0] if len(wrong) == 1 else wrong.pop(0) if wrong else None
        if trouble is not None:
            raise trouble

    def end_step(self) -> None:
        """End the one step that is under way."""
        self.under_way = 0
        self.idle.wake()

    def at(self, what: str) -> list[float]:
        """Return when it was asked for that."""
        return [time for call, time in zip(self.calls, self.times, strict=True) if call == what]

    def check_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self.spawned.append(task)
        return task

    async def send(self, ask: Any, fn: Callable[[Any], str], *, owner: bool) -> None:
        assert owner
        assert (ask.session_id, ask.head) == (f"s of {ask.run_id}", 1)
        step = SimpleNamespace(
            give_up=lambda fence: f"give up {fence}", cancel_run=lambda run_id: f"cancel {run_id}"
        )
        await asyncio.sleep(0)
        self.say(fn(step))

    def let_go(self, turn: Any = None) -> int:
        if turn is None:
            self.say("let go")
        else:
            self.say(f"let go of {turn.fence}")
            self.over(turn.fence)
        return 7

    def turn_of(self, fence: int) -> Any:
        return self.owned[fence].turn if fence in self.owned else None

    def give_up(self, turn: Any) -> None:
        self.say(f"abandon {turn.fence}")
        self.owned.pop(turn.fence, None)
        self.idle.wake()

    def interrupt(self, turn: Any) -> None:
        self.say(f"interrupt {turn.fence}")

    def over(self, fence: int) -> None:
        """End a turn, as its runner does."""
        self.owned.pop(fence, None)
        self.idle.wake()

    def stop(self) -> None:
        self.say("stop recovery" if "stop recovery" not in self.calls else "stop feed")

    async def flush(self) -> None:
        self.say("flush")

    async def read_to(self, position: int, *, patience: float, answer_within: float | None) -> None:
        self.say(f"read to {position} within {patience:g}, {answer_within}")

    async def retire(self, name: int) -> None:
        await asyncio.sleep(0)
        self.say(f"retire {name}")

    async def close(self) -> None:
        self.say("end tasks" if "end tasks" not in self.calls else "close ledger")

    def close_feed(self) -> None:
        self.say("close feed")

    def wake_all(self) -> None:
        self.say("wake all")


class Conducted:
    """The runners of a process: how many have not ended."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self.interrupt = part.interrupt

    def __len__(self) -> int:
        return len(self._part.running)

    def leave_line(self, turn: Any) -> None:
        self._part.say(f"out of line {turn.fence}")


class Bench:
    """A close, and what it closes."""

    def __init__(self, loop: SteppingLoop) -> None:
        self.loop = loop
        self.part = part = Part(loop)
        part.runner = Conducted(part)  # type: ignore[assignment]  # a stand-in
        feed = SimpleNamespace(flush=part.flush, read_to=part.read_to, stop=part.stop, close=part.close_feed)
        self.feed = feed
        feed.following = False
        parts: Any = part, part, part, feed, part
        self.close = LedgerClose(*parts)

    def turn(self, fence: int, *, phase: Any = RUNNING, is_over: bool = False, covered: bool = False) -> Any:
        run = SimpleNamespace(session_id=f"s of r{fence}", run_id=f"r{fence}")
        turn = SimpleNamespace(
            fence=fence, run=run, covered=covered, record=SimpleNamespace(phase=phase), given_up=False
        )
        self.part.owned[fence] = SimpleNamespace(turn=turn, is_over=lambda: is_over)
        return turn

    def later(self, seconds: float, call: Callable[..., object], *about: Any) -> None:
        self.loop.call_later(seconds, call, *about)

    async def closed(self, finish: float = 0.0) -> None:
        self.close.begin(finish)
        await self.close.wait()
        assert self.part.is_closed
        assert self.part.calls[-2:] == TOLD
        await asyncio.wait(self.part.spawned)
        assert not self.part.idle


def on_bench(test: Callable[..., Coroutine[Any, Any, None]]) -> Any:
    """Run a test with a bench; its other parameters are pytest's."""

    def wrapper(caplog: pytest.LogCaptureFixture) -> None:
        in_steps(lambda loop: test(Bench(loop), caplog))

    wrapper.__name__ = test.__name__
    return wrapper


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the exceptions that were logged."""
    return [str(each.exc_info[1]) for each in caplog.records if each.exc_info and each.exc_info[1]]


@on_bench
async def test_a_close_without_anything_to_wait_for_ends_all_in_order_once(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = [asyncio.create_task(at.close.wait()) for _ in range(2)]
    await asyncio.sleep(0)
    await at.closed(finish=9.0)
    at.close.begin(0.0)
    await asyncio.wait(waiting)
    assert at.part.calls == CLOSED + TOLD
    assert len(at.part.spawned) == 1
    assert at.loop.time() == 0
    assert not caplog.records


@on_bench
async def test_subscribers_get_the_last_events_before_others_are_called(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails() -> None:
        at.part.say("first")
        raise RuntimeError("no")

    async def goes_on() -> None:
        at.part.say("second")

    at.feed.following = True
    at.close.before_ledger_closes += [fails, goes_on]
    await at.closed()
    last = ["read to 42 within 10, None", "first", "second"]
    assert at.part.calls == [*CLOSED[:2], *last, *CLOSED[2:], *TOLD]
    assert errors(caplog) == ["no"]


@on_bench
async def test_a_close_waits_until_the_dispatcher_is_open(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.part.is_open, at.part.opening = False, at.loop.create_future()

    def opened() -> None:
        at.part.is_open = True
        assert at.part.opening is not None
        at.part.opening.set_result(None)

    at.later(5, opened)
    await at.closed()
    assert at.part.calls == CLOSED + TOLD
    assert at.loop.time() == 5


@on_bench
async def test_a_dispatcher_that_could_not_be_opened_has_nothing_to_close(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.part.is_open = False
    await at.closed()
    assert at.part.calls == TOLD


@on_bench
async def test_whatever_fails_on_the_way_the_close_comes_to_its_end(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.part.wrong = {"retire 7": [OSError("cut")], "close ledger": [OSError("gone")]}
    await at.closed()
    assert at.part.calls == CLOSED + TOLD
    assert errors(caplog) == ["cut", "gone"]


@on_bench
async def test_a_close_that_is_broken_is_closed_all_the_same(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.part.wrong = {"flush": [SystemExit("enough")]}
    await at.closed()
    assert at.part.calls == [*CLOSED[:2], *TOLD]
    assert errors(caplog) == ["enough"]


@on_bench
async def test_a_turn_that_ends_in_time_is_not_cancelled(at: Bench, caplog: pytest.LogCaptureFixture) -> None:
    at.turn(3)
    at.later(1.5, at.part.over, 3)
    await at.closed(finish=1.75)
    assert at.part.calls == CLOSED + TOLD
    assert at.loop.time() == 1.5
    assert not caplog.records


@on_bench
async def test_a_turn_that_takes_longer_is_cancelled_once(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.turn(3)
    at.later(2.5, at.part.over, 3)
    await at.closed(finish=1.75)
    assert at.part.calls == ["cancel r3", *CLOSED, *TOLD]
    assert at.part.at("cancel r3") == [1.75]
    assert at.loop.time() == 2.5
    assert len(caplog.records) == 1  # it was said after two seconds for what the close waits


@on_bench
async def test_a_turn_whose_runner_was_not_called_goes_to_others_at_once(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.turn(3, phase=WAITING)
    at.turn(4)
    at.later(5, at.part.over, 4)
    await at.closed(finish=9)
    assert at.part.calls == ["out of line 3", "give up 3", "let go of 3", *CLOSED, *TOLD]
    assert at.part.at("out of line 3") == at.part.at("let go of 3") == [0]
    assert at.loop.time() == 5


@pytest.mark.parametrize("is_before", [True, False])
def test_a_close_that_is_in_a_hurry_cancels_now(is_before: bool) -> None:
    async def check(loop: SteppingLoop) -> None:
        at = Bench(loop)
        at.turn(3)
        at.later(3, at.part.over, 3)
        if is_before:
            at.close.hasten()
        else:
            at.later(1, at.close.hasten)
        await at.closed(finish=60)
        assert at.part.at("cancel r3") == [0 if is_before else 1]
        assert at.loop.time() == 3

    in_steps(check)


@pytest.mark.parametrize("why", [Fenced("lost"), LedgerGone("gone")])
def test_a_turn_that_is_not_ours_any_more_is_abandoned(
    why: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(loop: SteppingLoop) -> None:
        at = Bench(loop)
        at.turn(3)
        at.part.wrong = {"cancel r3": [why]}
        await at.closed()
        assert at.part.calls == ["cancel r3", "abandon 3", *CLOSED, *TOLD]

    in_steps(check)
    assert not caplog.records


@on_bench
async def test_a_cancel_that_fails_is_tried_again_as_long_as_the_turn_is_ours(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.turn(3)
    at.turn(4)
    away = LedgerUnavailable("away")
    at.part.wrong = {"cancel r3": [away, away, None], "cancel r4": [away]}
    at.later(1.5, at.part.over, 4)
    at.later(5, at.part.over, 3)
    await at.closed()
    assert at.part.at("cancel r3") == [0, 1, 2]
    assert at.part.at("cancel r4") == [0, 1]
    assert errors(caplog) == ["away"] * 4
    assert at.loop.time() == 5


@on_bench
async def test_a_cancelled_runner_that_goes_on_is_waited_for_and_interrupted_again(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.turn(3, covered=True)
    at.turn(4)  # not covered as far as this process knows
    at.later(25, at.part.over, 3)
    at.later(25, at.part.over, 4)
    at.part.under_way = 1
    at.later(25, setattr, at.part, "under_way", 0)
    await at.closed()
    reminders = at.part.at("interrupt 3")
    assert [round(each) for each in reminders] == [*range(2, 25, 2)]
    assert not at.part.at("interrupt 4")
    assert len(caplog.records) == len(reminders)
    assert at.loop.time() == 25
    assert "flush" in at.part.calls  # nothing was given up


@on_bench
async def test_a_runner_that_is_settling_is_not_interrupted(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.turn(3, covered=True, phase=None)
    at.later(5, at.part.over, 3)
    await at.closed()
    assert not at.part.at("interrupt 3")


@on_bench
async def test_turns_whose_end_cannot_be_written_are_left_to_others(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.part.settings.lease, at.part.settings.poll = 4.5, 100.0
    close = LedgerClose(*(at.part, at.part, at.part, at.feed, at.part))  # type: ignore[arg-type]  # stand-ins
    at.close = close
    at.turn(3, is_over=True)
    at.turn(4)
    at.part.running = {4}
    at.part.wrong = {"cancel r4": [LedgerUnavailable("away")]}
    at.later(1 + 4.5 + 3, at.part.running.clear)
    at.feed.following = True
    await at.closed(finish=1)
    # The ledger has as long as a lease, if that is short, and the runner may then end.
    assert at.part.at("abandon 3") == at.part.at("abandon 4") == pytest.approx([5.5], abs=0.11)
    # What was not delivered is not waited for, and the ledger has a moment to answer.
    last = ["read to 42 within 4.5, 1.0"]
    assert at.part.calls[-9:] == ["abandon 4", "stop recovery", *last, *CLOSED[2:], *TOLD][-9:]
    assert "flush" not in at.part.calls
    assert at.loop.time() == pytest.approx(8.5, abs=0.11)  # nothing waits for the next try any more
    (left,) = [
        each.getMessage() for each in caplog.records if each.levelname == "ERROR" and not each.exc_info
    ]
    assert "r3, r4" in left


@on_bench
async def test_a_ledger_that_never_answers_is_not_waited_for(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.part.under_way = 1
    at.part.running = {3}  # and a runner that does not end either
    never = at.loop.create_future()

    async def retire(name: int) -> None:
        await never

    at.part.retire = retire  # type: ignore[method-assign]  # it does not answer
    await at.closed(finish=1)
    # Ten seconds for the step, ten more for the rest, a moment for the name and one for the steps.
    assert at.loop.time() == pytest.approx(1 + 2 * _close._PATIENCE + 2 * _close._MOMENT, abs=0.3)
    assert at.part.calls == [*[each for each in CLOSED if each not in {"flush", "retire 7"}], *TOLD]
    assert not at.part.at("abandon 3")
    # It says that it waits no longer, that the name is not retired, and that the step has not ended.
    assert [bool(each.exc_info) for each in caplog.records if each.levelname == "ERROR"] == [
        *(False, True, False)
    ]


@on_bench
async def test_a_close_in_a_hurry_gives_up_too(at: Bench, caplog: pytest.LogCaptureFixture) -> None:
    at.turn(3, is_over=True)
    at.close.hasten()
    await at.closed(finish=60)
    assert at.part.at("abandon 3") == pytest.approx([_close._PATIENCE], abs=0.11)


@on_bench
async def test_a_runner_that_ends_after_a_long_time_is_given_up_at_once_if_that_cannot_be_written(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.turn(3, covered=True)
    at.later(25, lambda: setattr(at.part.owned[3], "is_over", lambda: True))
    await at.closed()
    assert at.part.at("abandon 3") == pytest.approx([25], abs=0.11)


@on_bench
async def test_a_clock_that_jumps_does_not_keep_a_close_from_naming_what_it_waits_for(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.turn(3)
    at.later(1.0, lambda: setattr(at.loop, "_now", 30.0))
    at.later(40, at.part.over, 3)
    await at.closed(finish=60)
    assert [each.getMessage().count("r3") for each in caplog.records] == [1] * 5


@on_bench
async def test_a_step_that_ends_with_its_ledger_is_waited_for(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.part.under_way = 1
    close = at.part.close

    async def closing() -> None:
        await close()
        if at.part.calls[-1] == "close ledger":
            at.later(0.5, at.part.end_step)

    at.part.close = closing  # type: ignore[method-assign]  # then the step learns of it
    await at.closed()
    assert at.loop.time() == pytest.approx(2 * _close._PATIENCE + 0.5, abs=0.3)


@on_bench
async def test_a_step_that_is_answered_late_is_waited_for(
    at: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    at.part.under_way = 1
    at.later(_close._PATIENCE - 1, at.part.end_step)
    await at.closed()
    assert at.part.calls == CLOSED + TOLD
    assert at.loop.time() == _close._PATIENCE - 1


@on_bench
async def test_no_more_than_a_few_turns_are_named(at: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for fence in range(15):
        at.turn(fence)
        at.later(3, at.part.over, fence)
    await at.closed()
    (record,) = caplog.records
    assert "r9" in record.getMessage()
    assert "r10" not in record.getMessage()
