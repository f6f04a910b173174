"""A ledger in memory, for the checks: `Tables` hold what is on record, and each process has a `MemoryLedger`.

Load and save are two messages, as with a server, and the owner of the tables decides when each arrives and
when it is answered. In between anything may happen: another process is faster, the process dies, its lease
is lost, or the answer is lost.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal
from unittest.mock import patch

from turngate import Message, RunComplete, State
from turngate.durable import LedgerUnavailable, _swap
from turngate.durable._ledger import (
    Checkpoint,
    CompletionRecord,
    HistoryStep,
    Orphans,
    Place,
    ReadPoint,
    StoredTurn,
)
from turngate.durable._records import (
    ALL,
    Ask,
    Changes,
    Decide,
    Decision,
    KeyRow,
    Known,
    Loaded,
    RunRow,
    SessionRow,
    of_messages,
)
from turngate.durable._swap import Fate, SessionCache, Unanswered, swap

Kind = Literal["load", "save", "answer"]


@dataclass(eq=False)
class Gate:
    """A message on its way to the tables, or back."""

    process: int
    kind: Kind
    ask: Ask
    changes: Changes | None
    passed: asyncio.Future[bool]
    """True if it arrives, False if it is lost."""


@dataclass
class Tables:
    """The records of all processes, and the messages on their way."""

    number: int = 0
    drawn: int = 0
    """The last number that was given to a step as fresh."""
    workers: set[int] = field(default_factory=set)
    names: int = 0
    sessions: dict[str, SessionRow] = field(default_factory=dict)
    runs: dict[str, RunRow] = field(default_factory=dict)
    accepted_at: dict[str, float] = field(default_factory=dict)
    complete: dict[str, CompletionRecord] = field(default_factory=dict)
    messages: dict[str, tuple[Message, str]] = field(default_factory=dict)
    history: list[HistoryStep] = field(default_factory=list)
    checkpoints: dict[str, Checkpoint] = field(default_factory=dict)
    keys: dict[tuple[str, str], KeyRow] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    gated: bool = False
    """Whether messages wait until they are let through; otherwise each takes one step of the loop."""
    remembers: bool = False
    """Whether a process first decides on its cached sessions, as with a server."""
    now: Callable[[], float] = lambda: 0.0
    trouble: Callable[[MemoryLedger, str], None] | None = None
    """Called with every message that arrives or is answered; an exception from it fails the message."""
    listeners: dict[MemoryLedger, Callable[[str], None]] = field(default_factory=dict)
    """The listeners to relayed messages."""

    def fresh(self) -> int:
        """Draw a number that no step has had: steps of several sessions may be under way at once."""
        self.drawn = max(self.drawn, self.number) + 1
        return self.drawn

    def load(self, ask: Ask) -> Loaded:
        """Return the session as it is."""
        session = self.sessions.get(ask.session_id)
        mine = [row for row in self.runs.values() if row.session_id == ask.session_id]
        mine = sorted((row for row in mine if row.state is not State.COMPLETE), key=lambda row: row.rank)
        queued = [row for row in mine if row.state is State.QUEUED]
        free = [row for row in queued if not row.held and not row.bound]
        bound = [row for row in queued if row.bound]
        head = queued if ask.head == ALL else free[: ask.head] + bound
        rows = [row for row in mine if row.state is not State.QUEUED] + head
        known = None
        if ask.run_id is not None and ask.run_id in self.runs:
            known = self.known(ask.run_id)
            if known.row in mine and known.row not in rows:
                rows.append(known.row)
        point = self.checkpoints.get(ask.session_id)
        owner = None if session is None else session.owner
        of_turn = point is not None and session is not None and point.fence == session.fence
        return Loaded(
            ask.session_id, session, rows, known, self.fresh(), self.now(), owner in self.workers,
            point.text if point is not None and of_turn else "",
            point.kept if point is not None and of_turn else None,
            None if ask.key is None else self.keys.get(ask.key),
        )  # fmt: skip

    def known(self, run_id: str) -> Known:
        """Return a run that is on record."""
        finished = self.complete.get(run_id)
        if finished is None:
            return Known(self.runs[run_id], None)
        return Known(self.runs[run_id], finished.complete, finished.position)

    def save(self, ask: Ask, changes: Changes) -> tuple[Fate, int]:
        """Save, if the session is still at its version and the worker alive."""
        if not self.may_save(ask.worker):
            return Fate.DEAD, 0
        before = self.sessions.get(changes.session_id)
        if not self.is_at(before, changes) or any(row.run_id in self.runs for row in changes.new):
            return Fate.STALE, 0
        if changes.key is not None:
            if changes.key[:2] in self.keys:
                return Fate.STALE, 0
            self.keys[changes.key[:2]] = changes.key
        position = self.number = self.number + 1
        self.sessions[changes.session_id] = changes.after
        for row in changes.new:
            self.runs[row.run_id], self.accepted_at[row.run_id] = row, self.now()
        for change in changes.changed:
            self.runs[change.run_id] = change.applied(self.runs[change.run_id])
        for ordinal, complete in enumerate(changes.done):
            assert complete.run_id not in self.complete, f"{complete.run_id} completes a second time"
            self.complete[complete.run_id] = CompletionRecord(position, ordinal, complete)
            row = self.runs[complete.run_id]
            self.runs[complete.run_id] = row._replace(
                state=State.COMPLETE, prompt="", attachments="", data="", bound="", held=False
            )
        for message, columns in zip(changes.messages, of_messages(changes.messages), strict=True):
            assert message.id not in self.messages, f"{message.id} is written a second time"
            self.messages[message.id] = message, columns[-1]
        entries = copy.deepcopy(changes.entries)
        self.history.append(HistoryStep(position, 0, changes.session_id, entries, self.now()))
        return Fate.SAVED, position

    def may_save(self, worker: int) -> bool:
        """Return whether the worker is alive. The promises depend only on version and fence, not on this."""
        return worker in self.workers

    def is_at(self, row: SessionRow | None, changes: Changes) -> bool:
        """Return whether the session is still at the version that the step was decided on."""
        if row is None or changes.before is None:
            return row is changes.before
        return (row.token, row.version) == (changes.before.token, changes.before.version)


class MemoryLedger:
    """The ledger of one process, on tables that processes share."""

    longest_message = 1_000

    def __init__(self, tables: Tables, process: int = 0) -> None:
        self.tables = tables
        self.process = process
        self.is_dead = False
        """Whether the process has died: nothing that it sends arrives, and it receives nothing."""
        self.is_away = False
        """Whether the tables cannot be reached."""
        self.cache = SessionCache()
        self._lost: tuple[int, Callable[[int], None]] | None = None
        self._open = False

    async def open(self) -> None:
        """Connect to the tables."""
        await self._hop()
        self._open = True

    async def close(self) -> None:
        """Disconnect."""
        self._open = False

    async def _hop(self, kind: str = "other") -> None:
        await asyncio.sleep(0)
        if self.tables.trouble is not None:
            self.tables.trouble(self, kind)
        if self.is_dead:
            await asyncio.get_running_loop().create_future()
        if self.is_away:
            raise LedgerUnavailable("the tables cannot be reached")

    async def _pass(self, kind: Kind, ask: Ask, changes: Changes | None = None) -> bool:
        """Wait until the message may pass; return whether it arrives."""
        if not self.tables.gated:
            await self._hop(kind)
            return True
        if self.is_dead:
            await asyncio.get_running_loop().create_future()
        gate = Gate(self.process, kind, ask, changes, asyncio.get_running_loop().create_future())
        self.tables.gates.append(gate)
        return await gate.passed

    async def step(self, ask: Ask, decide: Decide) -> Decision:
        """Load, decide and save, again if another process was faster."""
        return await swap(self, self.cache, ask, decide, lambda _: self.is_away)

    async def load(self, ask: Ask) -> Loaded:
        """Return the session as it is when the message arrives."""
        await self._pass("load", ask)
        self.cache.set_clock(self.tables.now())
        return self.tables.load(ask)

    async def save(self, ask: Ask, changes: Changes) -> tuple[Fate, int]:
        """Save when the message arrives; the answer comes later, or is lost."""
        await self._pass("save", ask, changes)
        fate = self.tables.save(ask, changes)
        try:
            has_answered = await self._pass("answer", ask, changes)
        except LedgerUnavailable:  # the step is saved, and no answer says so
            has_answered = False
        if not has_answered:
            raise Unanswered
        if self.tables.remembers and self.cache.numbers_wanted():
            self.cache.add_numbers([self.tables.fresh()])
        return fate

    # Workers.

    async def register(self, lease: float) -> int:
        """Return a name that was never used before."""
        await self._hop()
        self.tables.names += 1
        self.tables.workers.add(self.tables.names)
        return self.tables.names

    async def retire(self, worker: int) -> None:
        """Declare a worker dead."""
        await self._hop()
        self.tables.workers.discard(worker)

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Remember what to call once the worker is dead."""
        self._lost = worker, lost

    def has_lost(self) -> bool:
        """Return whether the worker counts as dead although its process is alive and does not know."""
        return self._lost is not None and self._lost[0] not in self.tables.workers and not self.is_dead

    def notice(self) -> None:
        """Tell the dispatcher that its worker is dead, if it is."""
        if self._lost is not None and self.has_lost():
            (worker, lost), self._lost = self._lost, None
            lost(worker)

    async def expire_workers(self) -> None:
        """Do nothing: dead workers are not in the tables."""
        await self._hop()

    async def orphans(self, enter_timeout: float) -> Orphans:
        """Return the turns and runs that no living worker looks after."""
        await self._hop()
        tables = self.tables
        with_turn = {name: row for name, row in tables.sessions.items() if row.lead is not None}
        late = tables.now() - enter_timeout
        return Orphans(
            [name for name, row in with_turn.items() if row.owner and row.owner not in tables.workers],
            [name for name, row in with_turn.items() if row.owner is None],
            [
                (row.session_id, row.run_id)
                for row in tables.runs.values()
                if row.state is State.ACCEPTED
                and (row.holder not in tables.workers or tables.accepted_at[row.run_id] < late)
            ],
        )

    async def turns_of(self, worker: int) -> list[StoredTurn]:
        """Return the turns that belong to the worker."""
        await self._hop()
        rows = self.tables.sessions.items()
        return [
            StoredTurn(name, row.fence, row.covered, row.version)
            for name, row in rows
            if row.lead is not None and row.owner == worker
        ]

    # Reading.

    async def find(self, run_ids: Sequence[str]) -> list[Known]:
        """Return the runs of these ids that exist."""
        await self._hop()
        return [self.tables.known(run_id) for run_id in run_ids if run_id in self.tables.runs]

    async def view(self, session_id: str | None) -> list[Loaded]:
        """Return the session, or every session that has something in flight."""
        await self._hop()
        tables = self.tables
        flight = {row.session_id for row in tables.runs.values() if row.state is not State.COMPLETE}
        wanted = sorted(flight) if session_id is None else [session_id]
        return [tables.load(Ask(each, 0, "", ALL)) for each in wanted]

    async def epoch(self) -> str:
        """Return the name of all tables in memory."""
        return "memory"

    async def read_point(self) -> ReadPoint:
        """Return which positions can be read: all up to the last one."""
        await self._hop()
        return ReadPoint(self.tables.number + 1, self.tables.number + 1)

    async def epoch_end(self, name: str) -> int | None:
        """Return the position behind the last one; there is only one epoch."""
        await self._hop()
        return self.tables.number + 1 if name == "memory" else None

    async def completions_after(self, after: Place, limit: int) -> tuple[Place, int, list[CompletionRecord]]:
        """Return the next completions, in order; nothing is ever purged."""
        await self._hop()
        ordered = sorted(self.tables.complete.values(), key=lambda each: each[:2])
        return (-1, 0), self.tables.number + 1, [each for each in ordered if each[:2] > after][:limit]

    async def history_after(self, after: Place, limit: int) -> tuple[Place, int, list[HistoryStep]]:
        """Return the decisions of the next steps, in order; nothing is ever purged."""
        await self._hop()
        steps = [each for each in self.tables.history if each[:2] > after][:limit]
        return (-1, 0), self.tables.number + 1, steps

    # Beside the steps.

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Save the text that turns have written so far."""
        await self._hop()
        for each in checkpoints:
            old = self.tables.checkpoints.get(each.session_id)
            if old is None or old.fence <= each.fence:
                self.tables.checkpoints[each.session_id] = each

    async def find_key(self, key: str, part: str = "") -> KeyRow | None:
        """Return the row of an idempotency key, None if it has none."""
        await self._hop()
        return self.tables.keys.get((key, part))

    async def keep_key(self, row: KeyRow) -> KeyRow:
        """Write the row unless the key has one, and return the row that is stored."""
        await self._hop()
        return self.tables.keys.setdefault(row[:2], row)

    async def expire_keys(self, age: float, limit: int) -> int:
        """Delete no key."""
        await self._hop()
        return 0

    async def messages(self, session_id: str, after: str | None, limit: int | None) -> list[Message]:
        """Return messages of the session."""
        await self._hop()
        mine = [message for message, _ in self.tables.messages.values() if message.session_id == session_id]
        start = 0
        if after is not None:
            ids = [message.id for message in mine]
            if after not in ids:
                raise ValueError(f"session {session_id!r} has no message {after!r}")
            start = ids.index(after) + 1
        return [copy.deepcopy(each) for each in mine[start:][:limit]]

    async def messages_of(self, run_id: str) -> list[Message]:
        """Return the messages of the turn that the run was part of."""
        await self._hop()
        turns = [turn for message, turn in self.tables.messages.values() if message.run_id == run_id]
        return [message for message, turn in self.tables.messages.values() if turns and turn == turns[-1]]

    async def purge(self, before: float) -> AsyncIterator[int]:
        """Keep everything."""
        await self._hop()
        yield 0

    def listen(self, wake: Callable[[], None]) -> None:
        """Give no hints: everything also works by polling."""

    def has_listeners(self) -> bool:
        """Return whether another process listens."""
        return any(each is not self for each in self.tables.listeners)

    async def relay(self, messages: Sequence[str]) -> None:
        """Send messages to the other processes; none is lost."""
        await self._hop()
        for each, heard in [*self.tables.listeners.items()]:
            if each is not self:
                for message in messages:
                    heard(message)

    def on_relay(self, heard: Callable[[str], None] | None) -> None:
        """Call `heard` with the messages of other processes; None stops that."""
        self.tables.listeners.pop(self, None)
        if heard is not None:
            self.tables.listeners[self] = heard

    def hint(self, workers: set[int]) -> None:
        """Give no hints."""

    def __repr__(self) -> str:
        return f"<MemoryLedger of process {self.process}>"


@contextmanager
def without_chance() -> Iterator[None]:
    """Retry overtaken steps at once, without random pauses, so that every execution is the same."""
    with patch.object(_swap, "pause", lambda attempt: 0.0):
        yield


def lines(tables: Tables) -> list[str]:
    """Return the history as lines of a recorded one."""
    return [json.dumps(entry) for step in tables.history for entry in step.entries]


def completions(tables: Tables) -> list[RunComplete]:
    """Return the completions in order."""
    return [each.complete for each in sorted(tables.complete.values(), key=lambda each: each[:2])]
