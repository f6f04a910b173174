"""The client as a runner sees it, and the questions that the runner has asked it.

A question is resolved exactly once: by the answer of the client, by the end of the connection, or, if it asks
for a permission, by a cancel of the turn, whichever comes first. The others are then ignored.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate._errors import TurngateError, WrongLoop
from turngate._prompt import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turngate._handles import Run

OPTIONS: Final = (
    {"optionId": "allow", "name": "Allow", "kind": "allow_once"},
    {"optionId": "reject", "name": "Reject", "kind": "reject_once"},
)
"""What a user may choose from, unless the runner says otherwise."""
_NOT_GRANTED: Final = {"outcome": {"outcome": "cancelled"}}


class PeerError(TurngateError):
    """The client has answered with an error, whose code and data are here, or it is gone (`code` is None)."""

    def __init__(self, message: str, code: int | None = None, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.data = data


class Prompt:
    """A prompt that the client sent and that is not answered yet."""

    def __init__(self, number: str | int | None, session_id: str) -> None:
        self.number = number
        self.session_id = session_id
        self.run: Run | None = None
        self.is_known = asyncio.Event()
        """Set when it is known whether there is a run."""
        self.has_begun = asyncio.Event()
        """Set when the client may be asked something about the turn: it comes after what was shown before."""

    def is_over(self) -> bool:
        """Return whether the turn has ended, or a cancel covers it."""
        turn = None if self.run is None else self.run.turn
        return turn is None or turn.covered


class _Question(NamedTuple):
    prompt: Prompt
    method: str
    answer: asyncio.Future[Any]


class Questions:
    """Questions that are not resolved. `send` gives a message to the client, unless it is withdrawn."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._asked: dict[int, _Question] = {}
        self._last = 0
        self._is_over = False
        self._loop = asyncio.get_running_loop()

    async def ask(self, prompt: Prompt, method: str, params: dict[str, Any]) -> Any:
        """Ask the client, after everything that the turn has written and noted up to now."""
        self.check_loop()
        params = decode(encode(params, "a request to the client"))
        await prompt.has_begun.wait()
        await asyncio.sleep(0)  # whatever was written has been taken up by then
        if self._is_over:
            raise PeerError("the client has disconnected")
        self._last += 1
        number, answer = self._last, asyncio.get_running_loop().create_future()
        self._asked[number] = _Question(prompt, method, answer)
        self._send({"id": number, "method": method, "params": params})
        try:
            return await answer
        finally:
            del self._asked[number]

    def check_loop(self) -> None:
        """Raise WrongLoop on any loop but the server's: an answer could not wake what waits there."""
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoop(
                "the client was asked outside of the server's event loop; from another thread, use "
                "asyncio.run_coroutine_threadsafe(client.permission(...), loop)"
            )

    def is_open(self, message: dict[str, Any]) -> bool:
        """Return whether a message of `ask` still needs an answer."""
        question = self._asked.get(message["id"])
        return question is not None and not question.answer.done()

    def take(self, message: dict[str, Any]) -> None:
        """Take what the client answers; an answer that comes too late is ignored."""
        number = message.get("id")
        question = self._asked.get(number) if isinstance(number, int) else None
        if question is None or question.answer.done():
            return
        error = message.get("error")
        if error is None:
            question.answer.set_result(message.get("result"))
        else:
            about: dict[str, Any] = error if isinstance(error, dict) else {}
            said = f"the client has answered {question.method} with an error: {about.get('message')}"
            question.answer.set_exception(PeerError(said, about.get("code"), about.get("data")))

    def resolve_covered(self) -> None:
        """Resolve what turns have asked that have ended or are cancelled: no permission is granted there."""
        for question in self._asked.values():
            if question.answer.done() or not question.prompt.is_over():
                continue
            if question.method == "session/request_permission":
                question.answer.set_result(_NOT_GRANTED)
            elif self._is_over:
                question.answer.set_exception(PeerError("the client has disconnected"))

    def end(self) -> None:
        """Refuse further questions, because the client has disconnected. The turns will be cancelled."""
        self._is_over = True
        self.resolve_covered()


class Peer:
    """The client, as the runner of a turn sees it.

    session_id    the session of the prompt
    cwd           the folder in which the client works, an absolute path
    mcp_servers   the MCP servers that the client wants the agent to use, as it described them
    capabilities  what the client can do, as it said when it connected
    """

    def __init__(
        self,
        questions: Questions,
        prompt: Prompt,
        cwd: str,
        mcp_servers: Sequence[Any],
        capabilities: dict[str, Any],
    ) -> None:
        self.session_id = prompt.session_id
        self.cwd = cwd
        self.mcp_servers = mcp_servers
        self.capabilities = capabilities
        self._questions = questions
        self._prompt = prompt

    async def request(self, method: str, /, **params: Any) -> Any:
        """Ask the client something about this session, for example `fs/read_text_file`; return its result.

        The client receives the question after everything that the turn has written and noted so far. Raises
        PeerError if it answers with an error, or is gone, and TypeError if the parameters are not JSON. If
        the turn is cancelled meanwhile, so is the runner; a clean-up may still ask and be answered.
        """
        return await self._questions.ask(self._prompt, method, {"sessionId": self.session_id, **params})

    async def permission(
        self, tool_call: dict[str, Any], options: Sequence[dict[str, Any]] = OPTIONS
    ) -> str | None:
        """Ask the user about a tool call; return the `optionId` that was selected.

        Returns None if none was selected, also when the turn is cancelled: then do not run the tool.
        `tool_call` has at least the `toolCallId`.
        """
        self._questions.check_loop()
        await self._prompt.is_known.wait()
        if self._prompt.is_over():
            return None
        said = await self.request("session/request_permission", toolCall=tool_call, options=[*options])
        outcome = said.get("outcome") if isinstance(said, dict) else None
        if not isinstance(outcome, dict) or outcome.get("outcome") != "selected":
            return None
        selected = outcome.get("optionId")
        return selected if selected in [option["optionId"] for option in options] else None


_PEER: ContextVar[Peer] = ContextVar("turngate acp peer")


def peer() -> Peer:
    """Return the client whose prompt leads this turn; raise LookupError if it did not come over ACP."""
    try:
        return _PEER.get()
    except LookupError:
        raise LookupError(
            "this turn has no client: its prompt did not come over the Agent Client Protocol, or it came to "
            "a process that has ended"
        ) from None


@contextlib.contextmanager
def accepting_for(client: Peer) -> Iterator[None]:
    """Make this the client of the turns whose prompts are accepted meanwhile."""
    token = _PEER.set(client)
    try:
        yield
    finally:
        _PEER.reset(token)
