"""Calls to a server over connections that break: when to send a call again, and what an answer raises.

A call that only reads can be sent again at any time. A call that changes something has a key, under which the
server carries it out once. A key protects only as long as the server remembers it, so these rules hold:

1. If no connection was made, nothing was sent, and the call can be sent as if for the first time.
2. If the answer was lost, or a proxy answered 502, 503 or 504, the call may have been carried out. It is sent
   again under the same key, with the name of the life in which the server remembers keys, as it was known
   before the call was first sent. A server of another life that does not know the key does nothing, and
   answers `outcome-unknown`.
3. If that life is not known, there is no patience left, or something other than the server answered 408 or
   another 5xx, OutcomeUnknown is raised.

A caller may repeat a call itself, under a key that it chose: it is sent with the life of the first call, too.

A prompt is sent again under its run_id in any life: if a server without a ledger was restarted, the run that
it may have accepted died with it. A prompt that interrupts is bound to a life, because it cancels other runs.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import httpx2

import turngate
from turngate import DispatcherClosed, OutcomeUnknown, TurngateError

_BY_NAME: Final = {
    "empty-prompt": turngate.EmptyPrompt,
    "key-conflict": turngate.KeyConflict,
    "not-running": turngate.NotRunning,
    "outcome-unknown": turngate.OutcomeUnknown,
    "queue-full": turngate.QueueFull,
    "run-conflict": turngate.RunConflict,
    "session-busy": turngate.SessionBusy,
    "shutting-down": turngate.DispatcherClosed,
    "unknown-run": turngate.UnknownRun,
}
"""The exception for each problem that has one of its own."""
_TYPE: Final = "urn:turngate:problem:"
"""The type of every problem that a Turngate server reports begins like this."""
_OF_ANOTHER: Final = "unknown"
"""The name of a refusal from a proxy, or from the application around a Turngate server."""
_KEY_LIFE: Final = "turngate-key-life"
_NOTHING_WAS_SENT: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
_OF_PROXIES: Final = (502, 503, 504)
_IN_DOUBT: Final = (408, *range(500, 600))
_OF_THE_REQUEST: Final = ("malformed", "invalid", "unsupported-media-type", "too-large")
"""Refusals that the same request receives every time: it was never carried out."""
_REMEMBERED: Final = 1_000
"""Keys whose life a client remembers."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Refused(TurngateError):
    """The server refused the call; `name` says why, for programs, and `status` is the HTTP status."""

    def __init__(self, status: int, name: str, detail: str) -> None:
        super().__init__(f"{status} {name}: {detail}")
        self.status = status
        self.name = name


class Unreachable(TurngateError):
    """The server could not be reached in time. A call that changes something was not carried out."""


class Calls:
    """Makes calls, and repeats them for `patience` seconds while connections break."""

    def __init__(self, http: httpx2.AsyncClient, patience: float) -> None:
        self.patience = patience
        self._http = http
        self._key_life: str | None = None
        """The server's key life, from its last answer."""
        self._lives: dict[str, str] = {}
        """The key life for which each of the last keys was first sent; its caller may use it again later."""

    async def look(self, path: str, **more: Any) -> Any:
        """Make a call that changes nothing."""
        return await self._call("GET", path, None, changes=False, bound=False, **more)

    async def change(
        self, method: str, path: str, *, key: str | None, bound: bool = True, **more: Any
    ) -> Any:
        """Make a call that changes something, once; a `bound` one is never carried out in a second life.

        Raises OutcomeUnknown if the call may have been carried out and its answer is lost.
        """
        return await self._call(method, path, key, changes=True, bound=bound, **more)

    async def _call(
        self, method: str, path: str, key: str | None, *, changes: bool, bound: bool, **more: Any
    ) -> Any:
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + self.patience, _FIRST_PAUSE
        earlier = self._lives.get(key or "") if bound else None
        life = earlier or (self._key_life if bound else None)
        in_doubt = earlier is not None  # whether it may have been carried out
        while True:
            error: TurngateError
            if bound:
                self._remember(key, life)
            try:
                response = await self._http.request(method, path, headers=_headers(key, life), **more)
            except (httpx2.TransportError, httpx2.DecodingError) as lost:
                error = Unreachable(
                    f"no answer within {self.patience:g} s: {str(lost) or type(lost).__name__}"
                )
                error.__cause__ = lost
                in_doubt = in_doubt or (changes and not isinstance(lost, _NOTHING_WAS_SENT))
                if not in_doubt:
                    self._lives.pop(key or "", None)
            else:
                self._key_life = response.headers.get(_KEY_LIFE, self._key_life)
                answer, refused = _read(response)
                if refused is None:
                    if bound and life is None:
                        self._remember(key, self._key_life)
                    return answer
                error = refused
                if isinstance(error, OutcomeUnknown):
                    another = response.headers.get(_KEY_LIFE)
                    if in_doubt or life is None or another in (None, life):
                        raise error
                    life = another  # it has done nothing, and neither has a server before it
                elif _is_lost(error):
                    in_doubt = in_doubt or changes
                elif not _may_pass(error, method):
                    in_doubt = in_doubt or (changes and _may_come_after(error))
                    if in_doubt and not _is_answer(error):
                        raise _unknown(method, path) from error
                    if earlier is None:
                        self._lives.pop(key or "", None)
                    raise error
            if in_doubt and bound and life is None:
                raise _unknown(method, path) from error
            if loop.time() + pause > until:
                if in_doubt:
                    raise _unknown(method, path) from error
                raise error
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _remember(self, key: str | None, life: str | None) -> None:
        """Remember for which life the key is sent; forget the oldest if there are too many."""
        if key is not None and life is not None:
            self._lives[key] = life
            if len(self._lives) > _REMEMBERED:
                del self._lives[next(iter(self._lives))]


def error_in(response: httpx2.Response) -> TurngateError | None:
    """Return the exception for an answer; None if it is a success."""
    if response.is_success:
        return None
    said = _problem_in(response)
    if said is None:
        return Refused(response.status_code, _OF_ANOTHER, response.reason_phrase)
    name = said["type"].removeprefix(_TYPE)
    detail = str(said.get("detail", response.reason_phrase))
    if name in _BY_NAME:
        return _BY_NAME[name](detail)
    if name == "not-waiting" and said.get("state") in [*turngate.State]:
        return turngate.NotWaiting(detail, turngate.State(said["state"]))
    return Refused(response.status_code, name, detail)


def _problem_in(response: httpx2.Response) -> dict[str, Any] | None:
    """Return the problem in the answer; None if the answer does not come from a Turngate server."""
    if not response.headers.get("content-type", "").startswith("application/problem+json"):
        return None
    try:
        said: Any = response.json()
    except ValueError:  # it was cut short
        return None
    is_ours = isinstance(said, dict) and str(said.get("type", "")).startswith(_TYPE)
    return said if is_ours else None


def _headers(key: str | None, life: str | None) -> dict[str, str]:
    headers = {} if key is None else {"Idempotency-Key": key}
    return headers if life is None else {**headers, _KEY_LIFE: life}


def _read(response: httpx2.Response) -> tuple[Any, TurngateError | None]:
    """Return the content of the answer, or the exception for it."""
    error = error_in(response)
    if error is not None:
        return None, error
    try:
        return response.json(), None
    except ValueError:
        return None, Unreachable(
            "the answer is not JSON: it was cut short, or it is not from a Turngate server"
        )


def _is_lost(error: TurngateError) -> bool:
    """Return whether a proxy answered, so that the server's own answer was lost."""
    if isinstance(error, Refused):
        return error.name == _OF_ANOTHER and error.status in _OF_PROXIES
    return isinstance(error, Unreachable)


def _may_come_after(error: TurngateError) -> bool:
    """Return whether something in between failed, perhaps after the server had acted."""
    return isinstance(error, Refused) and error.name == _OF_ANOTHER and error.status in _IN_DOUBT


def _may_pass(error: TurngateError, method: str) -> bool:
    """Return whether the call may succeed in a moment; nothing was done.

    Another server may be about to replace one that is shutting down.
    """
    if isinstance(error, DispatcherClosed):
        return method == "GET"
    return isinstance(error, Refused) and error.name == "ledger-unavailable"


def _is_answer(error: TurngateError) -> bool:
    """Return whether the refusal of a repetition also answers the call that was sent before."""
    if isinstance(error, Refused):
        return error.name in _OF_THE_REQUEST
    return not isinstance(error, DispatcherClosed)


def _unknown(method: str, path: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"{method} {path} was sent, but its answer was lost; it may have been carried out")
