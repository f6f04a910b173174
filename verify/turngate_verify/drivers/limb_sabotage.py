"""The known-bad designs of the limbs, each put into the real client, feed or ledger, and what finds it.

`cancel-resent`             the answer to a cancel is lost, and the cancel is sent again
`key-forgotten`             an idempotency key is not kept with what was done under it
`path-identity`             two names of one file are taken for two files
`deaf-follower`             a background task that has failed stays dead
`cursor-of-another-life`    a cursor of another ledger is read as one of this ledger
`snapshot-then-subscribe`   what happens between a subscription and its beginning is lost
`purge-past-reader`         a reader is not told that a purge took what it has not read
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from turngate import CursorExpired, Dispatcher, RunComplete, Subscription, Turn
from turngate.durable import DurableDispatcher, SqliteLedger, _dispatcher, _sqlite
from turngate.durable._ledger import ReadPoint
from turngate.durable.feed._completions import LedgerCompletions
from turngate.durable.feed._feed import Feed
from turngate_verify.drivers.ledger_calls import Case, play
from turngate_verify.drivers.ledger_faults import search
from turngate_verify.world.ledger_world import LedgerWorld
from turngate_verify.world.memory_ledger import MemoryLedger, without_chance
from turngate_verify.world.spoiled_ledger import Fault
from turngate_verify.world.world import without_log

_PATIENCE = 60.0
"""Seconds after which an expected event counts as missing."""


# The checks. Each returns what is wrong, behind the property that is broken.


def cancel_whose_answer_is_lost() -> list[str]:
    """Lose the answer to a cancel, send a prompt, and let the client send its cancel again."""
    return asyncio.run(_lose_the_answer())


async def _lose_the_answer() -> list[str]:
    import httpx2  # noqa: PLC0415 - only with the extras

    from turngate.client import Client  # noqa: PLC0415
    from turngate.server import asgi_app  # noqa: PLC0415

    may_end = asyncio.Event()

    async def waits(turn: Turn) -> None:
        await may_end.wait()

    class LosesTheAnswer(httpx2.AsyncBaseTransport):
        def __init__(self) -> None:
            app = asgi_app(dispatcher, owns=False)
            app._has_lifespan = True  # the world needs none, and no warning that there is none
            self._line = httpx2.ASGITransport(app=app)
            self.cancels = 0

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            response = await self._line.handle_async_request(request)
            if request.url.path.endswith("/cancel"):
                self.cancels += 1
                if self.cancels == 1:
                    await dispatcher.submit("s", "sent after the cancel", run_id="b")
                    raise httpx2.ReadError("the answer is lost")
            return response

    async with asyncio.timeout(_PATIENCE), Dispatcher(waits) as dispatcher:
        async with Client("http://127.0.0.1:8765", transport=LosesTheAnswer()) as client:
            await client.submit("s", "sent before the cancel", run_id="a")
            covered = await client.cancel("s")
        may_end.set()
        later = await dispatcher.wait("b")
    poisoned = (
        ["NEVER_POISONED: b was sent after the cancel, and is cancelled by it"] if later.cancelled else []
    )
    return poisoned + ([] if covered == ["a"] else [f"the cancel says that it covers {covered}"])


def call_under_a_key() -> list[str]:
    """Repeat cancels under one key, with every fault at every point."""
    found = search(programs=["a cancel under a key"])
    return [f"NEVER_POISONED: {found.wrong}"] if found.wrong else []


def two_names_of_a_file() -> list[str]:
    """Open a ledger under two names: what one process does is not left to the other."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_open_by_two_names(Path(folder)))


async def _open_by_two_names(folder: Path) -> list[str]:
    (folder / "real").mkdir()
    os.symlink(folder / "real", folder / "link")
    async with DurableDispatcher(_echo, SqliteLedger(folder / "real" / "l.db")) as d:
        await d.submit("s", "p")
        other = SqliteLedger(folder / "link" / "l.db")
        await other.open()
        try:
            same = other.path == d._ledger.path  # type: ignore[attr-defined]
        finally:
            await other.close()
    return [] if same else ["ONE_TURN: two names of one file have locks in two places"]


def follower_that_fails() -> list[str]:
    """Let the feed fail once, and expect that every subscriber receives everything all the same."""
    with without_log(), without_chance():
        wrong, _ = play(Case("turns of both processes", False, Fault("history_after", 1, "odd")))
        return [f"EXACTLY_ONE_COMPLETE: {each}" for each in wrong]


def subscription_before_a_step() -> list[str]:
    """Subscribe and submit at once; the subscription receives everything that follows."""
    told: list[str] = []

    async def listen(subscription: Subscription) -> None:
        async for event in subscription:
            told.append(getattr(event, "event", "complete"))  # noqa: PERF401 - it is read before its end

    with without_log(), without_chance():
        world = LedgerWorld(1, wrap=_slow_to_say_where_it_is)
        with world.loop:
            subscription = world.dispatchers[0].subscribe("s", moves=True)
        world.start(listen(subscription))
        world.start(world.submit(0, "s", "a"))
        world.loop.settle()
        world.let_end()
        world.pass_time()
        world.leave()
    expected = ["accept", "enter", "complete"]
    return [] if told == expected else [f"EXACTLY_ONE_COMPLETE: a subscriber is told {told}, not {expected}"]


def _slow_to_say_where_it_is(ledger: MemoryLedger) -> MemoryLedger:
    read_point = ledger.read_point

    async def slowly() -> ReadPoint:
        for _ in range(30):
            await asyncio.sleep(0)
        return await read_point()

    ledger.read_point = slowly  # type: ignore[method-assign]
    return ledger


def cursor_of_another_ledger() -> list[str]:
    """Read the completions behind a cursor that another ledger has given."""
    with without_log(), without_chance():
        world = LedgerWorld(1)
        world.call(world.submit(0, "s", "a"))
        world.let_end()
        reading = world.start(anext(world.dispatchers[0].completions("another.1.0")))
        world.loop.settle()
        expired = reading.done() and isinstance(reading.exception(), CursorExpired)
        world.leave()
        return [] if expired else ["EXACTLY_ONE_COMPLETE: a cursor of another ledger is read on"]


def reader_behind_a_purge() -> list[str]:
    """Purge completions that a reader has not read; the reader learns that some are missing."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_purge(Path(folder)))


async def _purge(folder: Path) -> list[str]:
    async with asyncio.timeout(_PATIENCE), DurableDispatcher(_echo, SqliteLedger(folder / "l.db")) as d:
        runs = [await d.submit(session, "p") for session in "abc"]
        reader = d.completions()
        first: tuple[str, RunComplete] = await anext(reader)
        for run in runs:
            await run.wait()
        await d.purge(before=time.time() + 60)
        await d.ask("d", "p")
        try:
            _, told = await anext(d.completions(first[0]))
        except CursorExpired:
            return []
        return [f"EXACTLY_ONE_COMPLETE: {told.run_id} follows {first[1].run_id}, and two were purged unread"]


async def _echo(turn: Turn) -> str:
    return turn.run.prompt


# The designs.


async def dies_at_a_failure(self: Feed) -> None:
    """Follow the ledger up to the first failure, and never again."""
    with suppress(Exception):
        while self.subscribers.listen() and not self._news.closed:
            heard = self._news.count
            await self._stepper.open()
            await self._read()
            await self._news.wait(heard)


async def _any_cursor(self: LedgerCompletions) -> None:
    await self._ready()
    self._unchecked.clear()


def _keeps_nothing_back(subscribe: Callable[..., Any]) -> Callable[..., Any]:
    def subscribing(self: Feed, session_id: str | None, *, moves: bool) -> Any:
        subscription = subscribe(self, session_id, moves=moves)
        self._moment_known = None
        return subscription

    return subscribing


def _forgets_purges(completions_after: Callable[..., Any]) -> Callable[..., Any]:
    async def reading(self: SqliteLedger, after: Any, limit: int) -> Any:
        _, horizon, page = await completions_after(self, after, limit)
        return (-1, 0), horizon, page

    return reading


def _resent(key: str | None, life: str | None) -> dict[str, str]:
    return {}


class LimbSabotage(NamedTuple):
    """Which code the design replaces, and the check that finds it."""

    patches: Callable[[], tuple[tuple[Any, str, Any], ...]]
    check: Callable[[], list[str]]


def _calls() -> Any:
    from turngate.client import _calls  # noqa: PLC0415 - only with the extras

    return _calls


LIMB_SABOTAGES = {
    "cancel-resent": LimbSabotage(lambda: ((_calls(), "_headers", _resent),), cancel_whose_answer_is_lost),
    "key-forgotten": LimbSabotage(lambda: ((_dispatcher, "_keyed", lambda *_: None),), call_under_a_key),
    "path-identity": LimbSabotage(lambda: ((_sqlite, "resolved", Path),), two_names_of_a_file),
    "deaf-follower": LimbSabotage(lambda: ((Feed, "_follow", dies_at_a_failure),), follower_that_fails),
    "cursor-of-another-life": LimbSabotage(
        lambda: ((LedgerCompletions, "_check_cursors", _any_cursor),), cursor_of_another_ledger
    ),
    "snapshot-then-subscribe": LimbSabotage(
        lambda: ((Feed, "subscribe", _keeps_nothing_back(Feed.subscribe)),), subscription_before_a_step
    ),
    "purge-past-reader": LimbSabotage(
        lambda: ((SqliteLedger, "completions_after", _forgets_purges(SqliteLedger.completions_after)),),
        reader_behind_a_purge,
    ),
}
"""The designs of the limbs, by their names."""


@contextmanager
def limb_sabotaged(design: str) -> Iterator[None]:
    """Put a bad design into the real code."""
    with ExitStack() as stack:
        for owner, name, instead in LIMB_SABOTAGES[design].patches():
            stack.enter_context(patch.object(owner, name, instead))
        yield


class LimbFound(NamedTuple):
    """What the check of a design says about the real code, and about the code with the design."""

    without: list[str]
    within: list[str]
    lacking: str = ""
    """The missing program or package, if the check could not run."""


def find_limb_sabotage(design: str) -> LimbFound:
    """Run the check of a design twice: on the real code, and with the design built in."""
    check = LIMB_SABOTAGES[design].check
    try:
        without = check()
        with without_log(), limb_sabotaged(design):
            return LimbFound(without, check())
    except ModuleNotFoundError as lacking:
        return LimbFound([], [], f"{lacking.name} is not installed")
