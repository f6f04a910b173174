"""Turngate behind HTTP as a subject of the conformance kit: a real server, driven and observed by calls.

The kit is the server's only client, and its runner too. A subject is at rest when nothing is accepted,
settling or covered, every active turn waits to be told how to go on, and the event stream has been read up to
there: that is asked for, not waited for, so it takes as long as it takes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import httpx2

from serving import serving
from turngate import Turn
from turngate.server import asgi_app
from turngate_verify.conform import Features, Observed, RunnerFailed, SubjectFailed, observed

_serial = itertools.count(1)


class Place:
    """The server, on a loop in a thread; one for all subjects."""

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[str]] = {}
        """The turns that wait for a command, by their lead runs."""
        self.loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started = threading.Event()
        self.url = ""
        self._thread = threading.Thread(target=lambda: self.loop.run_until_complete(self._serve()))
        self._thread.start()
        assert self._started.wait(60)
        self.http = httpx2.Client(base_url=self.url, timeout=60)

    async def _serve(self) -> None:
        async with serving(asgi_app(self._agent, finish=0)) as self.url:
            self._started.set()
            await self._stop.wait()

    async def _agent(self, turn: Turn) -> str:
        run = turn.run.run_id
        while True:
            self.waiting[run] = asyncio.get_running_loop().create_future()
            try:
                told = await self.waiting[run]
            finally:
                del self.waiting[run]
            if told == "finish":
                return "text"
            if told == "fail":
                raise RunnerFailed("no luck")
            await turn.fold()

    def tell(self, run: str, what: str) -> None:
        told = asyncio.Event()

        async def do() -> None:
            if (future := self.waiting.get(run)) is not None and not future.done():
                future.set_result(what)
            told.set()

        asyncio.run_coroutine_threadsafe(do(), self.loop).result(60)

    def close(self) -> None:
        self.http.close()
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)
        self.loop.close()


class HttpSubject:
    """One program's share of the server: sessions and runs with names of their own."""

    __test__ = False  # made by a test, which knows the place
    features = Features(folds=True, clear=True)
    place: Place

    def __init__(self) -> None:
        self._mine = f"-{next(_serial)}"
        self._http = self.place.http
        self._sessions: set[str] = set()
        self._seen: list[Observed] = []
        self._stream = self._http.stream("GET", "/v1/events")
        self._events = self._heard(self._stream.__enter__())
        self._at = next(self._events)[2]

    @staticmethod
    def _heard(response: httpx2.Response) -> Iterator[tuple[str, dict[str, Any], str]]:
        event, data, identity = "", "", ""
        for line in response.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                event = value
            elif field == "data":
                data = value
            elif field == "id":
                identity = value
            elif not line and data:
                yield event, json.loads(data), identity
                event = data = ""

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._http.request(method, path, json=body)
        if answer.status_code >= 400:
            raise SubjectFailed(f"{method} {path}: {answer.text}")
        return answer.json()

    def _rest(self) -> None:
        """Come to rest, and read the event stream up to there."""
        for _ in range(10_000):
            data = self._call("GET", "/v1/sessions")
            mine = [view for view in data["sessions"] if view["session_id"].endswith(self._mine)]
            if all(map(self._is_at_rest, mine)):
                break
        else:
            raise SubjectFailed("it does not come to rest")
        while _number(self._at) < _number(data["cursor"]):
            event, said, self._at = next(self._events)
            if event in ("run.enter", "run.fold", "run.handoff", "run.complete") and said["run_id"].endswith(
                self._mine
            ):
                self._seen.append(observed(self._recorded(event.removeprefix("run."), said)))

    def _is_at_rest(self, view: dict[str, Any]) -> bool:
        if view["accepted"] or view["settling"] or view["covered"]:
            return False
        if view["active"] is None:
            return not view["queued"]
        future = self.place.waiting.get(view["active"]["run_id"])
        return view["phase"] == "running" and future is not None and not future.done()

    def _recorded(self, event: str, said: dict[str, Any]) -> dict[str, Any]:
        line = {"event": event, "run": said["run_id"].removesuffix(self._mine)}
        if "into" in said:
            line["into"] = said["into"].removesuffix(self._mine)
        return line | {key: said[key] for key in ("state", "cancelled", "error") if key in said}

    # The port.

    def accept(self, session: str, run: str) -> None:
        """Send a prompt."""
        self._sessions.add(session)
        self._call(
            "POST", f"/v1/sessions/{session}{self._mine}/runs", {"prompt": run, "run_id": run + self._mine}
        )
        self._rest()

    def enter(self, run: str) -> None:
        """Nothing: a server enters what it accepts."""
        raise NotImplementedError

    def cancel(self, session: str) -> None:
        """Cancel."""
        self._call("POST", f"/v1/sessions/{session}{self._mine}/cancel")
        self._rest()

    def clear(self, session: str) -> None:
        """Clear."""
        self._call("DELETE", f"/v1/sessions/{session}{self._mine}/queue")
        self._rest()

    def fold(self, run: str) -> None:
        """Have the runner fold."""
        self._tell(run, "fold")

    def finish(self, run: str) -> None:
        """Have the runner return."""
        self._tell(run, "finish")

    def fail(self, run: str) -> None:
        """Have the runner fail."""
        self._tell(run, "fail")

    def _tell(self, run: str, what: str) -> None:
        self.place.tell(run + self._mine, what)
        self._rest()

    def observe(self) -> Sequence[Observed]:
        """Return what was seen since the last call."""
        seen, self._seen = self._seen, []
        return seen

    def close(self) -> None:
        """Cancel what is left, and go."""
        for session in self._sessions:
            self._call("POST", f"/v1/sessions/{session}{self._mine}/cancel")
        self._stream.__exit__(None, None, None)


def _number(place: str) -> int:
    return int(place.split(":")[1])
