"""An option that a public callable does not know is refused, as Python refuses it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import turngate
from turngate import Dispatcher, SqliteMessages, Turn, client, durable, server
from turngate.client import Client
from turngate.durable import DurableDispatcher, SqliteLedger
from turngate.server import asgi_app

OPTION = "no_such_option"
REFUSED = f"unexpected keyword argument '{OPTION}'"


def arguments(function: Callable[..., object]) -> tuple[list[str], dict[str, Any]]:
    """Return something for every parameter that has no default, and the option that there is not."""
    positional: list[str] = []
    named: dict[str, Any] = {OPTION: 1}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            positional.append("x")
        elif parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = 1
    return positional, named


async def refusal_of(function: Callable[..., Any]) -> str:
    positional, named = arguments(function)
    try:
        answer = function(*positional, **named)
        if inspect.isawaitable(answer):
            await answer
    except TypeError as refused:
        return str(refused)
    return "nothing"


def methods(thing: object) -> list[tuple[str, Callable[..., Any]]]:
    """Return the public methods that are written in Python."""
    kind = type(thing)
    return [
        (f"{kind.__name__}.{name}", getattr(thing, name))
        for name in dir(kind)
        if not name.startswith("_") and inspect.isfunction(getattr(kind, name))
    ]


def constructors(module: ModuleType) -> list[tuple[str, Callable[..., Any]]]:
    """Return the public functions and classes of a module that have a signature, but for exceptions."""
    found = [(f"{module.__name__}.{name}", getattr(module, name)) for name in module.__all__]
    return [
        (name, each)
        for name, each in found
        if inspect.isfunction(each)
        or (isinstance(each, type) and not issubclass(each, Exception) and _is_constructed(each))
    ]


def _is_constructed(kind: type) -> bool:
    """Return whether the class has a constructor of its own, in Python."""
    made = [vars(each).get(name) for each in kind.__mro__ for name in ("__init__", "__new__")]
    return any(map(inspect.isfunction, made)) and not getattr(kind, "_is_protocol", False)


@asynccontextmanager
async def things(folder: Path) -> AsyncIterator[list[object]]:
    """Give one of each public class, those of the extras included."""
    turns: list[Turn] = []
    stop = asyncio.Event()

    async def agent(turn: Turn) -> None:
        turns.append(turn)
        await stop.wait()

    async with AsyncExitStack() as stack:
        memory = await stack.enter_async_context(Dispatcher(agent))
        on_ledger = await stack.enter_async_context(
            DurableDispatcher(agent, SqliteLedger(folder / "ledger.db"))
        )
        remote = await stack.enter_async_context(Client("http://127.0.0.1:9"))
        store = SqliteMessages(folder / "messages.db")
        runs = [await memory.submit("s", "tea"), await on_ledger.submit("s", "tea")]
        while len(turns) < 2:
            await asyncio.sleep(0.01)
        yield [
            memory,
            on_ledger,
            remote,
            asgi_app(memory),
            asgi_app(agent),
            store,
            memory.messages,
            on_ledger.messages,
            memory.subscribe(),
            on_ledger.subscribe(),
            memory.completions(),
            on_ledger.completions(),
            remote.events(),
            remote.stream("s", "tea"),
            *runs,
            *turns,
        ]
        stop.set()
        for run in runs:
            await run
        await store.close()


def test_every_method_refuses_an_option_that_it_does_not_know(tmp_path: Path) -> None:
    seen: set[str] = set()

    async def main() -> None:
        async with things(tmp_path) as made:
            for thing in made:
                for name, method in methods(thing):
                    assert REFUSED in await refusal_of(method), name
                    seen.add(name)

    asyncio.run(main())
    for name in ("submit", "ask", "accept", "cancel", "subscribe"):
        assert {f"Dispatcher.{name}", f"DurableDispatcher.{name}"} <= seen
    assert {
        "Client.submit",
        "Client.ask",
        "Client.stream",
        "Run.wait",
        "Turn.write",
    } <= seen


def test_every_constructor_refuses_an_option_that_it_does_not_know() -> None:
    async def main() -> None:
        for module in (turngate, durable, client, server):
            made = constructors(module)
            assert made
            for name, each in made:
                assert REFUSED in await refusal_of(each), name

    asyncio.run(main())
