"""The steps that a process takes, and the name that it has for them, on a ledger that does as it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dispatching import in_loop, steps
from turngate import DispatcherClosed, State
from turngate.durable import LedgerUnavailable
from turngate.durable._ledger import LeaseLost, LedgerGone, OutcomeUnknown
from turngate.durable._records import Ask, Decision, Loaded
from turngate.durable._step import Fenced, Step
from turngate.durable._stepper import PendingStep, Settings, Stepper

Decide = Callable[[Loaded, str], Decision]
SETTINGS: dict[str, Any] = {
    "on_death": "fail", "lease": 30.0, "poll": 1.0, "enter_timeout": 30.0, "checkpoint": 1.0,
    "queue_limit": 9, "accepted_limit": 9, "delta_limit": 9, "delta_bytes": 9, "complete_limit": 9,
    "turns_limit": None,
}  # fmt: skip


def settings(**more: Any) -> Settings:
    given: dict[str, Any] = SETTINGS | more
    return Settings(**given)


class Told:
    """A ledger that answers each step as it is told, and keeps what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.asked: list[Ask] = []
        self.retired: list[int] = []
        self.known: list[Any] = []
        self.registered = 0
        self.lost: Callable[[int], None] = print
        self.is_away = False
        self.may_register = asyncio.Event()
        self.may_register.set()

    async def open(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""

    async def register(self, lease: float) -> int:
        await self.may_register.wait()
        self.registered += 1
        return self.registered

    def keep_alive(self, name: int, lease: float, lost: Callable[[int], None]) -> None:
        self.lost = lost

    async def retire(self, name: int) -> None:
        if self.is_away:
            raise LedgerUnavailable("away")
        self.retired.append(name)

    async def find(self, run_ids: list[str]) -> list[Any]:
        if self.is_away:
            raise LedgerUnavailable("away")
        return self.known

    async def read_point(self) -> Any:
        return SimpleNamespace(until=42)

    async def step(self, ask: Ask, decide: Decide) -> Decision:
        self.asked.append(ask)
        decision = decide(Loaded("s", None, [], None, 1, 0.0), f"{ask.step_id}.1")
        answer = self.answers.pop(0) if self.answers else 7
        if isinstance(answer, BaseException):
            raise answer
        decision.position = answer
        return decision


class Host:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.gone: list[LedgerGone] = []
        self.performed: list[Decision] = []
        self.pending: list[PendingStep] = []
        self.stepper: Stepper

    def opened(self) -> None:
        """Do nothing."""

    async def until_joined(self) -> None:
        """Do nothing."""

    def perform(self, step: Step, decision: Decision) -> None:
        self.pending += self.stepper.pending
        self.performed.append(decision)

    def lost_name(self, name: int) -> None:
        self.lost.append(name)

    def lost_ledger(self, why: LedgerGone) -> None:
        self.gone.append(why)


def stepper_on(ledger: Told) -> tuple[Stepper, Host]:
    host = Host()
    host.stepper = Stepper(ledger, host, settings())  # type: ignore[arg-type]  # a stand-in
    return host.stepper, host


def take_in(step: Step) -> State | None:
    """Accept a run, and let it in."""
    step.accept("r", "p", "", "fold", 9)
    return step.enter("r")


def test_settings_that_cannot_be_are_refused() -> None:
    for name, wrong in (("on_death", "forget"), ("lease", 0), ("queue_limit", 0), ("turns_limit", 0)):
        with pytest.raises((ValueError, TypeError), match=name):
            settings(**{name: wrong})
    settings(delta_limit=0, turns_limit=1)


@in_loop
async def test_a_step_is_sent_under_the_name_and_an_id_of_its_own() -> None:
    ledger = Told(7, 5)
    stepper, host = stepper_on(ledger)
    assert await stepper.step("s", take_in, run_id="r", is_new=True) is State.ACTIVE
    assert await stepper.step("s", take_in, head=3, key=("k", "")) is State.ACTIVE
    first, second = ledger.asked
    assert (first.worker, first.head, first.run_id, first.is_new, first.key) == (1, 0, "r", True, None)
    assert (second.worker, second.head, second.run_id, second.key) == (1, 3, None, ("k", ""))
    assert first.step_id != second.step_id
    assert stepper.last_position == 7  # the highest
    assert [decision.position for decision in host.performed] == [7, 5]
    assert (stepper.under_way, len(stepper.pending)) == (0, 0)
    assert await stepper.step("s", Step.claim) is None  # it saves nothing, and performs nothing
    assert len(host.performed) == 2


@in_loop
async def test_the_position_of_a_step_whose_answer_was_lost_is_that_of_its_runs_or_the_end() -> None:
    ledger = Told(0, 0, 0, 0)
    stepper, host = stepper_on(ledger)
    await stepper.step("s", take_in)
    assert host.performed[-1].position == 41
    ledger.known = [SimpleNamespace(position=0), SimpleNamespace(position=13), SimpleNamespace(position=11)]
    await stepper.step("s", take_in)  # it completes none
    assert host.performed[-1].position == 41

    assert await stepper.step("s", cancelled_on_entry) is State.COMPLETE
    assert (host.performed[-1].position, host.pending[-1].position) == (13, 13)
    assert await host.pending[-1].result() == 13
    assert stepper.last_position == 41
    ledger.is_away = True
    await stepper.step("s", cancelled_on_entry)  # performed all the same
    assert (host.performed[-1].position, await host.pending[-1].result()) == (0, 0)


def cancelled_on_entry(step: Step) -> State | None:
    """Complete a run that was there before: one that comes and goes in one step is refused."""
    step.accept("r", "p", "", "fold", 9)
    del step.accepted["r"]
    step.release("r")
    return step.runs["r"].state


@in_loop
async def test_under_a_new_name_a_step_is_sent_again_unless_it_is_the_owners(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Told(LeaseLost("dead"), 7, LeaseLost("dead"))
    stepper, host = stepper_on(ledger)
    await stepper.step("s", take_in)
    assert [ask.worker for ask in ledger.asked] == [1, 2]
    assert (host.lost, ledger.retired, stepper.name) == ([1], [1], 2)
    with pytest.raises(Fenced, match="lease"):
        await stepper.step("s", take_in, owner=True)
    assert (len(ledger.asked), stepper.name, host.lost) == (3, 3, [1, 2])
    assert not caplog.text


@pytest.mark.parametrize("answer", [LedgerUnavailable("away"), LedgerGone("gone"), LeaseLost("dead")])
@in_loop
async def test_a_step_that_was_not_saved_has_no_position_and_completes_nothing(answer: Exception) -> None:
    ledger = Told(answer)
    stepper, host = stepper_on(ledger)
    await stepper.open()
    seen: list[PendingStep] = []

    def look(step: Step) -> None:
        seen.extend(stepper.pending)
        cancelled_on_entry(step)

    sending = asyncio.create_task(stepper.send(Ask("s", 0, ""), look, owner=True))
    with pytest.raises((type(answer), Fenced)):
        await sending
    assert (seen[0].completes, seen[0].was_decided, await seen[0].result()) == (set(), False, 0)
    assert host.gone == ([answer] if isinstance(answer, LedgerGone) else [])
    assert host.performed == []


@in_loop
async def test_a_refusal_is_raised_and_an_error_of_the_ledger_leaves_the_outcome_unknown() -> None:
    def refuse(step: Step) -> None:
        raise KeyError("no")

    ledger = Told(RuntimeError("broken"), OutcomeUnknown("lost"), asyncio.CancelledError())
    stepper, host = stepper_on(ledger)
    with pytest.raises(KeyError):
        await stepper.step("s", refuse)
    assert (stepper.name, ledger.answers[0].args) == (1, ("broken",))
    for name in (1, 2, 3):
        with pytest.raises(OutcomeUnknown):
            await stepper.step("s", take_in)
        assert (stepper.name, host.lost[-1]) == (name + 1, name)  # what it held is found by others
    ledger.answers = [RuntimeError("broken")]
    with pytest.raises(RuntimeError, match="broken"):  # nothing was to be saved
        await stepper.step("s", lambda step: None)
    assert stepper.name == 4


@in_loop
async def test_a_step_whose_task_is_cancelled_keeps_its_name() -> None:
    ledger = Told()
    stepper, _ = stepper_on(ledger)
    await stepper.open()

    async def wait(ask: Ask, decide: Decide) -> Decision:
        decide(Loaded("s", None, [], None, 1, 0.0), "x")
        await asyncio.Event().wait()
        raise AssertionError

    ledger.step = wait  # type: ignore[method-assign]
    sending = asyncio.create_task(stepper.send(Ask("s", 0, ""), take_in, owner=False))
    await steps()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert stepper.name == 1


@in_loop
async def test_a_name_is_given_up_once_and_retired_as_soon_as_the_ledger_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger = Told()
    stepper, host = stepper_on(ledger)
    await stepper.open()
    ledger.is_away = True
    ledger.lost(1)
    ledger.lost(1)
    await steps()
    assert (host.lost, stepper.name, stepper.former, ledger.registered) == ([1], 2, {1}, 2)
    assert "worker 1" in caplog.text
    ledger.lost(1)  # of a name that it has no more
    await steps()
    assert (stepper.name, ledger.registered) == (2, 2)
    ledger.is_away = False
    await stepper.retire_former()
    assert (stepper.former, ledger.retired) == (set(), [1])


@in_loop
async def test_while_the_ledger_is_being_closed_no_name_is_taken_and_no_step_is_sent() -> None:
    ledger = Told()
    stepper, _ = stepper_on(ledger)
    await stepper.open()
    ledger.may_register.clear()
    ledger.lost(1)
    await steps()
    assert stepper.name == 0
    assert stepper.let_go() == 0
    ledger.may_register.set()
    await steps()
    assert (stepper.name, 2 in ledger.retired) == (-1, True)
    with pytest.raises(DispatcherClosed):
        await stepper.step("s", take_in)
    with pytest.raises(DispatcherClosed):
        await stepper._rename(0)
    assert ledger.asked == []
    stepper.is_closed = True
    with pytest.raises(DispatcherClosed):
        await stepper.open()
