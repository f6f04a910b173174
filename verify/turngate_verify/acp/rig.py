"""An agent, the stub model that it asks, and the prompts that are on their way between the two."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from turngate_verify.acp.agent import OF_A_TURN, Agent, Permission, Request
from turngate_verify.acp.providers import Tool, marked, markers_in
from turngate_verify.acp.stub import ModelCall, StubModel
from turngate_verify.acp.surroundings import environment, made_home

_SHELL = re.compile(r"bash|shell|command|terminal|exec|script", re.IGNORECASE)
_COMMANDS = ("command", "cmd", "script")


class Setting(NamedTuple):
    """How an agent is started."""

    command: tuple[str, ...]
    stub_port: int = 0
    has_stub: bool = True
    home: Path | None = None
    """Settings that the agent finds in its home."""
    starts: float = 60.0
    """Seconds for the process to start, and to open a session."""
    grace: float = 10.0
    """Seconds for everything else that is owed."""
    quiet: float = 0.05
    """So much silence is rest."""


class Prompt:
    """One prompt, the response to it, and the calls of the model that its turn makes."""

    def __init__(self, name: str, number: int, session: str) -> None:
        self.name = name
        self.number = number
        self.session = session
        self.calls: list[ModelCall] = []
        self.has_called = asyncio.Event()
        self.request = Request("session/prompt")
        self.on_call: Callable[[ModelCall], None] = lambda call: None

    @property
    def is_answered(self) -> bool:
        """Whether a response has come."""
        return self.request.is_answered.is_set()

    @property
    def open_calls(self) -> list[ModelCall]:
        """The calls that are neither answered nor given up."""
        return [call for call in self.calls if call.is_open]

    @property
    def reply(self) -> str:
        """What the model answers to it."""
        return f"the answer to {marked(self.number)}"

    def release(self) -> None:
        """End every call that is open, and every call that is still to come."""
        self.on_call = lambda call: call.finish(self.reply)
        for call in self.open_calls:
            call.finish(self.reply)


class Rig:
    """Sends prompts, hears updates, and knows whose turn calls the model."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.stub = StubModel(self._called)
        self.folder = Path(tempfile.mkdtemp(prefix="turngate-acp-"))
        self.prompts: dict[int, Prompt] = {}
        self.late: dict[str, list[str]] = {}
        """For each session, the updates of a turn that came when every prompt had been answered."""
        self.texts: dict[str, str] = {}
        self.updates: dict[str, set[str]] = {}
        """For each session, the kinds of updates that have come."""
        self.changed = asyncio.Event()
        """Set when a call, an update or a permission has come."""
        self.permissions: list[Permission] = []
        self.holds_permissions = False
        self.agent = Agent((), {}, self.folder)
        self._first: ModelCall | None = None
        """The first call of a turn."""
        self._numbers = itertools.count(1)
        self._of_session: dict[str, list[Prompt]] = {}

    async def start(self) -> None:
        """Start the stub and the agent. Raises OSError or AgentGone."""
        environ: dict[str, str] = dict(os.environ)
        if self.setting.has_stub:
            await self.stub.listen(self.setting.stub_port)
            home = made_home(self.folder, self.setting.home, self.stub.url)
            environ = environment(self.stub.url, home)
        work = self.folder / "work"
        work.mkdir()
        self.agent = Agent(self.setting.command, environ, work)
        self.agent.updated = self._updated
        self.agent.asked = self._permission
        await self.agent.start(self.setting.starts)

    async def stop(self) -> None:
        """Stop both, and remove the folder."""
        await self.agent.stop()
        await self.stub.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # Prompts.

    async def open_session(self) -> str:
        """Open a session."""
        session = await self.agent.open_session(self.setting.starts)
        self._of_session[session] = []
        return session

    def prompt(self, session: str, name: str, on_call: Callable[[ModelCall], None]) -> Prompt:
        """Send a prompt; ``on_call`` hears of every call of the model for it."""
        prompt = Prompt(name, next(self._numbers), session)
        prompt.on_call = on_call
        self.prompts[prompt.number] = prompt
        self._of_session.setdefault(session, []).append(prompt)
        text = marked(prompt.number)
        if not self.setting.has_stub:
            text += ": answer with the one word hello, and use no tools"
        prompt.request = self.agent.prompt(session, text)
        return prompt

    def forget(self, prompts: Iterable[Prompt]) -> None:
        """Forget the prompts that are over. Their calls are answered at once from now on."""
        for prompt in prompts:
            prompt.release()

    def foreign_text(self, session: str) -> list[int]:
        """Return the prompts of other sessions whose answers a session was shown."""
        return [
            number
            for number in markers_in(self.texts.get(session, ""))
            if number in self.prompts and self.prompts[number].session != session
        ]

    def _called(self, call: ModelCall) -> None:
        known = [self.prompts[number] for number in call.asked.markers if number in self.prompts]
        if not known:
            call.finish("ok")
            return
        prompt = known[-1]
        if self._is_aside(prompt, call):
            call.finish("{}" if call.asked.wants_json else "ok")
            return
        self._first = self._first or call
        prompt.calls.append(call)
        prompt.on_call(call)
        prompt.has_called.set()
        self.changed.set()

    def _is_aside(self, prompt: Prompt, call: ModelCall) -> bool:
        """Tell whether a call is made beside a turn, or behind it, and offers other tools than the turn does.

        It asks, for example, whether a command is safe, or what to remember.
        """
        if prompt.calls:
            return not _offers_the_same(call, prompt.calls[0])
        return prompt.is_answered and self._first is not None and not _offers_the_same(call, self._first)

    def _updated(self, session: str, update: dict[str, Any]) -> None:
        kind = str(update.get("sessionUpdate"))
        self.updates.setdefault(session, set()).add(kind)
        self.changed.set()
        content = update.get("content")
        if kind == "agent_message_chunk" and isinstance(content, dict):
            self.texts[session] = self.texts.get(session, "") + str(content.get("text", ""))
        prompts = self._of_session.get(session, [])
        if kind in OF_A_TURN and prompts and all(each.is_answered for each in prompts):
            self.late.setdefault(session, []).append(kind)

    # Permissions.

    def _permission(self, permission: Permission) -> bool:
        self.changed.set()
        if self.holds_permissions:
            self.permissions.append(permission)
        return self.holds_permissions

    def cancel(self, session: str) -> None:
        """Cancel a session, and answer what it asks as the protocol wants it: cancelled."""
        self.agent.cancel(session)
        for permission in [each for each in self.permissions if each.session == session]:
            self.permissions.remove(permission)
            self.agent.permit(permission, cancelled=True)


def _offers_the_same(call: ModelCall, first: ModelCall) -> bool:
    """Tell whether a call offers much the same tools as another one."""
    one, other = ({tool.name for tool in each.asked.tools} for each in (call, first))
    return 2 * len(one & other) >= len(one | other)


def shell_tool(tools: Sequence[Tool], command: str) -> tuple[str, dict[str, Any]] | None:
    """Return a call of the tool that runs a command, if the agent offers one that the kit knows."""
    for tool in tools:
        known = tool.schema.get("properties")
        if not _SHELL.search(tool.name) or not isinstance(known, dict):
            continue
        takes = next((name for name in _COMMANDS if name in known), None)
        if takes is None:
            continue
        needed = tool.schema.get("required")
        others = [name for name in needed if name != takes] if isinstance(needed, list) else []
        return tool.name, {takes: command} | {name: _any_value(known.get(name)) for name in others}
    return None


def _any_value(schema: object) -> Any:
    kind = schema.get("type") if isinstance(schema, dict) else None
    values = {"boolean": False, "integer": 60000, "number": 60000, "array": [], "object": {}}
    return values.get(str(kind).lower(), "a test")
