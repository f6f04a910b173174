"""What a process looks after on a ledger: each look by itself, with a ledger that says what it is told."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

import turngate.durable._recovery as recovery_module
from dispatching import in_loop, steps
from turngate import RunComplete, State
from turngate._core import RUNNING, SETTLING, WAITING
from turngate.durable import LedgerUnavailable
from turngate.durable._ledger import LedgerGone, Orphans
from turngate.durable._records import Ask
from turngate.durable._recovery import Recovery
from turngate.durable._step import Recovered
from turngate.durable.feed import BEHIND


class Told:
    """Stands in for everything that a recovery asks, and keeps what it asked."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.wrong: dict[str, list[Exception]] = {}
        # The stepper.
        self.ledger = self.supervisor = self.tasks = self.loop = self
        self.settings = SimpleNamespace(checkpoint=5.0, poll=10.0, enter_timeout=30.0, on_death="fail")
        self.name, self.is_closing = 1, False
        # The runs.
        self.waited_for: dict[str, Any] = {}
        self.unlooked: set[str] = set()
        self.completed: list[tuple[str, int]] = []
        self.purged: list[Any] = []
        # The turns.
        self.owned: dict[int, Any] = {}
        # The ledger.
        self.found: list[Any] = []
        self.pages: list[Any] = []
        self.on_record: list[Any] = []
        self.views: list[Any] = []
        self.left: list[Orphans] = []
        self.results: list[Any] = []
        self.expired = 0

    def check_loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def say(self, what: Any) -> None:
        self.calls.append(what)
        if wrong := self.wrong.get(what if isinstance(what, str) else what[0]):
            raise wrong.pop(0)

    def ledger_is_gone(self, why: LedgerGone) -> None:
        self.calls.append(("gone", str(why)))

    async def retire_former(self) -> None:
        self.say("retire_former")

    async def send(self, ask: Ask, fn: Any, *, owner: bool) -> Any:
        step = SimpleNamespace(
            reap=lambda retry: f"reap {retry}", claim=lambda: "claim", enter=lambda run_id: f"enter {run_id}"
        )
        self.calls.append((ask, fn(step), owner))
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def elsewhere(self) -> list[str]:
        return [run_id for run_id, run in self.waited_for.items() if run.turn is None]

    def handle_of(self, row: Any, complete: Any = None, position: int = 0) -> Any:
        self.calls.append(("handle", row.run_id, complete, position))
        return row.run_id

    def is_purged(self, run: Any) -> None:
        self.purged.append(run)

    def complete(self, complete: RunComplete, position: int) -> None:
        self.completed.append((complete.run_id, position))

    def give_up(self, turn: Any) -> None:
        self.say(("give up", turn.fence))

    def cover(self, fence: int, owner: int) -> None:
        self.say(("cover", fence, owner))

    async def find(self, run_ids: list[str]) -> list[Any]:
        self.say(("find", *run_ids))
        return [each for each in self.found if each.row.run_id in run_ids]

    async def read_point(self) -> Any:
        self.say("read_point")
        return SimpleNamespace(horizon=100, until=120)

    async def completions_after(self, after: tuple[int, int], limit: int) -> Any:
        self.say(("completions", after))
        return self.pages.pop(0)

    async def turns_of(self, name: int) -> list[Any]:
        self.say(("turns", name))
        return self.on_record

    async def view(self, session_id: str) -> list[Any]:
        return [self.views.pop(0)]

    async def checkpoint(self, points: list[Any]) -> None:
        self.say(("checkpoint", *points))

    async def expire_keys(self, kept: float, limit: int) -> int:
        self.say("expire_keys")
        return self.expired

    async def expire_workers(self) -> None:
        self.say("expire_workers")

    async def orphans(self, enter_timeout: float) -> Orphans:
        self.say(("orphans", enter_timeout))
        return self.left.pop(0) if self.left else Orphans([], [], [])


def recovery_of(told: Any) -> Recovery:
    return Recovery(told, told, told)


def handle(turn: Any = None) -> Any:
    return SimpleNamespace(turn=turn)


def known(run_id: str, position: int = 0) -> Any:
    return SimpleNamespace(row=SimpleNamespace(run_id=run_id), complete=None, position=position)


def done(run_id: str) -> RunComplete:
    return RunComplete("s", run_id, 1, "", None, False, None, None, "finished")


# Runs that are waited for.


@in_loop
async def test_a_few_runs_are_looked_up_one_by_one_and_missing_ones_were_purged() -> None:
    told = Told()
    told.waited_for = {"a": handle(), "gone": handle(), "here": handle(turn="ours")}
    told.unlooked = {"a", "gone", "other"}
    told.found = [known("a", 7)]
    await recovery_of(told)._look_for_ends()
    assert told.calls == [("find", "a", "gone"), ("handle", "a", None, 7)]
    assert told.purged == [told.waited_for["gone"]]
    assert told.unlooked == {"other"}


@in_loop
async def test_a_run_that_has_come_here_or_has_been_replaced_was_not_purged() -> None:
    told = Told()
    told.waited_for = {"begins": handle(), "another": handle(), "over": handle()}
    find = told.find

    async def meanwhile(run_ids: list[str]) -> list[Any]:
        told.waited_for["begins"].turn = "ours"
        told.waited_for["another"] = handle()
        del told.waited_for["over"]
        return await find(run_ids)

    told.find = meanwhile  # type: ignore[method-assign]
    await recovery_of(told)._look_for_ends()
    assert told.purged == []


@in_loop
async def test_for_many_runs_completions_are_read_and_only_new_runs_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery_module, "_FEW", 2)
    monkeypatch.setattr(recovery_module, "_AT_ONCE", 2)
    told = Told()
    recovery = recovery_of(told)
    told.waited_for = {name: handle() for name in "abc"}
    told.found = [known(name) for name in "abcd"]
    await recovery._look_for_ends()  # the moment is read before they are asked for
    assert [call for call in told.calls if call[0] != "handle"] == [
        "read_point", ("find", "a", "b"), ("find", "c"),
    ]  # fmt: skip
    told.calls.clear()
    told.pages = [((0, 0), 0, [(101, 0, done("a")), (102, 1, done("x"))]), ((0, 0), 0, [(103, 0, done("b"))])]
    told.unlooked = {"d", "left"}
    told.waited_for["d"] = handle()
    await recovery._look_for_ends()
    assert told.calls == [
        ("completions", (99, BEHIND)), ("completions", (102, 1)), ("find", "d"), ("handle", "d", None, 0),
    ]  # fmt: skip
    assert told.completed == [("a", 101), ("b", 103)]
    told.calls.clear()
    told.pages = [((200, 0), 0, [])]  # a purge has passed
    await recovery._look_for_ends()
    assert told.calls[0] == ("completions", (103, 0))
    await recovery._look_for_ends()
    assert "read_point" in told.calls  # all are asked for again
    told.waited_for = {"a": handle()}
    told.calls.clear()
    await recovery._look_for_ends()
    await recovery._look_at_some()  # a few: all were
    assert told.calls == [("find", "a"), ("handle", "a", None, 0)]


@in_loop
async def test_of_many_runs_some_are_looked_up_each_time_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery_module, "_FEW", 1)
    monkeypatch.setattr(recovery_module, "_AT_ONCE", 2)
    told = Told()
    recovery = recovery_of(told)
    told.waited_for = {name: handle() for name in "abc"}
    await recovery._look_for_ends()
    told.calls.clear()
    for _ in range(3):
        await recovery._look_at_some()
    assert told.calls == [("find", "a", "b"), ("find", "c"), ("find", "b", "c")]
    told.waited_for.clear()
    await recovery._look_at_some()
    assert len(told.calls) == 3


# Turns of this process.


def owned(fence: int, phase: Any = RUNNING, *, is_asked: bool = False, is_over: bool = False) -> Any:
    run = SimpleNamespace(session_id="s", run_id=f"r{fence}")
    turn = SimpleNamespace(fence=fence, run=run, record=SimpleNamespace(phase=phase))
    return SimpleNamespace(turn=turn, is_asked=is_asked, is_over=lambda: is_over, queue=None, checkpoint=None)


@in_loop
async def test_turns_are_covered_or_given_up_according_to_the_record() -> None:
    told = Told()
    told.owned = {1: owned(1), 2: owned(2), 3: owned(3), 4: owned(4, WAITING), 5: owned(5, SETTLING)}
    told.on_record = [SimpleNamespace(fence=1, covered=False), SimpleNamespace(fence=2, covered=True)]
    await recovery_of(told)._look_at_turns()
    assert told.calls == [("turns", 1), ("cover", 2, 1), ("give up", 3), ("give up", 4)]


@pytest.mark.parametrize("meanwhile", ["over", "an older name", "a newer name"])
@in_loop
async def test_an_outdated_record_does_not_count(meanwhile: str) -> None:
    told = Told()
    told.name = 5
    told.owned = {1: owned(1)}

    async def turns_of(name: int) -> list[Any]:
        match meanwhile:
            case "over":
                told.owned = {1: owned(1)}
            case "an older name":
                told.name = 4
            case _:
                told.name = 6
        return []

    told.turns_of = turns_of  # type: ignore[method-assign]
    await recovery_of(told)._look_at_turns()
    assert told.calls == []


@in_loop
async def test_a_runner_that_asks_learns_which_follow_ups_wait() -> None:
    told = Told()
    asks, over = owned(1, is_asked=True), owned(2, is_asked=True, is_over=True)
    told.owned = {1: asks, 2: over}
    told.on_record = [SimpleNamespace(fence=fence, covered=False) for fence in (1, 2)]
    rows = [
        SimpleNamespace(run_id=f"r{seq}", seq=seq, state=state)
        for seq, state in enumerate((State.ACTIVE, State.QUEUED, State.ACCEPTED), 1)
    ]
    views = {
        "purged": SimpleNamespace(session=None, runs=rows),
        "another turn": SimpleNamespace(session=SimpleNamespace(fence=9), runs=rows),
        "this one": SimpleNamespace(session=SimpleNamespace(fence=1), runs=rows),
    }
    for what, view in views.items():
        told.views = [view]
        await recovery_of(told)._look_at_turns()
        assert asks.queue == ({2: "r2"} if what == "this one" else None), what
    assert over.queue is None


@in_loop
async def test_a_checkpoint_saves_only_new_text() -> None:
    told = Told()
    recovery = recovery_of(told)
    await recovery._checkpoint()
    assert told.calls == []
    writes, over = owned(1), owned(2, is_over=True)
    written = [2, "ab", None]
    for each in (writes, over):
        each.turn.so_far = lambda: tuple(written)
    told.owned = {1: writes, 2: over}
    told.wrong["checkpoint"] = [LedgerUnavailable("away")]
    with pytest.raises(LedgerUnavailable):
        await recovery._checkpoint()
    for _ in range(2):
        await recovery._checkpoint()
    written[2] = '"kept"'
    await recovery._checkpoint()
    saved = [tuple(call[1]) for call in told.calls]
    assert saved == [("s", 1, "ab", None), ("s", 1, "ab", None), ("s", 1, "ab", '"kept"')]


@in_loop
async def test_old_keys_are_searched_now_and_then_and_at_once_if_there_are_more() -> None:
    told = Told()
    recovery = recovery_of(told)
    told.expired = 500
    await recovery._expire_keys()
    told.expired = 499
    await recovery._expire_keys()
    await recovery._expire_keys()
    assert told.calls == ["expire_keys", "expire_keys"]


# What the dead have left.


@in_loop
async def test_orphans_are_recovered_each_by_its_step_and_it_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    told = Told()
    told.settings.on_death = "retry"
    told.left = [Orphans(["dead"], ["unowned"], [("s", "r")])]
    told.results = [
        Recovered("retried", ("a",), 2, (), 2), Recovered("taken over", ("b",), 1, ("c",)), State.ACTIVE,
    ]  # fmt: skip
    await recovery_of(told)._recover_orphans()
    assert told.calls == [
        "expire_workers",
        ("orphans", 30.0),
        (Ask("dead", 0, "", 1, with_text=True), "reap True", False),
        (Ask("unowned", 0, "", 1), "claim", False),
        (Ask("s", 0, "", 0, "r"), "enter r", False),
        ("orphans", 30.0),
    ]
    for line in (
        "run 'a' of session 'dead' runs again, attempt 2 of 3",
        "session 'dead' has 2 more runs",
        "run 'b' of session 'unowned' goes on here",
        "run 'c' of session 'unowned' goes on here",
        "run 'r' of session 's' is active",
    ):
        assert any(message.startswith(line) for message in caplog.messages), line
    assert len(caplog.messages) == 5


@in_loop
async def test_recovery_goes_on_while_it_succeeds_but_not_forever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told = Told()
    dead = Orphans(["x", "y"], [], [])
    told.left = [dead, dead, dead]
    told.results = [None, OSError("broken"), OSError("broken"), OSError("broken")]
    await recovery_of(told)._recover_orphans()
    assert told.calls.count(("orphans", 30.0)) == 2  # of the second two, none could be
    assert len([record for record in caplog.records if record.exc_info]) == 3
    monkeypatch.setattr(recovery_module, "_ROUNDS", 3)
    told.calls.clear()
    told.left, told.results = [dead] * 9, [None] * 18
    await recovery_of(told)._recover_orphans()
    assert told.calls.count(("orphans", 30.0)) == 3
    told.is_closing = True
    told.calls.clear()
    await recovery_of(told)._recover_orphans()
    assert told.calls == ["expire_workers"]


@in_loop
async def test_a_closing_process_leaves_orphans_to_others() -> None:
    told = Told()

    async def orphans(enter_timeout: float) -> Orphans:
        told.is_closing = True
        return Orphans(["dead"], [], [])

    told.orphans = orphans  # type: ignore[method-assign]
    await recovery_of(told)._recover_orphans()
    assert told.calls == ["expire_workers"]


# All of it, again and again.


@in_loop
async def test_a_failed_look_does_not_prevent_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    told.owned = {1: owned(1)}
    told.owned[1].turn.so_far = lambda: (1, "a", None)
    told.waited_for = {"r": handle()}
    told.found = [known("r")]
    told.wrong = {
        "turns": [LedgerGone("gone")],
        "find": [LedgerUnavailable("away")],
        "checkpoint": [LedgerUnavailable("away")],
        "expire_keys": [LedgerUnavailable("away")],
        "expire_workers": [LedgerUnavailable("away")],
    }
    recovery = recovery_of(told)
    recovery.task = asyncio.create_task(recovery._run())
    while ("retire_former" not in told.calls) or told.calls[-1] != "expire_workers":
        await steps()
    assert ("gone", "gone") in told.calls
    for complaint in (
        "the ends of runs could not be looked for",
        "the text of running turns could not be saved",
        "old idempotency keys could not be forgotten",
        "what dead processes have left could not be recovered",
    ):
        assert complaint in caplog.text
    told.calls.clear()
    told.name = 0
    await steps()
    assert told.calls == []  # nothing is due yet
    recovery.wake()
    await steps()
    assert told.calls == [("find", "r"), ("handle", "r", None, 0)]  # without a name there are no turns
    recovery.stop()
    await asyncio.wait([recovery.task])
    recovery_of(told).stop()  # never started
