"""What callers do with waiting prompts on a ledger, and what they can rely on afterwards.

Callers, in any process, send, hold, move and edit prompts, and get the results. What is on record is judged
elsewhere. Here three promises are judged by what callers and runners were told:

HELD       a run that a receipt names as held goes to no runner, until a call that may resume it begins
AS_EDITED  a runner is given the latest prompt: no acknowledged edit has replaced it, and it was not refused
keys       calls under one idempotency key have one answer, and those for another request have none
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from turngate import Covered, KeyConflict, Message, Run, TurngateError
from turngate.durable import DurableDispatcher, LedgerUnavailable
from turngate_model import Property

AnswerT = TypeVar("AnswerT")


@dataclass(eq=False)
class _Call:
    """A call and its repetitions: when it began, when it was first answered, and how many are open.

    A call whose answer is lost by a fault stays open forever.
    """

    began: int
    ended: int | None = None
    open: int = 0

    @property
    def may_count(self) -> bool:
        """Whether it has done its work, or may have done it."""
        return self.ended is not None or self.open > 0

    def is_over_before(self, other: _Call) -> bool:
        """Return whether its work was certainly over before the other call began."""
        return not self.open and (self.ended is None or self.ended < other.began)


@dataclass
class _Register:
    """The values that were sent for one thing, and those that runners were given."""

    sent: list[tuple[str, _Call]] = field(default_factory=list)
    given: list[str] = field(default_factory=list)

    def wrong(self) -> Iterable[str]:
        """Yield the values that should not have been given."""
        for value in dict.fromkeys(self.given):
            calls = [call for sent, call in self.sent if sent == value and call.may_count]
            if not calls:
                yield f"{value}, which was never sent, or was refused"
            elif all(self._is_replaced(call) for call in calls):
                yield f"{value}, which an acknowledged edit had replaced"

    def _is_replaced(self, call: _Call) -> bool:
        ended = call.ended
        return ended is not None and any(
            other.began > ended and other.ended is not None for _, other in self.sent
        )


@dataclass
class _Key:
    """The requests under one key, and the answers."""

    requests: dict[str, _Call] = field(default_factory=dict)
    answers: set[tuple[str, str]] = field(default_factory=set)
    """The operations that were answered, and how."""
    conflicts: int = 0


class LedgerLine:
    """Callers of some dispatchers on one ledger who manage the waiting prompts."""

    def __init__(self, dispatchers: list[DurableDispatcher]) -> None:
        self._dispatchers = dispatchers
        self._clock = itertools.count(1)
        self._prompts: dict[str, _Register] = defaultdict(_Register)
        self._data: dict[str, _Register] = defaultdict(_Register)
        self._accepts: dict[tuple[str, str], _Call] = {}
        self._sessions: dict[str, str] = {}
        self._resumes: dict[str, list[_Call]] = defaultdict(list)
        """By session, the calls that may have resumed something."""
        self._held: dict[str, dict[str, str]] = defaultdict(dict)
        """By session, the runs that must be held, and the call that held them."""
        self._keys: dict[str, _Key] = {}
        self._wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        """How many times each kind of call succeeded, or was refused, and why."""

    # Sending and editing.

    async def send(self, run_id: str, session: str, prompt: str, data: object, call: Awaitable[Run]) -> Run:
        """Accept or submit a prompt; a repetition does not make another prompt."""
        sent = json.dumps(data)
        known = self._accepts.get((run_id, sent))
        record = known or self._begin()
        if known is None:
            self._accepts[run_id, sent] = record
            self._prompts[run_id].sent.append((prompt, record))
            self._data[run_id].sent.append((sent, record))
        run = await self._follow("send", call, record)
        self._sessions[run_id] = session
        return run

    async def edit(
        self, process: int, run_id: str, prompt: str, data: object = None, key: str | None = None, **more: Any
    ) -> Run:
        """Edit a waiting run; without `data` that stays as it is."""
        changes = more if data is None else {**more, "data": data}
        editing = self._dispatchers[process].edit(run_id, prompt=prompt, key=key, **changes)
        record = self._record(key, "edit", run_id, prompt, data, more)
        self._prompts[run_id].sent.append((prompt, record))
        if data is not None:
            self._data[run_id].sent.append((json.dumps(data), record))
        return await self._keyed("edit", key, editing, record)

    # Holding and resuming.

    async def hold(self, process: int, session: str, key: str | None = None) -> list[Run]:
        """Hold the waiting runs of a session."""
        record = self._record(key, "hold", session)
        holding = self._dispatchers[process].hold(session, key=key)
        runs = await self._keyed("hold", key, holding, record)
        self._note_held("a hold", runs, record)
        return runs

    async def hold_run(self, process: int, run_id: str, key: str | None = None) -> list[Run]:
        """Hold one run."""
        record = self._record(key, "hold_run", run_id)
        holding = self._dispatchers[process].hold_run(run_id, key=key)
        runs = await self._keyed("hold_run", key, holding, record)
        self._note_held("a hold of one run", runs, record)
        return runs

    async def stop(
        self, process: int, session: str, turn: str | None = None, key: str | None = None
    ) -> Covered:
        """Stop a session: cover its turn, and hold the waiting runs."""
        record = self._record(key, "stop", session, turn)
        stopping = self._dispatchers[process].stop(session, turn=turn, key=key)
        covered = await self._keyed("stop", key, stopping, record)
        self._note_held("a stop", covered.held, record)
        return covered

    async def resume(self, process: int, session: str, key: str | None = None) -> list[Run]:
        """Resume the held runs of a session."""
        record = self._resuming(session, key, "resume", session)
        resuming = self._dispatchers[process].resume(session, key=key)
        return await self._keyed("resume", key, resuming, record)

    async def resume_run(self, process: int, run_id: str, key: str | None = None) -> list[Run]:
        """Resume one run."""
        record = self._resuming(self._sessions.get(run_id), key, "resume_run", run_id)
        resuming = self._dispatchers[process].resume_run(run_id, key=key)
        return await self._keyed("resume_run", key, resuming, record)

    async def send_now(
        self, process: int, run_id: str, turn: str | None = None, key: str | None = None
    ) -> Covered:
        """Send a queued run now."""
        record = self._resuming(self._sessions.get(run_id), key, "send_now", run_id, turn)
        sending = self._dispatchers[process].send_now(run_id, turn=turn, key=key)
        return await self._keyed("send_now", key, sending, record)

    async def move(
        self, process: int, run_id: str, before: str | None = None, to: Any = None, key: str | None = None
    ) -> Run:
        """Move a waiting run."""
        moving = self._dispatchers[process].move(run_id, before=before, to=to, key=key)
        return await self._keyed("move", key, moving, self._record(key, "move", run_id, before, to))

    async def take_back(
        self, operation: str, key: str | None, call: Awaitable[AnswerT], *about: object
    ) -> AnswerT:
        """Cancel or clear, under a key or without."""
        return await self._keyed(operation, key, call, self._record(key, operation, *about))

    # Runners.

    def give(self, run: Run, *, starts: bool) -> None:
        """Note that a runner is given a run, as the lead of a turn that starts or as a follow-up."""
        self._prompts[run.run_id].given.append(run.prompt)
        self._data[run.run_id].given.append(json.dumps(run.data))
        if (held_by := self._held[run.session_id].get(run.run_id)) is not None:
            how = "starts" if starts else "joins a turn"
            self._wrong.append(f"{Property.HELD}: {run.run_id} {how}, though {held_by} holds it")

    # The end.

    @property
    def claims(self) -> tuple[tuple[str, ...], ...]:
        """The runs that must be held at this moment, by session."""
        return tuple((session, *sorted(runs)) for session, runs in sorted(self._held.items()) if runs)

    def problems(self, messages: Iterable[Message]) -> list[str]:
        """Return what is wrong at the end."""
        for message in messages:
            if message.role == "user":
                self._prompts[message.run_id].given.append(message.text)
                self._data[message.run_id].given.append(json.dumps(message.data))
        wrong = [*self._wrong]
        for kind, registers in (("prompt", self._prompts), ("data", self._data)):
            for run_id, register in registers.items():
                wrong += [
                    f"{Property.AS_EDITED}: {run_id} is given the {kind} {each}" for each in register.wrong()
                ]
        for name, key in self._keys.items():
            if len(key.answers) > 1:
                wrong.append(f"key {name!r} has several answers: {sorted(key.answers)}")
            if key.conflicts and len(key.requests) == 1:
                wrong.append(f"key {name!r} is refused, and was used for one request alone")
        return wrong

    # Parts of the above.

    def _begin(self) -> _Call:
        return _Call(next(self._clock))

    def _record(self, key: str | None, *request: object) -> _Call:
        """Return the record of a call; under a key, a request and its repetitions are one call."""
        if key is None:
            return self._begin()
        requests = self._keys.setdefault(key, _Key()).requests
        if repr(request) in requests:
            self.seen["again under a key"] += 1
        return requests.setdefault(repr(request), self._begin())

    def _resuming(self, session: str | None, key: str | None, *request: object) -> _Call:
        record = self._record(key, *request)
        for each in [*self._held] if session is None else [session]:
            self._held[each].clear()
            self._resumes[each].append(record)
        return record

    def _note_held(self, who: str, runs: list[Run], record: _Call) -> None:
        """Note that runs must be held from now on, unless a resume may have come after the hold."""
        for run in runs:
            if all(each.is_over_before(record) for each in self._resumes[run.session_id]):
                self._held[run.session_id][run.run_id] = who

    async def _keyed(
        self, operation: str, key: str | None, call: Awaitable[AnswerT], record: _Call
    ) -> AnswerT:
        """Follow a call; note the answer under its key."""
        if key is None:
            return await self._follow(operation, call, record)
        kept = self._keys[key]
        try:
            answer = await self._follow(operation, call, record)
        except KeyConflict:
            kept.conflicts += 1
            raise
        kept.answers.add((operation, _told(answer)))
        return answer

    async def _follow(self, operation: str, call: Awaitable[AnswerT], record: _Call) -> AnswerT:
        """Await a call, and note how it ends; a call whose answer is lost stays open."""
        record.open += 1
        try:
            answer = await call
        except LedgerUnavailable:
            raise
        except TurngateError as refused:
            record.open -= 1
            self.seen[f"refused: {type(refused).__name__}"] += 1
            raise
        record.open -= 1
        if record.ended is None:
            record.ended = next(self._clock)
        self.seen[operation] += 1
        return answer


def _told(answer: object) -> str:
    """Return the runs that an answer names."""
    if isinstance(answer, Covered):
        parts = (answer.runs, answer.held, answer.waiting)
        return repr([[run.run_id for run in part] for part in parts])
    runs: list[Any] = answer if isinstance(answer, list) else [answer]
    return repr([run.run_id for run in runs])
