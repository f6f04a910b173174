"""Has a conversation with an agent framework, and cancels it between any two callbacks of the loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

from scripted import Script
from stepping import SteppingLoop, in_steps
from turngate import Dispatcher, MemoryMessages, Message, Run, RunComplete, Runner

SESSION = "s"
FIRST, SECOND, FOLLOW_UP = "look up tea", "look up cake", "and biscuits"
THIRD, FOURTH = "look up soup", "and salt"


class Recipe(NamedTuple):
    """A recipe to try.

    `make` makes its runner, with an agent whose provider is the script. `leaves` is the name of the
    coroutine whose tasks the library is known to leave behind, if it does.
    """

    make: Callable[..., Runner]
    leaves: str | None


class Conversation(NamedTuple):
    """How a conversation went: how many steps the second prompt took, and the result."""

    steps: int
    second: RunComplete
    follow_up: RunComplete | None
    script: Script


def begin(recipe: Recipe) -> list[Message]:
    """Have the first prompt answered, and return what that leaves in the store."""
    script = Script()

    async def main(_: SteppingLoop) -> list[Message]:
        async with Dispatcher(recipe.make(script)) as d:
            first = await d.ask(SESSION, FIRST)
            assert first.outcome == "finished", first
            assert first.text == f"let me see. answer to: {FIRST}"
            return [*await d.messages.list(SESSION)]

    return in_steps(main, leaves=recipe.leaves)


def go_on(
    recipe: Recipe, before: Iterable[Message], *, cancels: Collection[int] = (), follow_up: bool = False
) -> Conversation:
    """Go on from what is in the store: cancel the second prompt after some steps, see the next answered.

    With `follow_up`, another prompt is sent while the tool of the second is at work.
    """
    script = Script(calls=1)

    async def main(loop: SteppingLoop) -> Conversation:
        store = MemoryMessages()
        await store.put(tuple(before))
        async with Dispatcher(recipe.make(script), messages=store) as d:
            joined: list[Run] = []

            async def send_another() -> None:
                script.meanwhile = None
                joined.append(await d.submit(SESSION, FOLLOW_UP))

            script.meanwhile = send_another if follow_up else None
            start = loop.steps
            cancelled_at: list[float] = []

            def cancel_when_due() -> None:
                if loop.steps - start in cancels:
                    loop.now(d.cancel(SESSION))
                    cancelled_at.append(loop.time())

            loop.between = cancel_when_due
            second = await d.ask(SESSION, SECOND)
            assert not second.cancelled or loop.time() == cancelled_at[0], "it went on after the cancel"
            followed = await joined[0] if joined else None
            steps = loop.steps - start
            loop.between, script.meanwhile = (lambda: None), None

            await see_it_answered(d, script)
            return Conversation(steps, second, followed, script)

    return in_steps(main, leaves=recipe.leaves)


async def see_it_answered(d: Dispatcher, script: Script) -> None:
    """Send two more prompts: they are answered, and the agent is shown every prompt on record, and once."""
    third = await d.ask(SESSION, THIRD)
    assert third.outcome == "finished", (third, script.heard[-1:])
    assert third.text == f"let me see. answer to: {THIRD}", (third, script.heard[-1])
    assert script.looked_up[-1] == "soup"
    fourth = await d.ask(SESSION, FOURTH)
    assert (fourth.outcome, fourth.text) == ("finished", f"answer to: {FOURTH}"), (fourth, script.heard[-1])
    messages: list[Any] = await d.messages.list(SESSION)
    on_record = [message.text for message in messages if message.role == "user"]
    assert sorted(script.prompts) == sorted(on_record), (script.prompts, on_record)
    assert SECOND in on_record


def sweep(
    recipe: Recipe, *, follow_up: bool, part: int = 0, parts: int = 1, every_gap: bool = False
) -> tuple[int, int]:
    """Cancel after k steps, for every k of this part, once and twice; return how many steps and cancels.

    The second cancel comes a few steps after the first, another number for each k; with `every_gap`, after
    each number of steps that the first one leaves.
    """
    before = begin(recipe)
    whole = go_on(recipe, before, follow_up=follow_up)
    assert whole.second.outcome == "finished", whole.second
    cancels = 0
    for k in range(1 + part, whole.steps + 1, parts):
        once = go_on(recipe, before, cancels=[k], follow_up=follow_up)
        gaps = range(1, max(once.steps - k, 1) + 1) if every_gap else [1 + k % 7]
        for gap in gaps:
            go_on(recipe, before, cancels=[k, k + gap], follow_up=follow_up)
        cancels += 1 + len(gaps)
    return whole.steps, cancels
