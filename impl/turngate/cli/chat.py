"""``turngate chat``: a session with a served agent, in the terminal."""

from __future__ import annotations

import asyncio
import sys
import uuid
from contextlib import suppress
from pathlib import Path

import click

from turngate import Delta, Moved, RunComplete, State, TurngateError
from turngate.cli.screen import PlainScreen, TerminalScreen
from turngate.cli.targets import read_token
from turngate.client import Client, EventStream, Gap, RemoteEvent, Snapshot
from turngate.client._client import is_address

_SHOWN = 30
"""Characters of a waiting prompt that are shown."""
_COMMANDS = ("/stop", "/hold", "/resume", "/queue")
"""The lines that are commands."""


@click.command()
@click.argument("url")
@click.option("--session", default="chat", show_default=True, help="The session to talk in.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token for the server.",
)
@click.option(
    "--twice-within",
    type=click.FloatRange(0.05, 3600.0),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds within which a second Escape stops the turn and holds what waits.",
)
def chat(url: str, session: str, token_file: Path | None, twice_within: float) -> int:
    """Talk to a served agent in the terminal: URL is where the server is.

    Enter sends: while a turn runs, the prompt joins it if the agent asks for
    follow-ups, or waits. Escape cancels everything in flight in the session. Escape pressed twice stops the
    turn and holds the waiting prompts until /resume. Ctrl-D leaves; prompts that were sent still run. Without
    a terminal, each line of standard input is a prompt, an empty line cancels, and the command ends when
    every prompt is answered.

    Four lines are commands: /stop does the same as Escape twice, /hold holds the waiting prompts, /resume
    lets them go on, and /queue lists them.
    """
    _check_address(url, session)
    token = None if token_file is None else read_token(token_file)
    try:
        asyncio.run(_chat(url, session, token, twice_within))
    # Tests reach what follows, and coverage does not see it: Python 3.11 tells a tracer twice that a
    # coroutine returned when anyio connects, and the tracer loses its place.
    except TurngateError as wrong:  # pragma: no cover - see above
        raise click.ClickException(str(wrong)) from None
    return 0  # pragma: no cover - see above


def _check_address(url: str, session_id: str) -> None:
    """Raise unless there are addresses for the server and the session."""
    if not is_address(url):
        raise click.UsageError(f"{url!r:.80} is not an address; give one like http://127.0.0.1:8765")
    if session_id in ("", ".", "..") or not is_address(f"{url}/v1/sessions/", session_id):
        raise click.UsageError(f"--session {session_id!r:.80} cannot be part of an address")


async def _chat(url: str, session_id: str, token: str | None, twice_within: float) -> None:
    async with Client(url, token, patience=5.0) as client:
        await client.session(session_id)  # or say at once why that cannot be
        if sys.stdin.isatty() and sys.stdout.isatty():
            screen = TerminalScreen()
            async with screen.open():
                keys = "Enter sends, Escape cancels, Escape twice stops and keeps what waits, Ctrl-D leaves."
                screen.show(f"Talking in session {session_id}. {keys}\n")
                await Chat(client, session_id, screen, twice_within).go_on()
        else:
            await Chat(client, session_id, PlainScreen(), 0.0).go_on(to_the_end=True)


class Chat:
    """One session, shown on a screen.

    An Escape immediately stops the turn and holds what waits. If no second one follows within `twice_within`
    seconds, it was a cancel, and the prompts that still wait are cancelled. If the server or this program
    goes away in between, these prompts stay held, and nothing is lost. With 0 seconds an Escape is one plain
    cancel.
    """

    def __init__(
        self, client: Client, session_id: str, screen: PlainScreen | TerminalScreen, twice_within: float
    ) -> None:
        self._client = client
        self._session_id = session_id
        self._screen = screen
        self._twice_within = twice_within
        self._pressed: asyncio.Queue[bool] | None = None
        """Resolved by a second Escape, as long as one can follow the first."""
        self._deciding: asyncio.Task[None] | None = None
        """Waits for the second Escape, and cancels if none has come."""
        self._sent: dict[str, str] = {}
        """The prompts sent here whose runs are not complete, by run_id."""
        self._waiting: dict[str, bool] = {}
        """The runs that wait, and whether they are held."""
        self._lead: str | None = None
        """The run that leads the turn, if one runs."""
        self._changed = asyncio.Event()
        self._at_line_start = True

    async def go_on(self, *, to_the_end: bool = False) -> None:
        """Send what is typed and show what is said until the input ends, or also until all is answered."""
        events = self._client.events(self._session_id)
        self._take(await anext(events))
        hearing = asyncio.create_task(self._hear(events))
        try:
            self._tell()
            async for line in self._screen.lines():
                await self._do(line)
            if self._pressed is not None:
                self._pressed.put_nowait(False)
            if self._deciding is not None:
                await self._deciding
            while to_the_end and not all(self._waiting.get(run_id, False) for run_id in self._sent):
                self._changed.clear()
                await self._changed.wait()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            await events.aclose()

    async def _send(self, prompt: str) -> None:
        self._say(f"> {prompt}\n")
        run_id = f"run-{uuid.uuid4().hex}"
        self._sent[run_id] = prompt  # before it is sent: its RunComplete may come before the answer
        try:
            await self._client.submit(self._session_id, prompt, run_id=run_id)
        except TurngateError as refused:
            self._sent.pop(run_id, None)
            self._say(f"-- refused: {refused}\n")
        self._tell()

    async def _do(self, line: str | None) -> None:
        if line is None:
            await (self._escape() if self._twice_within else self._cancel())
        elif line.strip() in _COMMANDS:
            await self._command(line.strip())
        else:
            await self._send(line)

    async def _cancel(self) -> None:
        try:
            if not await self._client.cancel(self._session_id):
                self._say("-- nothing to cancel\n")
        except TurngateError as wrong:
            self._say(f"-- not cancelled: {wrong}\n")

    # Escape, once or twice.

    async def _escape(self) -> None:
        """Stop and hold; or, if that was just done, keep what it has held."""
        if self._pressed is not None:
            self._pressed.put_nowait(True)
            return
        try:
            stopped = await self._client.stop(self._session_id)
        except TurngateError as wrong:
            self._say(f"-- not cancelled: {wrong}\n")
            return
        if not (stopped.covered or stopped.waiting):
            self._say("-- nothing to cancel\n")
            return
        self._pressed = asyncio.Queue()
        self._deciding = asyncio.create_task(self._decide(stopped.waiting, self._pressed))
        self._tell()

    async def _decide(self, waiting: list[str], pressed: asyncio.Queue[bool]) -> None:
        """Wait for a second Escape (True) or the end of the chat (False); without one, cancel what waits.

        Further Escapes that follow at once mean the same as the second.
        """
        kept = False
        with suppress(TimeoutError):
            while await asyncio.wait_for(pressed.get(), self._twice_within):
                if not kept:
                    self._say_kept(waiting)
                kept = True
        self._pressed = None
        if not kept:
            await self._take_back(waiting)
        self._tell()

    async def _take_back(self, waiting: list[str]) -> None:
        """Cancel what still waits after a stop, except runs that were resumed meanwhile."""
        for run_id in waiting:
            try:
                await self._client.cancel_run(run_id, waiting_only=True)
            except TurngateError as wrong:
                self._say(f"-- not everything is cancelled; the rest is held until /resume: {wrong}\n")
                return

    def _say_kept(self, waiting: list[str]) -> None:
        kept = f"{len(waiting)} held until /resume" if waiting else "nothing waits"
        self._say(f"-- stopped; {kept}\n")

    # Commands.

    async def _command(self, name: str) -> None:
        self._say(f"> {name}\n")
        try:
            match name:
                case "/stop":
                    await self._stop()
                case "/hold":
                    self._say(f"-- held: {len(await self._client.hold(self._session_id))}\n")
                case "/resume":
                    self._say(f"-- resumed: {len(await self._client.resume(self._session_id))}\n")
                case _:
                    await self._list()
        except TurngateError as wrong:
            self._say(f"-- refused: {wrong}\n")

    async def _stop(self) -> None:
        stopped = await self._client.stop(self._session_id)
        if stopped.covered or stopped.waiting:
            self._say_kept(stopped.waiting)
        else:
            self._say("-- nothing to stop\n")

    async def _list(self) -> None:
        view = await self._client.session(self._session_id)
        runs = {run.run_id: run for run in (*view.accepted, *view.queued)}
        for place, run_id in enumerate(view.waiting, 1):
            held = " (held)" if runs[run_id].held else ""
            self._say(f"{place:>3}. {_short(runs[run_id].prompt)}{held}\n")
        if not view.waiting:
            self._say("-- nothing waits\n")

    async def _hear(self, events: EventStream) -> None:
        while True:
            try:
                self._take(await anext(events))
            except TurngateError as wrong:
                self._say(f"-- this session has no more events: {wrong}\n")
                self._forget()  # how they end will not be known here
                return
            self._tell()

    def _take(self, event: RemoteEvent) -> None:
        self._changed.set()
        match event:
            case Delta():
                self._lead = event.run_id
                self._screen.show(event.text)
                self._at_line_start = event.text.endswith("\n")
            case Moved(event="accept", run_id=str(run_id)):
                self._waiting[run_id] = False
            case Moved(event="enter" | "fold" | "handoff", run_id=str(run_id)):
                if event.state is not State.QUEUED:
                    self._waiting.pop(run_id, None)
                if event.state is State.ACTIVE or event.event == "handoff":
                    self._lead = run_id
            case Moved(event="hold" | "resume"):
                for run_id in [*self._waiting] if event.runs is None else event.runs:
                    self._waiting[run_id] = event.event == "hold"
            case RunComplete():
                self._complete(event)
            case Snapshot():
                if event.reset:
                    self._say("-- the server has restarted: how earlier prompts ended is unknown\n")
                    self._forget()
                self._look(event)
            case Gap():
                self._say("-- some text was skipped\n")

    def _look(self, snapshot: Snapshot) -> None:
        """Remember what runs and what waits."""
        self._lead, self._waiting = None, {}
        for view in snapshot.sessions:
            self._lead = None if view.active is None else view.active.run_id
            runs = {run.run_id: run.held for run in (*view.accepted, *view.queued)}
            self._waiting = {run_id: runs[run_id] for run_id in view.waiting}

    def _complete(self, complete: RunComplete) -> None:
        prompt = self._sent.pop(complete.run_id, None)
        self._waiting.pop(complete.run_id, None)
        if self._lead == complete.run_id:
            self._lead = None
        if complete.folded_into is None:
            about = "" if prompt is None else f" ({_short(prompt)})"
            how = complete.error if complete.outcome == "failed" else complete.outcome
            self._say(f"-- {how}{about}\n")

    def _forget(self) -> None:
        self._sent.clear()
        self._waiting.clear()
        self._lead = None
        self._changed.set()

    def _say(self, text: str) -> None:
        """Show a notice, which is not the agent's text, on a line of its own."""
        self._screen.show(text if self._at_line_start else f"\n{text}")
        self._at_line_start = True

    def _tell(self) -> None:
        """Show what runs and what waits."""
        what = ["idle" if self._lead is None else "a turn runs"]
        if self._waiting:
            held = sum(self._waiting.values())
            prompts = [_short(self._sent[run_id]) for run_id in self._waiting if run_id in self._sent]
            count = f"{len(self._waiting)} waiting{f', {held} held' if held else ''}"
            what.append(f"{count}{': ' if prompts else ''}{', '.join(prompts)}")
        if self._pressed is not None:
            what.insert(1, "Escape again keeps what waits")
        self._screen.status(" · ".join(what))


def _short(prompt: str) -> str:
    return prompt if len(prompt) <= _SHOWN else f"{prompt[: _SHOWN - 1]}…"
