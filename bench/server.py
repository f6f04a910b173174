"""What the server costs: a POST with its whole run, an event for a subscriber, a subscriber that is idle.

Each server is a process of its own, and its CPU time is read from the system (Linux). A POST is compared with
one to a bare Starlette application that reads the same JSON and answers as much, in alternating rounds: read
the ratio, not the microseconds. Subscribers read one stream each, and count what they are given.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Self

BARE = """
import json, sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def post(request):
    said = json.loads(await request.body())
    run = {"run_id": "run-0123456789ab-1", "session_id": request.path_params["session"], "seq": 1}
    return JSONResponse({**run, "state": "accepted", "prompt": said["prompt"], "complete": None}, 202)

app = Starlette(routes=[Route("/v1/sessions/{session}/runs", post, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False, http="h11", loop="asyncio")
"""
OURS = """
import asyncio, sys
from turngate.server import asgi_app, serve

async def agent(turn):
    for _ in range(int(sys.argv[2])):
        turn.write("word ")
        await asyncio.sleep(0)

serve(asgi_app(agent, hosts={"127.0.0.1"}), port=int(sys.argv[1]))
"""
TICK = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Server:
    """A server in a process of its own."""

    def __init__(self, program: str, port: int, *more: str) -> None:
        self.port = port
        self._process = subprocess.Popen([sys.executable, "-c", program, str(port), *more])  # noqa: S603 - a program of this file

    async def __aenter__(self) -> Self:
        """Wait until it answers."""
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                writer.close()
                return self

    async def __aexit__(self, *_: object) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()

    def cpu(self) -> float:
        """Return the seconds of CPU that it has taken."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICK

    def memory(self) -> int:
        """Return the bytes that it holds."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text(encoding="ascii").split()[1]) * PAGE


async def post(port: int, count: int, connection: int) -> None:
    """Send prompts over one connection, one after the other."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in range(count):
        body = json.dumps({"prompt": f"prompt {number}", "when_busy": "queue"}).encode()
        head = (
            f"POST /v1/sessions/s{connection}-{number % 20}/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 202 " not in answer:
            raise RuntimeError(answer)
        length = answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
    writer.close()


async def per_post(server: Server, count: int) -> float:
    """Return the CPU time of one POST, in microseconds."""
    before = server.cpu()
    await asyncio.gather(*(post(server.port, count // 8, connection) for connection in range(8)))
    await asyncio.sleep(0.3)  # what was accepted is run
    return (server.cpu() - before) / count * 1e6


class Reader:
    """One subscriber: counts events."""

    def __init__(self) -> None:
        self.events = 0
        self.completes = 0

    async def follow(self, port: int) -> None:
        """Read until the end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        try:
            while data := await reader.read(1 << 20):
                self.events += data.count(b"\nevent: ")
                self.completes += data.count(b"\nevent: run.complete")
        finally:
            writer.close()


async def posts(rounds: int, count: int) -> None:
    """Compare a POST and its run with a bare POST."""
    ratios, ours, bares = [], [], []
    async with Server(BARE, 8871) as bare, Server(OURS, 8872, "0") as server:
        for _ in range(rounds + 1):
            bares.append(await per_post(bare, count))
            ours.append(await per_post(server, count))
            ratios.append(ours[-1] / bares[-1])
    ratio, own, bare_one = (statistics.median(each[1:]) for each in (ratios, ours, bares))
    print(f"a POST with its whole run, against a bare one: {ratio:.2f} ({own:.0f} µs to {bare_one:.0f} µs)")


async def subscribers(count: int, prompts: int) -> None:
    """Measure what subscribers cost, idle and not."""
    async with Server(OURS, 8873, "5") as server:
        await asyncio.sleep(1.0)  # what it still loads is not the subscribers'
        before = server.memory()
        readers = [Reader() for _ in range(count)]
        following = [asyncio.create_task(reader.follow(server.port)) for reader in readers]
        await asyncio.sleep(2.0)
        print(f"an idle subscriber: {(server.memory() - before) / count / 1024:.0f} KiB")
        began = server.cpu()
        await asyncio.gather(*(post(server.port, prompts // 8, connection) for connection in range(8)))
        while any(reader.completes < prompts // 8 * 8 for reader in readers):
            await asyncio.sleep(0.05)
        spent, events = server.cpu() - began, sum(reader.events for reader in readers)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
    print(f"events to {count} subscribers: {events / spent:,.0f} per second of CPU ({events:,} events)")


async def main(rounds: int) -> None:
    """Measure everything."""
    await posts(rounds, 2_000)
    await subscribers(200, 400)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7, help="how often to measure (default 7)")
    asyncio.run(main(parser.parse_args().rounds))
