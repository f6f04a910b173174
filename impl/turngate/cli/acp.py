"""``turngate serve --acp``: an agent for an editor, on the standard streams. It needs no extra."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sqlite3
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from turngate import Dispatcher, SqliteMessages, TurngateError, WhenBusy
from turngate.acp import serve
from turngate.acp._wire import take_stdio
from turngate.cli.endings import BAD_INPUT, INTERNAL_ERROR, INTERRUPTED, BadInput
from turngate.cli.targets import ledger_at, load_runner

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from turngate import Runner
    from turngate.durable import DurableDispatcher

_ABOUT = """\
Serve an agent to an editor: version 1 of the Agent Client Protocol, on the standard streams. What the agent
prints goes to standard error. The end of standard input, or SIGTERM, ends the server with exit code 0.
"""
_ENDING = (signal.SIGINT, signal.SIGTERM)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise BadInput(message)


def is_meant(arguments: list[str]) -> bool:
    """Return whether ``turngate serve`` is called for an editor."""
    return "--acp" in arguments[: arguments.index("--") if "--" in arguments else None]


def run_acp(arguments: list[str]) -> int:
    """Serve, and return the exit code."""
    heard: list[int] = []

    def end_early(number: int, _: object) -> None:
        heard.append(number)  # what imports the agent takes the exception for one of the agent
        sys.exit(0)

    signal.signal(signal.SIGTERM, end_early)
    try:
        asked = _parser().parse_args(arguments)
        streams = take_stdio()  # before the agent is imported, which may print
        runner = load_runner(asked.target)
        return 0 if heard else _run(_serve(runner, asked, streams))
    except SystemExit as ending:
        if not isinstance(ending.code, int | None):
            sys.stderr.write(f"{ending.code}\n")
            return 1
        return ending.code or 0
    except (BadInput, TurngateError, OSError, sqlite3.Error) as wrong:
        if heard:
            return 0
        sys.stderr.write(f"turngate: {' '.join(str(wrong).split())}\n")
        return BAD_INPUT
    except Exception:
        traceback.print_exc()
        return INTERNAL_ERROR


def _run(serving: Coroutine[Any, Any, int]) -> int:
    """Run the server; when a runner ends the process, still answer every prompt before that."""
    with asyncio.Runner() as loop:
        task = loop.get_loop().create_task(serving)
        try:
            return loop.run(_result(task))
        except (SystemExit, KeyboardInterrupt):
            task.cancel()
            loop.run(asyncio.wait([task]))
            raise


async def _result(task: asyncio.Task[int]) -> int:
    await asyncio.wait([task])
    return task.result()


def _parser() -> _Parser:
    parser = _Parser("turngate serve --acp", description=_ABOUT, allow_abbrev=False)
    parser.add_argument("target", metavar="TARGET", help="module:runner or path.py:runner")
    parser.add_argument("--acp", action="store_true", help="serve an editor instead of HTTP")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--messages", metavar="FILE", help="keep messages in an SQLite file, to load sessions")
    kept.add_argument("--ledger", metavar="PATH_OR_DSN", help="keep runs in an SQLite file or in PostgreSQL")
    parser.add_argument(
        "--on-death",
        default="fail",
        choices=("fail", "retry"),
        help="with a ledger: what happens to a turn whose process died (default: fail)",
    )
    parser.add_argument(
        "--when-busy",
        default="fold",
        choices=get_args(WhenBusy),
        help="what a prompt does behind a busy session (default: fold)",
    )
    return parser


async def _serve(runner: Runner, asked: argparse.Namespace, streams: tuple[int, int]) -> int:
    loop = asyncio.get_running_loop()
    async with contextlib.AsyncExitStack() as opened:
        dispatcher: Dispatcher | DurableDispatcher
        if asked.ledger is not None:
            from turngate.durable import DurableDispatcher  # noqa: PLC0415 - only now

            dispatcher = DurableDispatcher(runner, ledger_at(asked.ledger), on_death=asked.on_death)
        elif asked.messages is not None:
            messages = await opened.enter_async_context(SqliteMessages(asked.messages))
            await messages.list("")  # opens the file, or raises
            dispatcher = Dispatcher(runner, messages=messages)
        else:
            dispatcher = Dispatcher(runner)
        serving = loop.create_task(serve(dispatcher, when_busy=asked.when_busy, streams=streams))
        heard: list[int] = []

        def end(number: int) -> None:
            heard.append(number)
            for each in _ENDING:  # a second signal ends the process at once
                loop.remove_signal_handler(each)
            serving.cancel()

        for number in _ENDING:
            loop.add_signal_handler(number, end, number)
        try:
            await asyncio.wait([serving])
        except asyncio.CancelledError:  # a runner ends the process
            serving.cancel()
            await asyncio.wait([serving])
            raise
        if not serving.cancelled():
            serving.result()  # or raise what went wrong
        return INTERRUPTED if signal.SIGINT in heard else 0
