"""A proxy on loopback that passes each exchange of HTTP on some milliseconds later, each way."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class DelayingProxy:
    """Passes exchanges on, each way some milliseconds later, in a thread of its own.

    With ``swallow``, it answers requests to that path itself, as if the server had acted.
    """

    def __init__(self, url: str, seed: int = 0, swallow: str = "") -> None:
        self._to = urlsplit(url)
        self._chance = random.Random(seed)
        self._swallow = swallow.encode()
        self.swallowed = 0

    @contextlib.contextmanager
    def up(self) -> Iterator[str]:
        """Yield the address of this end."""
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            server.close()
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()

    async def _delay(self) -> None:
        await asyncio.sleep(self._chance.choice([0, 0, 0.005, 0.03]))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one exchange on; the clients close their connection after each."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(_length(head))
            await self._delay()
            if self._swallow and self._swallow in head.split(b"\r\n")[0]:
                self.swallowed += 1
                answer = b'{"covered": []}'
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
            else:
                far, to = await asyncio.open_connection(self._to.hostname, self._to.port)
                to.write(head + body)
                answer = await far.readuntil(b"\r\n\r\n")
                answer += await far.readexactly(_length(answer))
                to.close()
                await self._delay()
                writer.write(answer)
            await writer.drain()
        writer.close()


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return 0
