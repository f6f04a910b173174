"""Taking one run back: cancel_run with waiting_only, Run.cancel, what Covered knows, how a run ended."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dispatching import (
    Agent,
    BrokenMessages,
    SlowMessages,
    active,
    containing,
    in_loop,
    on_record,
    queued,
    steps,
)
from turngate import Covered, Dispatcher, Run, State, Turn, WrongLoop


@in_loop
async def test_an_accepted_run_is_taken_back() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run, other = await d.accept("s", "p"), await d.accept("s", "other")
        for _ in range(2):
            covered = await d.cancel_run(run.run_id, waiting_only=True)
            assert covered == Covered([run])
            assert covered.known
        assert await d.enter(run) is State.CANCEL_ON_ENTRY
        assert (await d.cancel_run(run.run_id, waiting_only=True)).runs in ([run], [])
        assert (await run).outcome == "cancelled"
        assert await d.enter(other) is State.ACTIVE
        await steps()
        assert agent.prompts == ["other"]


@in_loop
async def test_a_queued_run_is_taken_back_and_the_queue_goes_on() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        first = await active(d, "s", "first")
        second, third = [await queued(d, "s", name, when_busy="queue") for name in ("second", "third")]
        assert (await d.cancel_run(second.run_id, waiting_only=True)).runs == [second]
        assert second.state is State.COMPLETE
        assert (await second).outcome == "cancelled"
        assert first.state is State.ACTIVE
        assert d.queued("s") == [third]
        agent.finish(first)
        await first
        await steps()
        assert agent.prompts == ["first", "third"]


@in_loop
async def test_a_turn_that_has_not_begun_is_taken_back() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await d.accept("s", "p")
        assert await d.enter(run) is State.ACTIVE
        assert (await d.cancel_run(run.run_id, waiting_only=True)).runs == [run]
        assert (await run).outcome == "cancelled"
        assert agent.turns == []
        assert await on_record(d, "s") == [("user", "p", None), ("assistant", "", "canceled")]


@in_loop
async def test_a_run_whose_runner_was_called_is_not_taken_back() -> None:
    agent, store = Agent(), SlowMessages()
    async with Dispatcher(agent, messages=store) as d:
        run = await active(d, "s", "p")
        folded = await queued(d, "s", "folded")
        assert await agent.turns[0].fold() == [folded]
        for each in (run, folded):
            covered = await d.cancel_run(each.run_id, waiting_only=True)
            assert covered == Covered([], known=True)
            assert not covered
        await steps()
        assert not agent.turns[0].covered
        agent.finish(run)
        await steps()  # it settles
        assert not await d.cancel_run(run.run_id, waiting_only=True)
        store.gates[0].set_result(None)
        assert (await run).outcome == (await folded).outcome == "finished"


@pytest.mark.parametrize("step", range(10))
@in_loop
async def test_either_it_is_taken_back_or_its_runner_is_called(step: int) -> None:
    called: list[Run] = []

    async def runner(turn: Turn) -> str:
        called.append(turn.run)
        return "answer"

    async with Dispatcher(runner) as d:
        run = await d.submit("s", "p")
        await steps(step)
        covered = await d.cancel_run(run.run_id, waiting_only=True)
        complete = await run
        assert covered.known
        assert (complete.outcome, bool(covered), called) in [
            ("cancelled", True, []),
            ("finished", False, [run]),
        ]


@in_loop
async def test_a_run_that_was_unknown_complete_or_forgotten() -> None:
    async def echo(turn: Turn) -> str:
        return turn.run.prompt

    async with Dispatcher(echo, completions_kept=1) as d:
        for waiting_only in (True, False):
            assert await d.cancel_run("nobody", waiting_only=waiting_only) == Covered([], known=False)
        await d.ask("s", "p", run_id="r")
        for waiting_only in (True, False):
            covered = await d.cancel_run("r", waiting_only=waiting_only)
            assert covered == Covered([], known=True)
            assert not covered
        await d.ask("s", "q")
        assert not (await d.cancel_run("r")).known
        assert (await d.cancel("idle")).known
        assert (await d.cancel_all()).known


@in_loop
async def test_a_run_is_cancelled_by_its_handle() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead, folded = await active(d, "s", "p"), await queued(d, "s", "q")
        behind = await queued(d, "s", "behind", when_busy="queue")
        await agent.turns[0].fold()
        accepted = await d.accept("s", "accepted")
        assert await accepted.cancel() == Covered([accepted])
        assert await behind.cancel() == Covered([behind])
        assert await folded.cancel() == Covered([lead, folded])
        assert await lead.cancel() == Covered([lead, folded])
        assert (await lead).outcome == (await folded).outcome == "cancelled"
        for run in (lead, folded, behind):
            assert await run.cancel() == Covered([])
        found = d.find(lead.run_id)
        assert found is not None
        assert await found.cancel() == Covered([])
        await d.enter(accepted)
        assert (await accepted).outcome == "cancelled"


@in_loop
async def test_a_run_is_cancelled_where_it_belongs() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")

        async def elsewhere() -> None:
            with pytest.raises(WrongLoop):
                await run.cancel()
            with pytest.raises(WrongLoop):
                await d.cancel_run(run.run_id, waiting_only=True)

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        assert run.state is State.ACTIVE


@in_loop
async def test_a_cancel_by_one_handle_touches_no_run_accepted_after_it() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        run = await active(d, "s", "p")
        await run.cancel()
        later = await queued(d, "s", "later")
        await run
        await steps()
        agent.finish(later)
        assert (await later).outcome == "finished"


# How it ended.


@pytest.mark.requirement("R-CMP-2")
@in_loop
async def test_outcomes_are_for_programs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "turngate")
    agent = Agent()
    outcomes: dict[str, tuple[str, bool, Any]] = {}
    async with Dispatcher(agent) as d:
        finished = await active(d, "s", "finished")
        cleared = await queued(d, "s", "cleared")
        await d.clear_queue("s")
        released = await d.accept("s", "released")
        await released.close()
        covered_and_released = await d.accept("s", "covered and released")
        await covered_and_released.cancel()
        await covered_and_released.close()
        agent.finish(finished)
        await finished
        failed = await active(d, "s", "failed")
        agent.fail(failed, LookupError("no"))
        await failed
        failed_and_cancelled = await active(d, "s", "failed and cancelled")
        await failed_and_cancelled.cancel()
        runs = [finished, cleared, released, covered_and_released, failed, failed_and_cancelled]
        for run in runs:
            complete = await run
            outcomes[run.prompt] = (complete.outcome, complete.cancelled, complete.error)
    assert outcomes == {
        "finished": ("finished", False, None),
        "cleared": ("cleared", False, "cleared from the queue"),
        "released": ("released", False, "released before entry"),
        "covered and released": ("cancelled", True, "released before entry"),
        "failed": ("failed", False, "LookupError: no"),
        "failed and cancelled": ("cancelled", True, None),
    }


@pytest.mark.parametrize("cancelled", [True, False])
@in_loop
async def test_the_outcome_when_the_store_fails(cancelled: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "turngate")
    agent = Agent()
    async with Dispatcher(agent, messages=BrokenMessages(OSError("disk full"))) as d:
        run = await active(d, "s", "p")
        if cancelled:
            await run.cancel()
        else:
            agent.finish(run)
        complete = await run
        assert complete.error == containing("OSError: disk full")
        assert complete.outcome == ("cancelled" if cancelled else "failed")


@in_loop
async def test_the_runner_sees_its_fence_and_its_attempt() -> None:
    seen: list[tuple[int, int, int]] = []

    async def runner(turn: Turn) -> None:
        seen.append((turn.fence, turn.run.seq, turn.attempt))

    async with Dispatcher(runner) as d:
        for number in range(3):
            await d.ask("s", f"p{number}")
            await d.ask("t", f"p{number}")
    assert all(fence == seq and attempt == 1 for fence, seq, attempt in seen)
    assert [fence for fence, _, _ in seen] == sorted({fence for fence, _, _ in seen})


@in_loop
async def test_what_a_fold_would_take() -> None:
    agent = Agent()
    async with Dispatcher(agent) as d:
        lead = await active(d, "s", "lead")
        turn = agent.turns[0]
        assert turn.waiting() == []
        first, second = await queued(d, "s", "a"), await queued(d, "s", "b")
        await queued(d, "s", "must have its own turn", when_busy="queue")
        await queued(d, "s", "c")
        waiting = turn.waiting()
        assert waiting == [first, second]
        waiting.clear()
        assert turn.waiting() == [first, second]
        assert [run.state for run in turn.waiting()] == [State.QUEUED] * 2
        await d.cancel_run(first.run_id)
        assert turn.waiting() == await turn.fold() == [second]
        assert turn.waiting() == []
        with pytest.raises(WrongLoop):
            await asyncio.to_thread(turn.waiting)
        await d.cancel("s")
        await queued(d, "s", "after the cancel")
        assert turn.waiting() == await turn.fold() == []
        await lead
