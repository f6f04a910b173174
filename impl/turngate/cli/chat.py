"""``turngate chat``: a session with a served agent, in the terminal."""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path

import click

from turngate import Delta, Moved, RunComplete, State, TurngateError
from turngate.cli.screen import PlainScreen, TerminalScreen
from turngate.cli.targets import read_token
from turngate.client import Client, EventStream, Gap, RemoteEvent, Snapshot

_SHOWN = 30
"""Characters of a waiting prompt that are shown."""


@click.command()
@click.argument("url")
@click.option("--session", default="chat", show_default=True, help="The session to talk in.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with the token for the server.",
)
def chat(url: str, session: str, token_file: Path | None) -> int:
    """Talk to a served agent in the terminal: URL is where the server is.

    Enter sends: while a turn runs, the prompt joins it if the agent asks for
    follow-ups, or waits. Escape cancels what the session has in flight. Ctrl-D
    leaves; what was sent goes on. Without a terminal, a line of standard input
    is a prompt and an empty one cancels; it ends when everything is answered.
    """
    if not url.startswith(("http://", "https://")):
        raise click.UsageError(f"{url!r} is no address; give one like http://127.0.0.1:8765")
    token = None if token_file is None else read_token(token_file)
    try:
        asyncio.run(_chat(url, session, token))
    # Tests reach what follows, but are not seen to: when anyio connects, Python 3.11 tells a tracer twice
    # that a coroutine returns, and the tracer loses its place in what called the loop.
    except TurngateError as wrong:  # pragma: no cover - see above
        raise click.ClickException(str(wrong)) from None
    return 0  # pragma: no cover - see above


async def _chat(url: str, session_id: str, token: str | None) -> None:
    async with Client(url, token, patience=5.0) as client:
        await client.session(session_id)  # or say at once why that cannot be
        if sys.stdin.isatty() and sys.stdout.isatty():
            screen = TerminalScreen()
            async with screen.open():
                screen.show(f"Talking in session {session_id}. Enter sends, Escape cancels, Ctrl-D leaves.\n")
                await Chat(client, session_id, screen).go_on()
        else:
            await Chat(client, session_id, PlainScreen()).go_on(to_the_end=True)


class Chat:
    """One session, shown on a screen."""

    def __init__(self, client: Client, session_id: str, screen: PlainScreen | TerminalScreen) -> None:
        self._client = client
        self._session_id = session_id
        self._screen = screen
        self._sent: dict[str, str] = {}
        """The prompts sent here whose runs are not complete, by run_id."""
        self._waiting: set[str] = set()
        self._active = False
        self._quiet = asyncio.Event()
        self._at_line_start = True

    async def go_on(self, *, to_the_end: bool = False) -> None:
        """Send what is typed and show what is said, until nothing more is typed; or all is answered, too."""
        events = self._client.events(self._session_id)
        await anext(events)
        hearing = asyncio.create_task(self._hear(events))
        try:
            async for line in self._screen.lines():
                await (self._cancel() if line is None else self._send(line))
            while to_the_end and self._sent:
                self._quiet.clear()
                await self._quiet.wait()
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

    async def _cancel(self) -> None:
        try:
            if not await self._client.cancel(self._session_id):
                self._say("-- nothing to cancel\n")
        except TurngateError as wrong:
            self._say(f"-- not cancelled: {wrong}\n")

    async def _hear(self, events: EventStream) -> None:
        while True:
            try:
                self._take(await anext(events))
            except TurngateError as wrong:
                self._say(f"-- nothing more is heard of this session: {wrong}\n")
                self._forget()  # how they end will not be known here
                return
            self._tell()

    def _take(self, event: RemoteEvent) -> None:
        match event:
            case Delta():
                self._active = True
                self._screen.show(event.text)
                self._at_line_start = event.text.endswith("\n")
            case Moved(event="enter", run_id=str(run_id)):
                self._active = self._active or event.state is State.ACTIVE
                if event.state is State.QUEUED:
                    self._waiting.add(run_id)
            case Moved(run_id=str(run_id)):
                self._waiting.discard(run_id)
            case RunComplete():
                self._complete(event)
            case Snapshot(reset=True):
                self._say("-- the server was restarted: how earlier prompts ended is unknown\n")
                self._forget()
            case Gap():
                self._say("-- some text was skipped\n")

    def _complete(self, complete: RunComplete) -> None:
        prompt = self._sent.pop(complete.run_id, None)
        self._waiting.discard(complete.run_id)
        self._active = self._active and complete.folded_into is not None
        if complete.folded_into is None:
            about = "" if prompt is None else f" ({_short(prompt)})"
            how = complete.error if complete.outcome == "failed" else complete.outcome
            self._say(f"-- {how}{about}\n")
        if not self._sent:
            self._quiet.set()

    def _forget(self) -> None:
        self._sent.clear()
        self._waiting.clear()
        self._active = False
        self._quiet.set()

    def _say(self, text: str) -> None:
        """Show something that is not the agent's, on a line of its own."""
        self._screen.show(text if self._at_line_start else f"\n{text}")
        self._at_line_start = True

    def _tell(self) -> None:
        """Show what waits."""
        what = ["a turn runs" if self._active else "idle"]
        waiting = [_short(prompt) for run_id, prompt in self._sent.items() if run_id in self._waiting]
        if self._waiting:
            what.append(f"{len(self._waiting)} waiting{': ' if waiting else ''}{', '.join(waiting)}")
        self._screen.status(" · ".join(what))


def _short(prompt: str) -> str:
    return prompt if len(prompt) <= _SHOWN else f"{prompt[: _SHOWN - 1]}…"
