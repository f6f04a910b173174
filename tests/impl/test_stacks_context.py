"""A turn runs in a copy of the context in which its lead run was accepted; tracers and loggers need that."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import sentry_sdk
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dispatching import Agent
from stacking import Life, Stack, live, until
from stacks import STACKS, Sent, request_id
from turngate import Turn

(SENTRY,) = [stack for stack in STACKS if stack.name == "sentry"]
SEVERAL = (
    "plain",
    "without-keywords",
    "future",
    "wrapping-lazily",
    "eager",
    "uvloop",
    "sentry",
    "aiomonitor",
)


@pytest.fixture(params=[stack for stack in STACKS if stack.name in SEVERAL], ids=str)
def stack(request: pytest.FixtureRequest) -> Stack:
    stack: Stack = request.param
    if stack.missing:
        pytest.skip(stack.missing)
    return stack


class Seen:
    """A runner that notes the request id that it sees, and leaves another behind."""

    def __init__(self) -> None:
        self.ids: dict[str, str] = {}

    async def __call__(self, turn: Turn) -> None:
        self.ids[turn.run.prompt] = request_id.get("none")
        request_id.set(f"left behind by {turn.run.prompt}")
        await asyncio.sleep(0)


def test_the_context_is_that_of_accept_not_of_enter_nor_of_later(stack: Stack) -> None:
    async def scenario(life: Life) -> None:
        seen = Seen()
        request_id.set("who makes the dispatcher")
        d = life.open(seen)
        request_id.set("who accepts")
        run = await d.accept("s", "tea")
        request_id.set("who enters")
        await d.enter(run)
        request_id.set("who waits")
        await run
        assert seen.ids == {"tea": "who accepts"}

    live(stack, scenario)


def test_the_runner_is_called_after_enter_has_returned(stack: Stack) -> None:
    """Though an eager task takes its first step before anyone has been given it."""

    async def scenario(life: Life) -> None:
        seen = Seen()
        d = life.open(seen)
        run = await d.accept("s", "tea")
        await d.enter(run)
        assert seen.ids == {}
        await run
        assert [*seen.ids] == ["tea"]

    live(stack, scenario)


def test_of_a_turn_that_nothing_happens_to_nothing_is_logged(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(life: Life) -> None:
        assert (await life.open(Seen()).ask("s", "tea")).error is None

    live(stack, scenario)
    assert [record.getMessage() for record in caplog.records if record.name == "turngate"] == []


def test_nothing_that_a_turn_sets_is_seen_outside(stack: Stack) -> None:
    async def scenario(life: Life) -> None:
        seen = Seen()
        d = life.open(seen)
        request_id.set("all of them")
        runs = [
            await d.submit(session, f"{session} {n}", when_busy="queue") for n in range(3) for session in "ab"
        ]
        for run in runs:
            await run
        assert seen.ids == {run.prompt: "all of them" for run in runs}
        assert request_id.get() == "all of them"

    live(stack, scenario)


def test_the_context_of_a_folded_run_is_not_taken(stack: Stack) -> None:
    async def scenario(life: Life) -> None:
        before: list[str] = []
        after: list[str] = []

        async def folds(turn: Turn) -> None:
            before.append(request_id.get())
            await until(lambda: bool(d.queued("s")))
            assert [run.prompt for run in await turn.fold()] == ["cake"]
            after.append(request_id.get())

        d = life.open(folds)
        request_id.set("the lead")
        lead = await d.submit("s", "tea")
        request_id.set("the follow-up")
        follow_up = await d.submit("s", "cake")
        assert (await follow_up).folded_into == lead.run_id
        assert (before, after) == (["the lead"], ["the lead"])

    live(stack, scenario)


def test_a_run_cleans_up_in_its_own_context_though_another_cancels_it(stack: Stack) -> None:
    async def scenario(life: Life) -> None:
        cleaned: list[str] = []

        async def cleans_up(turn: Turn) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cleaned.append(request_id.get())

        d = life.open(cleans_up)
        request_id.set("who asks")
        run = await life.begun(await d.submit("s", "tea"))
        request_id.set("who cancels")
        await d.cancel("s")
        assert (await run).cancelled
        assert cleaned == ["who asks"]

    live(stack, scenario)


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def test_the_opentelemetry_span_that_is_current_at_submit_is_the_parent(stack: Stack) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("turngate")

    async def scenario(life: Life) -> None:
        async def traced(turn: Turn) -> None:
            with tracer.start_as_current_span(f"turn {turn.run.prompt}"):
                await asyncio.sleep(0)

        d = life.open(traced)
        runs = []
        for prompt in ("tea", "cake", "soup"):
            with tracer.start_as_current_span(f"request {prompt}"):
                runs.append(await d.submit("s", prompt, when_busy="queue"))
        for run in runs:
            await run
        assert not trace.get_current_span().is_recording()

    live(stack, scenario)
    provider.shutdown()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    assert len(spans) == 6
    for prompt in ("tea", "cake", "soup"):
        request = spans[f"request {prompt}"].context
        assert request is not None
        assert parent_of(spans[f"turn {prompt}"]) == request.span_id


def test_what_structlog_binds_at_submit_is_bound_in_the_runner(stack: Stack) -> None:
    async def scenario(life: Life) -> None:
        lines: list[dict[str, Any]] = []

        async def logs(turn: Turn) -> None:
            structlog.contextvars.bind_contextvars(turn=turn.run.prompt)
            await asyncio.sleep(0)
            lines.append(structlog.contextvars.get_contextvars())

        d = life.open(logs)
        with structlog.contextvars.bound_contextvars(request="first"):
            runs = [await d.submit("s", "tea"), await d.submit("s", "cake", when_busy="queue")]
        with structlog.contextvars.bound_contextvars(request="second"):
            runs.append(await d.submit("s", "soup", when_busy="queue"))
        for run in runs:
            await run
        assert lines == [
            {"request": "first", "turn": "tea"},
            {"request": "first", "turn": "cake"},
            {"request": "second", "turn": "soup"},
        ]
        assert structlog.contextvars.get_contextvars() == {}

    live(stack, scenario)


def test_sentry_scopes_and_transactions_reach_the_runner() -> None:
    async def scenario(life: Life) -> None:
        tags: dict[str, Any] = {}
        traces: dict[str, Any] = {}

        async def noted(turn: Turn) -> None:
            scope = sentry_sdk.get_isolation_scope()
            span = sentry_sdk.get_current_span()
            assert span is not None
            tags[turn.run.prompt], traces[turn.run.prompt] = dict(scope._tags), span.trace_id
            scope.set_tag("turn", turn.run.prompt)
            await asyncio.sleep(0)

        async def request(prompt: str) -> None:
            with sentry_sdk.start_transaction(name=prompt) as transaction:
                sentry_sdk.get_isolation_scope().set_tag("request", f"of {prompt}")
                expected[prompt] = transaction.trace_id
                await d.ask("s", prompt, when_busy="queue")

        d = life.open(noted)
        expected: dict[str, Any] = {}
        async with asyncio.TaskGroup() as requests:
            for prompt in ("tea", "cake"):
                requests.create_task(request(prompt))
        assert tags == {"tea": {"request": "of tea"}, "cake": {"request": "of cake"}}
        assert traces == expected
        assert expected["tea"] != expected["cake"]
        assert "turn" not in sentry_sdk.get_isolation_scope()._tags

    live(SENTRY, scenario)


def test_sentry_hears_nothing_of_turns_that_are_cancelled() -> None:
    async def scenario(life: Life) -> None:
        agent = Agent()
        d = life.open(agent)
        active = await life.begun(await d.submit("s", "tea"))
        await d.cancel("s")
        not_begun = await d.accept("s", "cake")
        await d.enter(not_begun)
        await d.cancel("s")
        assert (await active).cancelled
        assert (await not_begun).cancelled
        assert not [event for event in Sent.events if "exception" in event or event.get("level") == "error"]

    live(SENTRY, scenario)
