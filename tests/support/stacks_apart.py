"""A program for the stacks that change the whole process: a life in one of them, in a process of its own.

With the name of a stack: plays every scenario, those of the stack's own too, and prints the result of each.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import traceback

import sentry_sdk

from stack_scenarios import SCENARIOS
from stacking import Life, Scenario, Stack, live
from stacks import APART, Sent, Traced
from turngate import Turn


async def tracing_with_datadog(life: Life) -> None:
    """A span in the runner is a child of the span in which its run was accepted, after a handoff too."""
    tracer = importlib.import_module("ddtrace.trace").tracer

    async def traced(turn: Turn) -> None:
        await asyncio.sleep(0)
        with tracer.trace("turn", resource=turn.run.prompt):
            await asyncio.sleep(0)

    async def request(prompt: str) -> None:
        tracer.context_provider.activate(None)  # a trace of its own
        with tracer.trace("request", resource=prompt) as span:
            requests[prompt] = span.span_id
            await d.ask("s", prompt, when_busy="queue")

    d = life.open(traced)
    requests: dict[str, int] = {}
    async with asyncio.TaskGroup() as group:
        for prompt in ("tea", "cake", "soup"):
            group.create_task(request(prompt))
    turns = {span.resource: span.parent_id for span in Traced.spans if span.name == "turn"}
    assert turns == requests, (turns, requests)


async def reporting_to_sentry(life: Life) -> None:
    """What a runner raises is reported once, by the log, with the tags of the task that accepted the run."""

    async def fails(turn: Turn) -> None:
        await asyncio.sleep(0)
        raise KeyError("user")

    d = life.open(fails)
    with sentry_sdk.isolation_scope() as scope:
        scope.set_tag("request", "of tea")
        run = await d.submit("s", "tea")
    await run
    (event,) = [event for event in Sent.events if "exception" in event]
    assert event["logger"] == "turngate"
    assert event["exception"]["values"][-1]["type"] == "KeyError"
    assert event["tags"]["request"] == "of tea"


OF_THEIR_OWN: dict[str, dict[str, Scenario]] = {
    "ddtrace": {"tracing_with_datadog": tracing_with_datadog},
    "sentry-defaults": {"reporting_to_sentry": reporting_to_sentry},
}


def play(stack: Stack) -> dict[str, str]:
    """Play every scenario, and report the result; after one that hangs no other is played."""
    came: dict[str, str] = {}
    for name, scenario in (SCENARIOS | OF_THEIR_OWN[stack.name]).items():
        try:
            live(stack, scenario)
        except BaseException as exc:
            came[name] = "".join(traceback.format_exception(exc))
            if "hung" in str(exc):
                break
        else:
            came[name] = "held"
    return came


if __name__ == "__main__":
    (stack,) = [each for each in APART if each.name == sys.argv[1]]
    sys.stdout.write(json.dumps(play(stack)))
