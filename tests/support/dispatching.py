"""What the dispatcher's tests share: a loop that tolerates no problem, scripted runners, odd stores."""

from __future__ import annotations

import asyncio
import faulthandler
import functools
import gc
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from turngate import Delta, Dispatcher, Event, MemoryMessages, Message, Run, RunComplete, State, Turn
from turngate._places import Places

OUTSIDE = "the turn was cancelled from outside the dispatcher"
HANG = 180.0  # seconds after which a test counts as hung: nothing that works takes so long anywhere


def show_tasks() -> None:
    """Show where each task of the loop is, for a test that hangs."""
    for task in asyncio.all_tasks():
        task.print_stack()


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test; nothing may reach the loop's exception handler and no task may be left behind."""

    @functools.wraps(test)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        problems: list[dict[str, Any]] = []
        gc.freeze()  # so that collecting looks only at what the test leaves, and is quick

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, problem: problems.append(problem))
            dump = asyncio.get_running_loop().call_later(HANG - 1, show_tasks)
            async with asyncio.timeout(HANG):
                await test(*args, **kwargs)
            dump.cancel()
            await steps()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"left behind: {left}"
            gc.collect()

        # A test that does not end although it is cancelled ends here, with the process.
        faulthandler.dump_traceback_later(2 * HANG, exit=True)
        try:
            asyncio.run(main())
        finally:
            faulthandler.cancel_dump_traceback_later()
        gc.collect()
        assert not problems, problems

    return wrapper


WAIT_FOR: list[Callable[[], bool]] = []
"""What must be true before the loop has gone on for long enough, for dispatchers that wait for a disk."""


async def steps(count: int = 12) -> None:
    """Let the loop go on for some steps."""
    while True:
        for _ in range(count):
            await asyncio.sleep(0)
        if all(come() for come in WAIT_FOR):
            return
        await asyncio.sleep(0.001)


async def look(snapshot: Any) -> Any:
    """Return a snapshot of a dispatcher: one on a ledger is awaited."""
    return await snapshot if inspect.isawaitable(snapshot) else snapshot


async def traceless(d: Dispatcher) -> tuple[Any, ...]:
    """Return what shows a trace of a prompt in the session `s`: what is refused leaves it as it was."""
    return (
        repr(d),
        await look(d.accepted_count("s")),
        await look(d.queued("s")),
        await look(d.cancel_mark("s")),
        await look(d.is_busy()),
    )


def assert_nothing_left(d: Dispatcher) -> None:
    """Find no memory of anything that was in flight."""
    sessions, turns = d._sessions, d._effects.turns
    assert (sessions.cores, sessions.runs, sessions.turns) == ({}, {}, {})
    assert (sessions.accepted, sessions.entering, len(turns), d._effects.is_performing) == (0, 0, 0, False)


def made_for(turn: Turn) -> asyncio.Future[None] | None:
    """Return what the loop has made for the turn: its task, or what a task factory returned instead."""
    return None if turn.execution is None else turn.execution.made


def places(d: Dispatcher) -> Places:
    """Return the places of a dispatcher that has a limit on them."""
    found = d._effects.turns._places
    assert found is not None
    return found


def free(d: Dispatcher) -> int:
    """Return how many places are free."""
    return places(d).free


async def echo(turn: Turn) -> str:
    """Answer with the prompt."""
    return turn.run.prompt


class Agent:
    """A runner whose turns end when the test says so; cancelling ends them as usual."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._ends: dict[str, asyncio.Future[Any]] = {}

    async def __call__(self, turn: Turn) -> Any:
        self.turns.append(turn)
        end = self._ends[turn.run.run_id] = asyncio.get_running_loop().create_future()
        return await end

    @property
    def prompts(self) -> list[str]:
        return [turn.run.prompt for turn in self.turns]

    def finish(self, run: Run, text: Any = "done") -> None:
        self._ends[run.run_id].set_result(text)

    def fail(self, run: Run, exc: BaseException) -> None:
        self._ends[run.run_id].set_exception(exc)


class Stubborn:
    """A runner that swallows cancels until it has been interrupted `patience` times."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.interrupts = 0

    async def __call__(self, turn: Turn) -> str:
        while self.interrupts < self.patience:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.interrupts += 1
        return "as if nothing had happened"


class SlowMessages(MemoryMessages):
    """A store whose puts wait until the test lets them go on, or makes them fail."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[Sequence[Message]] = []
        self.gates: list[asyncio.Future[None]] = []

    async def put(self, messages: Sequence[Message]) -> None:
        self.puts.append(messages)
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        await super().put(messages)


class BrokenMessages(MemoryMessages):
    """A store whose puts raise, at once or after a step of the loop."""

    def __init__(self, exc: BaseException, *, at_once: bool = False, times: int = 10**9) -> None:
        super().__init__()
        self.exc = exc
        self.at_once = at_once
        self.times = times

    async def put(self, messages: Sequence[Message]) -> None:
        if self.times > 0:
            self.times -= 1
            if not self.at_once:
                await asyncio.sleep(0)
            raise self.exc
        await super().put(messages)


async def active(d: Dispatcher, session: str, prompt: str = "p", **options: Any) -> Run:
    """Accept and enter a prompt that is active at once, though its turn may have to wait for a place."""
    run = await d.accept(session, prompt, **options)
    assert await d.enter(run) is State.ACTIVE
    await steps()
    return run


async def queued(d: Dispatcher, session: str, prompt: str, **options: Any) -> Run:
    """Accept and enter a prompt that queues."""
    run = await d.accept(session, prompt, **options)
    assert await d.enter(run) is State.QUEUED
    return run


async def on_record(d: Dispatcher, session: str) -> list[tuple[str, str, str | None]]:
    """What the store holds of the session: role, text, finish reason."""
    return [(m.role, m.text, m.finish_reason) for m in await d.messages.list(session)]


def text_of(event: Event) -> str:
    """Return the text of a delta or a RunComplete: nothing else was subscribed to."""
    assert isinstance(event, Delta | RunComplete)
    return event.text


class _Containing:
    def __init__(self, parts: tuple[str, ...]) -> None:
        self._parts = parts

    def __eq__(self, text: object) -> bool:
        return isinstance(text, str) and all(part in text for part in self._parts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"containing{self._parts}"


def containing(*parts: str) -> Any:
    """Return what is equal to every text that has these parts, whatever its other words are."""
    return _Containing(parts)


def outcome(complete: RunComplete) -> tuple[str, str | None, bool]:
    return complete.text, complete.error, complete.cancelled


def garbage_of(main: Callable[[], Awaitable[None]]) -> list[Any]:
    """Return what only the garbage collector would find of what main leaves."""

    async def measured() -> list[Any]:
        await main()  # what is made once for all
        await steps()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await main()
            await steps()
            gc.collect()
            return [*gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    return asyncio.run(measured())
