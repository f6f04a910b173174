"""Plays programs on the turngate of the interpreter that runs it, for tools/differential.py.

Reads one program per line and writes one transcript per line, both JSON. What is random or a matter of time
(ids, cursors, clocks, positions) is replaced by names that are the same for everyone. A program is a list of
steps, a step a list of operations that follow one another without a pause; after each step the world comes to
rest: no turn starts or settles, every runner waits for its next command.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import shutil
import sqlite3
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import turngate
from turngate import Attachment, Dispatcher, Turn, TurngateError
from turngate.durable import DurableDispatcher, SqliteLedger

Op = dict[str, Any]
AT_ONCE = 6
"""Programs that are played at the same time: most of their time they wait."""
PATIENCE = 8.0
"""Seconds after which a world that has not come to rest is abandoned and reported."""
HEADERS = ("content-type", "location", "retry-after", "allow")


class World:
    """A dispatcher, the runner that it calls, and everything that was seen of it."""

    def __init__(self, program: Op, folder: Path) -> None:
        self.program = program
        self.on_ledger: bool = program["on"] != "memory"
        self.folder = folder
        self.path = folder / "ledger.db"
        self.dispatchers: list[Any] = []
        self.app: Any = None
        self.names: dict[str, str] = {}
        """What random ids are called in the transcript."""
        self.runs: dict[str, Any] = {}
        """The runs by the names that the program has for them."""
        self.mail: dict[str, asyncio.Queue[Op]] = defaultdict(asyncio.Queue)
        self.waiting: dict[str, tuple[str, bool]] = {}
        """The turns whose runners wait for a command, by session; whether they have swallowed a cancel."""
        self.orphans: set[str] = set()
        """Runs that were accepted in an earlier life: they are entered by themselves."""
        self.submitted: set[str] = set()
        self.answers: list[Any] = []
        self.turns: dict[str, list[Any]] = defaultdict(list)
        self.recorded: list[Any] = []
        self.heard: dict[str, list[Any]] = {}
        self.hooks: list[Any] = []
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.streams: list[Stream] = []
        self.told: dict[str, Any] = {}

    # The runner: does what it is told, one command after the other.

    async def runner(self, turn: Turn) -> Any:
        session, lead = turn.run.session_id, turn.run.run_id
        attached = [each if isinstance(each, str) else [*each] for each in turn.run.attachments]
        did: list[Any] = [f"turn of {lead}", turn.run.prompt, attached, turn.attempt]
        self.turns[session].append(did)
        stubborn, tidy, swallowed = False, False, False
        while True:
            self.waiting[session] = lead, swallowed
            try:
                command = await self.mail[session].get()
            except asyncio.CancelledError:
                did.append("interrupted")
                if stubborn:
                    stubborn, swallowed = False, True
                    continue
                if tidy:
                    await turn.clean_up(asyncio.sleep(0))
                    turn.write(" tidied")
                raise
            finally:
                self.waiting.pop(session, None)
            what, text = command["do"], command.get("text")
            did.append(what)
            if what == "finish":
                return text
            if what == "fail":
                raise RuntimeError(text)
            if what == "stubborn":
                stubborn = True
            elif what == "tidy":
                tidy = True
            else:
                did.append(await self.work(turn, what, text))

    async def work(self, turn: Turn, what: str, text: Any) -> Any:
        if what == "write":
            return turn.write(text)
        if what == "emit":
            return turn.emit("tool", {"said": text})
        if what == "keep":
            return turn.keep([text, 1])
        if what == "fold":
            return [ids(turn.waiting()), ids(await turn.fold()), ids(turn.runs)]
        assert what == "history", what
        return [plain(each) for each in await turn.history()]

    # Its life.

    async def play(self) -> Any:
        if self.program.get("ledger"):
            shutil.copy(self.program["ledger"], self.path)
        async with self.opened():
            for number, step in enumerate(self.program["steps"]):
                for op in step:
                    self.answers.append([op["do"], await self.answer_to(op)])
                await self.rest()
                self.told[f"after step {number}"] = await self.look()
            if self.program.get("leave"):
                self.copy_ledger(Path(self.program["leave"]))
            await self.look_at_the_end()
        await self.gather()
        if self.on_ledger:
            self.told["rows"] = rows(self.path)
        else:
            self.told["messages"] = await self.messages()
        return self.transcript()

    def copy_ledger(self, target: Path) -> None:
        """Leave the ledger as it would be if this process were killed now."""
        with (
            contextlib.closing(sqlite3.connect(self.path)) as here,
            contextlib.closing(sqlite3.connect(target)) as there,
        ):
            here.backup(there)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        options = self.program["options"]
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(self.program.get("dispatchers", 1)):
                d: Any
                if self.on_ledger:
                    d = DurableDispatcher(self.runner, SqliteLedger(self.path), poll=0.2, **options)
                else:
                    d = Dispatcher(self.runner, record=self.recorded.append, **options)
                self.dispatchers.append(d)
                if self.program["by"] == "http":
                    from turngate.server import asgi_app  # noqa: PLC0415 - only where it is needed

                    self.app = asgi_app(d, finish=self.program.get("finish", 0.0))
                    await stack.enter_async_context(self.app.lifespan())
                else:
                    await d.__aenter__()
                    stack.push_async_callback(self.close, d)
                await self.hear("everything", d, None, moves=True)
            if self.program.get("ledger"):
                self.orphans = {run.run_id for each in await self.views() for run in each.accepted}
                for name, run_id in self.program["known"].items():
                    if (run := await self.dispatchers[0].find(run_id)) is not None:
                        self.runs[name] = run
            yield

    async def close(self, d: Any) -> None:
        await d.aclose(finish=self.program.get("finish", 0.0))

    async def hear(self, name: str, d: Any, session: str | None, *, moves: bool) -> None:
        name = f"{name} {len(self.heard)}"
        heard = self.heard[name] = []

        async def listen() -> None:
            try:
                async for event in subscription:
                    heard.append([type(event).__name__, plain(event)])  # noqa: PERF401 - seen as they come
            except TurngateError as refused:
                heard.append(type(refused).__name__)

        subscription = d.subscribe(session, moves=moves)
        if self.on_ledger:  # it begins where the ledger is when it first looks
            begun = getattr(d, "beginning", None)
            await (asyncio.sleep(0.1) if begun is None else begun(subscription))
        self.tasks[f"listen {name}"] = asyncio.create_task(listen())

    async def gather(self) -> None:
        """Wait for those that were waiting for something when the dispatcher was closed."""
        for name, task in self.tasks.items():
            try:
                async with asyncio.timeout(PATIENCE):
                    self.told[name] = await task
            except (TurngateError, TimeoutError, asyncio.CancelledError) as refused:
                self.told[name] = raised(refused)
        for stream in self.streams:
            await stream.close()

    # Rest.

    async def rest(self) -> None:
        """Wait until nothing goes on by itself any more."""
        end, in_a_row = time.monotonic() + PATIENCE, 0
        while in_a_row < (2 if self.on_ledger else 12):
            unrest = self.unrest(await self.views())
            in_a_row = 0 if unrest else in_a_row + 1
            if time.monotonic() > end:
                self.answers.append(f"does not come to rest: {unrest}")
                return
            await asyncio.sleep(0.003 if self.on_ledger else 0)

    def unrest(self, views: list[Any]) -> str:
        waiting = {session for session, mail in self.mail.items() if not mail.empty()}
        limit = self.program["options"].get("turns_limit")
        for view in views:
            if view.settling:
                return f"{view.session_id} settles"
            if any(run.run_id in self.orphans for run in view.accepted):
                return f"{view.session_id} has an orphan"
            if any(run.run_id in self.submitted for run in view.accepted):
                return f"{view.session_id} has a run that does not enter"
            if view.active is None:
                if view.queued:
                    return f"{view.session_id} has a queue and no turn"
                continue
            lead, swallowed = self.waiting.get(view.session_id, ("", False))
            if lead != view.active.run_id:
                if limit is not None and len(self.waiting) >= limit * len(self.dispatchers):
                    continue  # it waits for a place
                if limit is not None and view.phase == "waiting" and len(self.dispatchers) > 1:
                    continue
                return f"{view.session_id} has a turn without its runner"
            if view.session_id in waiting:
                return f"{view.session_id} has mail"
            if view.covered and not swallowed:
                return f"{view.session_id} must be interrupted"
        return ""

    async def views(self) -> list[Any]:
        views: list[Any] = await self.asked(self.dispatchers[0].sessions())
        return sorted(views, key=lambda view: str(view.session_id))

    async def asked(self, answer: Any) -> Any:
        return await answer if self.on_ledger else answer

    async def look(self) -> Any:
        d = self.dispatchers[0]
        seen = []
        for view in await self.views():
            active = None if view.active is None else view.active.run_id
            about = [ids(view.accepted), ids(view.queued), active, ids(view.folded), view.covered, view.phase]
            if len(self.dispatchers) == 1:
                about.append(view.text)
            about += [
                await self.asked(d.cancel_mark(view.session_id)),
                await self.asked(d.accepted_count(view.session_id)),
                await self.asked(d.is_busy(view.session_id)),
                ids(await self.asked(d.queued(view.session_id))),
            ]
            seen.append([view.session_id, *about])
        return seen

    async def look_at_the_end(self) -> None:
        d = self.dispatchers[0]
        self.told["messages"] = await self.messages()
        self.told["of runs"] = {
            name: [each.id for each in await d.messages.of_run(run.run_id)]
            for name, run in sorted(self.runs.items())
        }
        self.told["completions"] = await self.completions(None)
        if self.on_ledger:
            history = Lines()
            await d.write_history(history)
            self.told["history"] = history.by_session()

    async def messages(self) -> dict[str, list[Any]]:
        listed = self.dispatchers[0].messages.list
        return {
            session: [plain(each) for each in await listed(session)] for session in self.program["sessions"]
        }

    async def completions(self, after: str | None) -> list[Any]:
        d = self.dispatchers[0]
        found = d.completions(after, until=await self.asked(d.end_cursor()))
        return [plain(complete) async for _, complete in found]

    # Operations.

    async def answer_to(self, op: Op) -> Any:
        """Carry an operation out; return the result."""
        do: Callable[[Op], Awaitable[Any]] = getattr(self, f"do_{op['do']}", self.do_mail)
        if self.app is not None and hasattr(self, f"http_{op['do']}"):
            do = getattr(self, f"http_{op['do']}")
        try:
            return await do(op)
        except KeyError:
            return "there is no such run"
        except (TurngateError, ValueError, TypeError) as refused:
            return raised(refused)

    def at(self, op: Op) -> Any:
        return self.dispatchers[op.get("at", 0) % len(self.dispatchers)]

    async def do_mail(self, op: Op) -> None:
        """Tell the runner of a session what to do next."""
        self.mail[op["session"]].put_nowait(op)

    def prompt(self, op: Op) -> dict[str, Any]:
        attachments: tuple[Any, ...] = ()
        if op.get("attached") == "text":
            attachments = ("a text",)
        elif op.get("attached") == "bytes":
            attachments = (Attachment("a.bin", "application/octet-stream", b"\x00\xff"),)
        options = {"run_id": op.get("run_id"), "when_busy": op["when_busy"], "attachments": attachments}
        if op.get("hook"):
            options["on_complete"] = self.hook(op["run"])
        return options

    def hook(self, name: str) -> Callable[[Any], None]:
        return lambda complete: self.hooks.append([name, plain(complete)])

    def named(self, op: Op, run: Any) -> list[Any]:
        self.names.setdefault(run.run_id, f"<{op['run']}>")
        self.runs[op["run"]] = run
        return [run.run_id, run.session_id, run.seq, run.prompt]

    async def do_accept(self, op: Op) -> Any:
        return self.named(op, await self.at(op).accept(op["session"], op["prompt"], **self.prompt(op)))

    async def do_submit(self, op: Op) -> Any:
        run = await self.at(op).submit(op["session"], op["prompt"], **self.prompt(op))
        self.submitted.add(run.run_id)
        return self.named(op, run)

    async def do_ask(self, op: Op) -> None:
        async def ask() -> Any:
            return plain(await self.at(op).ask(op["session"], op["prompt"], **self.prompt(op)))

        task = self.begin(op, ask())
        while self.on_ledger and not task.done():  # it takes its step before anything else comes
            if await self.at(op).find(op["run_id"]) is not None:
                break
            await asyncio.sleep(0.001)

    def begin(self, op: Op, call: Any) -> asyncio.Task[Any]:
        task = self.tasks[f"{len(self.tasks)} {op['do']} {op['run']}"] = asyncio.create_task(call)
        return task

    async def do_enter(self, op: Op) -> Any:
        run = self.runs[op["run"]]
        return str(await self.at(op).enter(run))

    async def do_close(self, op: Op) -> None:
        await self.runs[op["run"]].close()

    async def do_wait(self, op: Op) -> None:
        run_id = self.runs[op["run"]].run_id

        async def wait() -> Any:
            return plain(await self.at(op).wait(run_id))

        self.begin(op, wait())

    async def do_stream(self, op: Op) -> None:
        run = self.runs[op["run"]]

        async def stream() -> Any:
            return "".join([piece async for piece in run.stream(op["start"])])

        self.begin(op, stream())

    async def do_callback(self, op: Op) -> None:
        self.runs[op["run"]].add_done_callback(self.hook(f"callback of {op['run']}"))

    async def do_find(self, op: Op) -> Any:
        found = await self.asked(self.at(op).find(self.runs[op["run"]].run_id))
        if found is None:
            return None
        await asyncio.sleep(0)
        return [found.run_id, str(found.state), found.complete and plain(found.complete)]

    async def do_lead(self, op: Op) -> Any:
        lead = self.runs[op["run"]].lead
        return lead and lead.run_id

    async def do_subscribe(self, op: Op) -> None:
        await self.hear("subscription", self.at(op), op["session"], moves=op["moves"])

    async def do_completions(self, op: Op) -> Any:
        d = self.at(op)
        found = d.completions(None, until=await self.asked(d.end_cursor()))
        cursors = [cursor async for cursor, _ in found]
        return await self.completions(cursors[op["after"] % len(cursors)]) if cursors else []

    async def do_cancel(self, op: Op) -> Any:
        return covered(await self.at(op).cancel(op["session"], key=op.get("key")))

    async def do_cancel_run(self, op: Op) -> Any:
        run_id = self.runs[op["run"]].run_id if op["run"] in self.runs else "unknown"
        return covered(
            await self.at(op).cancel_run(run_id, waiting_only=op["waiting_only"], key=op.get("key"))
        )

    async def do_cancel_handle(self, op: Op) -> Any:
        return covered(await self.runs[op["run"]].cancel())

    async def do_cancel_all(self, op: Op) -> Any:
        return sorted(ids((await self.at(op).cancel_all(key=op.get("key"))).runs))

    async def do_clear_queue(self, op: Op) -> Any:
        return ids(await self.at(op).clear_queue(op["session"], key=op.get("key")))

    # The same over HTTP.

    async def call(self, method: str, path: str, **more: Any) -> Any:
        status, headers, body = await request(self.app, method, path, **more)
        shown = {name: headers[name] for name in HEADERS if name in headers}
        if headers.get("content-type", "").endswith("json"):
            data = json.loads(body)
            if "problem" in headers["content-type"] and not self.program.get("wording"):
                assert data.pop("title"), body
                assert "\n" not in data.pop("detail"), body
            if path == "/openapi.json" and status == 200:
                data = {
                    f"{method} {where}": sorted(each.get("responses", ()))
                    for where, methods in data["paths"].items()
                    for method, each in methods.items()
                    if isinstance(each, dict)
                }
            return status, shown, without_times(data)
        if path == "/metrics":
            return status, shown, re.findall("^[^#].*(?= )", body.decode(), re.MULTILINE)
        return status, shown, len(body) > 0

    async def http_submit(self, op: Op) -> Any:
        body = {"prompt": op["prompt"], "when_busy": op["when_busy"], "run_id": op.get("run_id")}
        if op.get("attached") == "text":
            body["attachments"] = [{"name": "a", "mime_type": "text/plain", "text": "a text"}]
        elif op.get("attached") == "bytes":
            body["attachments"] = [{"name": "a", "mime_type": "application/pdf", "base64": "AP8="}]
        status, headers, data = await self.call(
            "POST", f"/v1/sessions/{quote(op['session'], safe='')}/runs", json=body
        )
        if "run_id" in data:
            self.names.setdefault(data["run_id"], f"<{op['run']}>")
            self.runs[op["run"]] = await self.asked(self.dispatchers[0].find(data["run_id"]))
            self.submitted.add(data["run_id"])
        return status, headers, data

    async def http_cancel(self, op: Op) -> Any:
        return await self.call(
            "POST", f"/v1/sessions/{quote(op['session'], safe='')}/cancel", key=op.get("key")
        )

    async def http_cancel_run(self, op: Op) -> Any:
        run_id = self.runs[op["run"]].run_id if op["run"] in self.runs else "unknown"
        query = "?waiting_only=true" if op["waiting_only"] else ""
        return await self.call("POST", f"/v1/runs/{run_id}/cancel{query}", key=op.get("key"))

    async def http_clear_queue(self, op: Op) -> Any:
        return await self.call(
            "DELETE", f"/v1/sessions/{quote(op['session'], safe='')}/queue", key=op.get("key")
        )

    async def http_find(self, op: Op) -> Any:
        return await self.call("GET", f"/v1/runs/{self.runs[op['run']].run_id}")

    async def http_wait(self, op: Op) -> None:
        self.begin(op, self.call("GET", f"/v1/runs/{self.runs[op['run']].run_id}?wait=60"))

    async def http_get(self, op: Op) -> Any:
        status, headers, data = await self.call(op.get("method", "GET"), op["path"], **op.get("more", {}))
        if isinstance(data, dict) and "run_id" in data:
            self.names.setdefault(data["run_id"], f"<another, {len(self.names)}>")
            self.submitted.add(data["run_id"])
        return status, headers, data

    async def http_pages(self, op: Op) -> Any:
        """Read the messages of a session page by page."""
        pages, after = [], ""
        while True:
            path = f"/v1/sessions/{quote(op['session'], safe='')}/messages?limit={op['limit']}&after={after}"
            status, _, data = await self.call("GET", path)
            pages.append([status, data])
            after = data.get("next")
            if not after:
                return pages

    async def http_events(self, op: Op) -> None:
        """Open an event stream, from now on or behind an event of an earlier stream."""
        path = (
            "/v1/events" if op["session"] is None else f"/v1/sessions/{quote(op['session'], safe='')}/events"
        )
        headers = {}
        if op["after"] == "bogus":
            headers["last-event-id"] = "bogus"
        elif op["after"] is not None and self.streams:
            known = self.streams[op["after"] % len(self.streams)].completes()
            if known:
                headers["last-event-id"] = known[op["after"] % len(known)]
        stream = Stream(self.app, path, headers)
        self.streams.append(stream)
        await stream.began()

    # What is told of it.

    def transcript(self) -> Any:
        written = self.told["rows"]["message"] if self.on_ledger else self.told["messages"]
        for messages in written.values():
            for each in messages:
                run = self.names.get(each["run_id"], each["run_id"])
                self.names[each["id"]] = f"<{each['role']} message of {run}>"
        if not self.on_ledger:
            self.told["history"] = by_session(self.recorded)
        told = {
            "answers": self.answers,
            "turns": self.turns,
            "hooks": sorted(self.hooks, key=str) if self.on_ledger else self.hooks,
            "events": {name: self.in_order(events) for name, events in self.heard.items()},
            "streams": [self.in_order(stream.events) for stream in self.streams],
            **self.told,
        }
        return renamed(told, self.names)

    def in_order(self, events: list[Any]) -> Any:
        """Return events as they came; on a ledger by session, and what is relayed apart."""
        if not self.on_ledger:
            return events
        lanes: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            name, data = event if isinstance(event, list) else (event, {})
            lane = f"{data.get('session_id')}"
            if name in {"Delta", "Note", "delta", "note"}:
                lane += f" {name} of {data['run_id']}"
                if name.lower() == "delta":  # pieces may come joined
                    (start, text), *_ = lanes[lane] or [(data["offset"], "")]
                    hole = "" if start + len(text) == data["offset"] else f"<at {data['offset']}>"
                    lanes[lane] = [(start, text + hole + data["text"])]
                    continue
            lanes[lane].append(event)
        return dict(sorted(lanes.items()))


class Lines:
    """A text stream that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def writelines(self, lines: Any) -> None:
        self.lines += lines

    def by_session(self) -> Any:
        return by_session([json.loads(line) for line in self.lines])


def by_session(entries: list[Any]) -> Any:
    """Return the entries of a history by their sessions, which only some of them name."""
    session_of: dict[str, str] = {}
    lanes: dict[str, list[Any]] = defaultdict(list)
    for entry in entries:
        session = entry.get("session") or session_of.get(entry.get("run", ""), "")
        if "run" in entry:
            session_of[entry["run"]] = session
        lanes[session].append(entry)
    return dict(sorted(lanes.items()))


# HTTP without a network.


async def request(app: Any, method: str, path: str, **more: Any) -> tuple[int, dict[str, str], bytes]:
    """Make one call of an ASGI application."""
    headers, body = dict(more.get("headers", {})), more.get("body", "").encode()
    if "json" in more:
        body = json.dumps(more["json"]).encode()
        headers.setdefault("content-type", "application/json")
    if more.get("key"):
        headers["idempotency-key"] = more["key"]
    sent: list[Any] = []
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        return await asyncio.Event().wait()  # the client stays

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope_of(method, path, headers), receive, send)
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(each.get("body", b"") for each in sent[1:])


def scope_of(method: str, path: str, headers: dict[str, str]) -> Any:
    raw, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw),
        "raw_path": raw.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"testserver"), *((k.encode(), v.encode()) for k, v in headers.items())],
        "server": ("testserver", 80),
        "client": ("testclient", 1),
    }


class Stream:
    """An event stream that is read until the server ends it."""

    def __init__(self, app: Any, path: str, headers: dict[str, str]) -> None:
        self.events: list[Any] = []
        self._ids: list[tuple[str, str]] = []
        self._rest = ""
        self._begun, self._gone = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(app(scope_of("GET", path, headers), self._receive, self._send))

    async def _receive(self) -> Any:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.events.append(message["status"])
            return
        *frames, self._rest = (self._rest + message.get("body", b"").decode()).split("\n\n")
        for frame in frames:
            fields = dict(line.split(": ", 1) for line in frame.split("\n") if not line.startswith(":"))
            if "data" in fields:
                self.events.append([fields["event"], without_times(json.loads(fields["data"]))])
                self._ids.append((fields["event"], fields.get("id", "")))
        self._begun.set()

    async def began(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self._begun.wait()

    def completes(self) -> list[str]:
        """Return the ids of the RunCompletes."""
        return [identity for event, identity in self._ids if event == "run.complete"]

    async def close(self) -> None:
        self._gone.set()
        async with asyncio.timeout(PATIENCE):
            await self._task


# Values.


def ids(runs: Any) -> list[str]:
    return [run.run_id for run in runs]


def covered(answer: Any) -> Any:
    return ids(answer.runs), answer.known


def plain(value: Any) -> Any:
    return value._asdict()


def raised(error: BaseException) -> Any:
    return {"raised": type(error).__name__, "wording": str(error)}


def without_times(value: Any) -> Any:
    """Replace what is a matter of time or chance in an answer of the server."""
    if isinstance(value, dict):
        return {
            key: bool(each) if key in {"since", "cursor"} else without_times(each)
            for key, each in value.items()
        }
    return [without_times(each) for each in value] if isinstance(value, list) else value


def renamed(value: Any, names: dict[str, str]) -> Any:
    """Replace ids by their names, wherever they are in a text."""
    if not names:
        return value
    longest = sorted(names, key=len, reverse=True)
    known = re.compile("|".join(map(re.escape, longest)))

    def rename(text: str) -> str:
        return known.sub(lambda found: names[found.group()], text)

    def walk(each: Any) -> Any:
        if isinstance(each, str):
            return rename(each)
        if isinstance(each, dict):
            return {rename(str(key)): walk(below) for key, below in each.items()}
        return [walk(below) for below in each] if isinstance(each, list | tuple) else each

    return walk(value)


SKIPPED = {"meta", "worker", "epoch", "sqlite_sequence", "sqlite_stat1"}
CHANCE = {"token", "version", "fence", "step_id", "recent", "position", "ordinal", "number", "part"}
"""Columns whose values say nothing to others, or only by their order."""
PRESENT = {"accepted_at", "completed_at", "at", "since", "holder", "owner"}
"""Columns of which it matters whether there is a value."""


def rows(path: Path) -> Any:
    """Return what the tables of a ledger hold, each session's rows in their order."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        ]
        return {table: rows_of(connection, table) for table in sorted(tables) if table not in SKIPPED}


def rows_of(connection: sqlite3.Connection, table: str) -> Any:
    found = [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]
    columns = found[0].keys() if found else set()
    order = [each for each in ("position", "ordinal", "seq", "key", "session_id") if each in columns]
    found.sort(
        key=lambda row: [(row[each] is None, row[each] if row[each] is not None else 0) for each in order]
    )
    lanes: dict[str, list[Any]] = defaultdict(list)
    for row in found:
        if table == "operation_key":  # the digest of a run_id that was drawn
            row["request"] = row["request"].split()[0]
        lanes[str(row.get("session_id", ""))].append(
            {
                column: value is not None if column in PRESENT else value
                for column, value in row.items()
                if column not in CHANCE
            }
        )
    return dict(sorted(lanes.items()))


async def main() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    print(json.dumps({"version": turngate.__version__, "file": turngate.__file__}), flush=True)
    at_once = asyncio.Semaphore(AT_ONCE)

    async def play(number: int, program: Op) -> None:
        async with at_once:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    async with asyncio.timeout(60):
                        transcript = await World(program, Path(folder)).play()
                except Exception as wrong:
                    transcript = {"failed": f"{type(wrong).__name__}: {wrong}"}
        print(json.dumps([number, transcript], default=str), flush=True)

    await asyncio.gather(*(play(*json.loads(line)) for line in sys.stdin))


if __name__ == "__main__":
    asyncio.run(main())
