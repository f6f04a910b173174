"""Others on the same PostgreSQL: the nearest thing to a run that they can do, by their own documented means.

procrastinate   a job with `lock=session`: jobs of one lock run one by one, in order. It is deferred, and its
                end awaited, by the caller; a worker in the same process polls as often as it can.
DBOS            a workflow with one step, enqueued with the session as the partition key, one at a time per
                partition; its result is awaited.

Neither has a cancel that is exact, nor folds; and neither was tuned beyond what its documentation offers.
Both are installed by `make bench` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

POLLS_EVERY = 0.02


async def _rate(call: Callable[[int], Awaitable[Any]], clients: int, seconds: float) -> float:
    began, answered = time.perf_counter(), 0

    async def client(number: int) -> None:
        nonlocal answered
        while time.perf_counter() < began + seconds:
            await call(number)
            answered += 1

    await asyncio.gather(*map(client, range(clients)))
    return answered / (time.perf_counter() - began)


async def procrastinate(dsn: str, clients: int, seconds: float) -> float:
    """Return the jobs per second."""
    import procrastinate as library  # noqa: PLC0415 - only where others are measured

    logging.getLogger("procrastinate").setLevel(logging.CRITICAL)
    app = library.App(connector=library.PsycopgConnector(conninfo=dsn))
    ended: dict[str, asyncio.Future[None]] = {}

    async def end(ask: str) -> str:
        asyncio.get_running_loop().call_soon(ended[ask].set_result, None)
        return "done"

    turn: Any = app.task(name="turn")(end)

    async with app.open_async():
        with contextlib.suppress(Exception):  # it is there already
            await app.schema_manager.apply_schema_async()
        worker = asyncio.create_task(
            app.run_worker_async(
                concurrency=clients,
                fetch_job_polling_interval=POLLS_EVERY,
                install_signal_handlers=False,
                listen_notify=True,
            )
        )
        asked = 0

        async def ask(number: int) -> None:
            nonlocal asked
            asked += 1
            name = str(asked)
            ended[name] = asyncio.get_running_loop().create_future()
            await turn.configure(lock=f"s{number}").defer_async(ask=name)
            await ended[name]
            del ended[name]

        try:
            await ask(0)
            return await _rate(ask, clients, seconds)
        finally:
            worker.cancel()
            await asyncio.wait({worker})


async def dbos(dsn: str, clients: int, seconds: float) -> float:
    """Return the workflows per second."""
    from dbos import DBOS, SetEnqueueOptions  # noqa: PLC0415 - only where others are measured

    url = dsn.replace("postgresql://", "postgresql+psycopg://")
    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "CRITICAL",
            "run_admin_server": False,
        }
    )

    @DBOS.step()
    async def answer() -> str:
        return "done"

    @DBOS.workflow()
    async def turn() -> str:
        return await answer()

    DBOS.launch()
    try:
        name = f"turns{clients}"
        await DBOS.register_queue_async(name, partition_concurrency=1, polling_interval_sec=POLLS_EVERY)

        async def ask(number: int) -> None:
            with SetEnqueueOptions(queue_partition_key=f"s{number}"):
                handle = await DBOS.enqueue_workflow_async(name, turn)
            await handle.get_result(polling_interval_sec=POLLS_EVERY)

        await ask(0)
        return await _rate(ask, clients, seconds)
    finally:
        DBOS.destroy(destroy_registry=True)


OTHERS = {"procrastinate": procrastinate, "DBOS": dbos}
