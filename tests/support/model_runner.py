"""A runner that asks the model at OPENAI_BASE_URL, and shows what it says: for `turngate serve --acp`.

With BEFORE, it waits for that number of seconds before it folds.
"""

from __future__ import annotations

import asyncio
import json
import os
from urllib.parse import urlsplit

from turngate import Turn


async def agent(turn: Turn) -> None:
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        await asyncio.sleep(float(os.environ.get("BEFORE", "0")))
        await turn.fold()
        said = {"messages": [{"role": "user", "content": turn.run.prompt}], "stream": True, "tools": [{}]}
        body = json.dumps(said).encode()
        head = f"POST {url.path}/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        if b" 200 " not in await reader.readuntil(b"\r\n\r\n"):
            raise RuntimeError("the model refused")
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                turn.write(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
    finally:
        writer.close()
