"""What may be a runner: async functions, async generators, and what is refused before anything runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any
from unittest.mock import AsyncMock, MagicMock

import pytest

from dispatching import echo, in_loop, on_record, outcome
from turngate import Dispatcher, Turn

# Refused at construction.


async def no_turn() -> str:
    return "never"


async def two_turns(turn: Turn, another: Turn) -> str:
    return "never"


async def keyword_only(turn: Turn, *, model: str) -> str:
    return model


async def words() -> AsyncIterator[str]:
    yield "never"


class NoTurn:
    async def __call__(self) -> str:
        return "never"

    async def method(self) -> str:
        return "never"


class CallsWithTurn:
    async def __call__(self, turn: Turn) -> str:
        return turn.run.prompt


class WithOption:
    def __init__(self, *, model: str) -> None:
        self.model = model


NOT_CALLABLE = ["agent", 42, None, object(), [echo], {"runner": echo}]


@pytest.mark.parametrize("runner", NOT_CALLABLE)
def test_what_is_not_callable_is_refused(runner: Any) -> None:
    with pytest.raises(TypeError, match="the runner must be callable") as refused:
        Dispatcher(runner)
    assert str(refused.value).endswith(f"not {type(runner).__name__}")


def test_a_coroutine_is_refused_and_does_not_warn() -> None:
    with pytest.raises(TypeError, match=r"pass no_turn, not no_turn\(\)"):
        Dispatcher(no_turn())  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match=r"pass words, not words\(\)"):
        Dispatcher(words())  # type: ignore[arg-type]  # on purpose


TAKE_NO_TURN: list[Any] = [
    no_turn,
    two_turns,
    keyword_only,
    words,
    lambda: None,
    NoTurn(),
    NoTurn().method,
    NoTurn,
    CallsWithTurn,
    WithOption,
    functools.partial(no_turn),
    functools.partial(echo, MagicMock()),
    functools.partial(two_turns),
]


@pytest.mark.parametrize("runner", TAKE_NO_TURN)
def test_what_takes_no_turn_is_refused(runner: Any) -> None:
    with pytest.raises(TypeError, match="argument"):
        Dispatcher(runner)


def test_a_class_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"CallsWithTurn does not; pass an instance: CallsWithTurn\(\)$"):
        Dispatcher(CallsWithTurn)  # type: ignore[arg-type]  # on purpose


# Taken.


def injecting(function: Callable[..., Awaitable[str]]) -> Callable[[Turn], Awaitable[str]]:
    """Give the function one argument more than the caller does."""

    @functools.wraps(function)
    async def wrapper(turn: Turn) -> str:
        return await function(turn, turn)

    return wrapper


def lying(function: Any) -> Any:
    """Say of the function that it takes nothing."""
    function.__signature__ = inspect.Signature()
    return function


@injecting
async def injected(turn: Turn, another: Turn) -> str:
    return f"{turn.run.prompt}, {another.run.prompt}"


@lying
async def any_arguments(*turns: Turn) -> str:
    return turns[0].run.prompt


@lying
async def option_first(option: str, turn: Turn) -> str:
    return turn.run.prompt


async def with_options(turn: Turn, model: str = "small", *more: object, **options: object) -> str:
    return f"{model} {turn.run.prompt}"


class Answer:
    """Its instances are what a turn comes to."""

    def __init__(self, turn: Turn) -> None:
        self.text = turn.run.prompt

    def __await__(self) -> Generator[Any, Any, str]:
        yield from asyncio.sleep(0).__await__()
        return self.text


class Pieces:
    """An async iterator that is no generator."""

    def __init__(self, turn: Turn) -> None:
        self.left = [turn.run.prompt]

    def __aiter__(self) -> Pieces:
        return self

    async def __anext__(self) -> str:
        if not self.left:
            raise StopAsyncIteration
        return self.left.pop()


class Overloaded(type):
    def __call__(cls, *args: Any, **options: Any) -> Any:
        return super().__call__()


class WithMeta(metaclass=Overloaded):
    """The metaclass drops the turn."""

    def __await__(self) -> Generator[Any, Any, str]:
        return no_turn().__await__()


async def yielding(turn: Turn) -> AsyncIterator[str]:
    for letter in turn.run.prompt:
        yield letter


def plain_call(*turns: Turn) -> Awaitable[str]:
    return echo(*turns)


def plain_yield(turn: Turn) -> AsyncIterator[str]:
    return yielding(turn)


TAKEN: list[tuple[Any, str]] = [
    (echo, "tea"),
    (CallsWithTurn(), "tea"),
    (CallsWithTurn().__call__, "tea"),
    (functools.partial(with_options, model="large"), "large tea"),
    (functools.partial(lambda option, turn: echo(turn), "option"), "tea"),
    (functools.partial(option_first, "option"), "tea"),
    (functools.partial(CallsWithTurn()), "tea"),
    (plain_call, "tea"),
    (with_options, "small tea"),
    (injected, "tea, tea"),
    (any_arguments, "tea"),
    (AsyncMock(return_value="mocked"), "mocked"),
    (AsyncMock(spec=echo, return_value="mocked"), "mocked"),
    (MagicMock(side_effect=echo), "tea"),
    (Answer, "tea"),
    (WithMeta, "never"),
    (yielding, "tea"),
    (functools.partial(yielding), "tea"),
    (plain_yield, "tea"),
    (Pieces, "tea"),
]


@in_loop
async def test_what_can_be_called_with_a_turn_is_taken() -> None:
    for runner, text in TAKEN:
        async with Dispatcher(runner) as d:
            complete = await d.ask("s", "tea")
        assert outcome(complete) == (text, None, False), runner


# Async generators.


@in_loop
async def test_each_string_that_a_generator_yields_is_written() -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield "about "
        turn.write("(a note) ")
        await asyncio.sleep(0)
        yield ""
        yield turn.run.prompt

    async with Dispatcher(agent) as d:
        run = await d.submit("s", "tea")
        assert [piece async for piece in run.stream()] == ["about ", "(a note) ", "tea"]
        assert outcome(await run) == ("about (a note) tea", None, False)
        assert await on_record(d, "s") == [
            ("user", "tea", None),
            ("assistant", "about (a note) tea", "end_turn"),
        ]


@in_loop
async def test_a_generator_may_fold_and_may_yield_nothing() -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        while not turn.waiting() and turn.run.prompt != "nothing":
            await asyncio.sleep(0.001)
        for run in await turn.fold():
            yield f"{turn.run.prompt} and {run.prompt}"

    async with Dispatcher(agent) as d:
        first = await d.submit("s", "tea")
        second = await d.submit("s", "biscuits")
        assert (await first).text == (await second).text == "tea and biscuits"
        assert outcome(await d.ask("s", "nothing")) == ("", None, False)


@pytest.mark.parametrize("piece", [b"bytes", 7, None, ["text"]])
def test_a_generator_that_yields_something_else_fails_with_a_sentence(piece: object) -> None:
    ended: list[str] = []

    async def agent(turn: Turn) -> AsyncIterator[Any]:
        try:
            yield "so far"
            yield piece
            ended.append("went on")
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    @in_loop
    async def ask() -> None:
        async with Dispatcher(agent) as d:
            complete = await d.ask("s", "tea")
            sentence = f"the runner yielded {type(piece).__name__}; an async generator must yield str"
            assert outcome(complete) == ("so far", f"TypeError: {sentence}", False)
            assert complete.outcome == "failed"
            assert (await d.ask("other", "tea")).error is not None

    logging.disable()
    try:
        ask()
    finally:
        logging.disable(logging.NOTSET)
    assert ended == ["cleaned up"] * 2


@in_loop
async def test_a_cancel_closes_a_generator_and_keeps_what_it_yielded() -> None:
    ended: list[str] = []
    began = asyncio.Event()

    async def agent(turn: Turn) -> AsyncIterator[str]:
        try:
            yield "so far"
            began.set()
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")
            turn.write(", cleaned up")

    async with Dispatcher(agent) as d:
        run = await d.submit("s", "tea")
        await began.wait()
        await d.cancel("s")
        complete = await run
        assert ended == ["cancelled", "cleaned up"]
        assert (complete.text, complete.cancelled) == ("so far, cleaned up", True)
        assert (await on_record(d, "s"))[-1] == ("assistant", "so far, cleaned up", "canceled")


@in_loop
async def test_a_generator_that_raises_fails_the_run() -> None:
    async def agent(turn: Turn) -> AsyncIterator[str]:
        yield "so far"
        raise KeyError(turn.run.prompt)

    logging.disable()
    try:
        async with Dispatcher(agent) as d:
            assert outcome(await d.ask("s", "tea")) == ("so far", "KeyError: 'tea'", False)
    finally:
        logging.disable(logging.NOTSET)


# Results that cannot be awaited.


def plain(turn: Turn) -> str:
    return turn.run.prompt


def nothing(turn: Turn) -> None:
    return None


def generator(turn: Turn) -> Generator[str, None, None]:
    yield turn.run.prompt


@pytest.mark.parametrize("runner", [plain, nothing, generator, dict, MagicMock(return_value=1)])
def test_a_result_that_cannot_be_awaited_fails_with_a_sentence(runner: Any) -> None:
    @in_loop
    async def ask() -> None:
        async with Dispatcher(runner) as d:
            for prompt in ("tea", "soup"):
                complete = await d.ask("s", prompt)
                assert complete.outcome == "failed"
                assert complete.error is not None
                assert complete.error.startswith("TypeError: ")
                if runner is not dict:  # which raises by itself
                    assert "async" in complete.error

    logging.disable()
    try:
        ask()
    finally:
        logging.disable(logging.NOTSET)
