"""What both engines do in SQL: their statements, their migrations, and all reads.

`sql/sqlite.sql` and `sql/postgres.sql` have statements of the same names, with the same parameters and
columns. The columns of sessions, runs, completions, messages and keys match their records. The scripts
in `sql/sqlite/` and `sql/postgres/` migrate each version of the schema to the next. A script is never
edited, not even its whitespace, because ledgers of that version exist. A change of the schema is a new file,
`NNNN_name.sql`, with the next number.
"""

from __future__ import annotations

import functools
import json
import re
from abc import ABC, abstractmethod
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from turngate._errors import UnknownSchema
from turngate._events import RunComplete
from turngate._messages import Message
from turngate.durable._ledger import CompletionRecord, HistoryStep, NotStorable, Orphans, StoredTurn
from turngate.durable._records import (
    KeyRow,
    Known,
    RunRow,
    SessionRow,
    as_complete,
    as_key,
    as_known,
    as_messages,
    encode,
    restored,
    storable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from turngate._messages import ListOfMessages
    from turngate.durable._ledger import Checkpoint, Place
    from turngate.durable._records import Row

_ORPHANS_LIMIT: Final = 50
_SLICE: Final = 500
"""How many rows a slice of a purge examines."""
_SKEW: Final = 3600.0
"""Seconds by which the clocks of machines that share a ledger may differ."""
_START: Final = (-1, -1)
_RECORDS: Final[dict[str, tuple[str, ...]]] = {
    "session": SessionRow._fields,
    "run": RunRow._fields,
    "complete": RunComplete._fields,
    "message": Message._fields,
    "key": KeyRow._fields,
}


@functools.cache
def statements(engine: str) -> dict[str, str]:
    """Return the statements of an engine by name. `{name}` in one stands for another."""
    text = (resources.files("turngate.durable") / "sql" / f"{engine}.sql").read_text(encoding="utf-8")
    _, *parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)
    found = {f"{record}_columns": ", ".join(fields) for record, fields in _RECORDS.items()}
    found |= {f"{record}_values": ", ".join("?" * len(fields)) for record, fields in _RECORDS.items()}
    for name, body in zip(parts[::2], parts[1::2], strict=True):
        found[name] = re.sub(r"^--.*\n?", "", body, flags=re.MULTILINE).strip()

    def complete(statement: str) -> str:
        return re.sub(r"\{(\w\w+)\}", lambda part: complete(found[part[1]]), statement)

    return {name: complete(statement) for name, statement in found.items()}


@functools.cache
def migrations(engine: str) -> tuple[str, ...]:
    """Return the scripts that lead from each version of the schema to the next."""
    folder = resources.files("turngate.durable") / "sql" / engine
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".sql")), key=lambda f: f.name)
    numbers = [int(file.name.partition("_")[0]) for file in files]
    if not numbers or numbers != [*range(1, len(numbers) + 1)]:
        raise RuntimeError(f"the migrations of {engine} are incomplete: {[file.name for file in files]}")
    return tuple(file.read_text(encoding="utf-8") for file in files)


def refuse_newer(version: int, known: int) -> None:
    """Raise UnknownSchema if a ledger has a version that this Turngate does not know."""
    if version > known:
        raise UnknownSchema(
            f"the ledger has schema version {version}, and this turngate knows versions up to {known}; "
            f"use a newer turngate"
        )


for _engine in ("sqlite", "postgres"):  # read now: a process may drop its privileges before it opens a ledger
    statements(_engine)
    migrations(_engine)


def add_known(runs: list[RunRow], known: Known | None, session_id: str) -> list[RunRow]:
    """Add the run that was asked for to those of a session, if it belongs there and is in flight."""
    if known is None or known.complete is not None or known.row.session_id != session_id:
        return runs
    return runs if any(row.run_id == known.row.run_id for row in runs) else [*runs, known.row]


class _PastRun(NamedTuple):
    """A complete run: its place, its session as stored, and whether it is old enough."""

    position: int
    ordinal: int
    run_id: str
    session_id: str
    accepted_before: bool
    completed_before: bool


class SqlLedger(ABC):
    """What a ledger reads, stores apart from its steps and purges, on an engine that has the statements."""

    @abstractmethod
    async def fetch(self, name: str, *about: object) -> list[Row]:
        """Execute the statement of this name, which may be repeated; return the rows."""

    # Workers.

    async def orphans(self, enter_timeout: float) -> Orphans:
        """Return some of the turns and runs that no living worker looks after."""
        dead = await self.fetch("dead", _ORPHANS_LIMIT)
        unowned = await self.fetch("unowned", _ORPHANS_LIMIT)
        unentered = await self.fetch("unentered", _ORPHANS_LIMIT, float(enter_timeout))
        return Orphans(
            [restored(row[0]) for row in dead],
            [restored(row[0]) for row in unowned],
            [(restored(row[0]), restored(row[1])) for row in unentered],
        )

    async def turns_of(self, worker: int) -> list[StoredTurn]:
        """Return the turns that belong to the worker."""
        rows = await self.fetch("turns_of", worker)
        return [StoredTurn(restored(row[0]), row[1], bool(row[2]), row[3]) for row in rows]

    # Reading.

    async def find(self, run_ids: Sequence[str]) -> list[Known]:
        """Return the runs of these ids that exist."""
        return [as_known(row) for row in await self.fetch("known", [*map(storable, run_ids)])]

    async def epoch(self) -> str:
        """Return the name of the current epoch."""
        ((name,),) = await self.fetch("epoch")
        return str(name)

    async def epoch_end(self, name: str) -> int | None:
        """Return the position behind the last one of an epoch; None if there is no such epoch."""
        rows = await self.fetch("epoch_end", name)
        return int(rows[0][0]) if rows else None

    async def completions_after(self, after: Place, limit: int) -> tuple[Place, int, list[CompletionRecord]]:
        """Return the last purged place, the horizon, and the next completions below it, in order."""
        purged, horizon, rows = await self._page("completions_after", after, limit)
        return purged, horizon, [CompletionRecord(row[0], row[1], as_complete(row[2:])) for row in rows]

    async def history_after(self, after: Place, limit: int) -> tuple[Place, int, list[HistoryStep]]:
        """Return the last purged place, the horizon, and the decisions of the next steps, in order."""
        purged, horizon, rows = await self._page("history_after", after, limit)
        steps = [HistoryStep(row[0], row[1], restored(row[2]), json.loads(row[3]), row[4]) for row in rows]
        return purged, horizon, steps

    async def _page(self, name: str, after: Place, limit: int) -> tuple[Place, int, list[Any]]:
        rows = await self.fetch(name, *after, limit)
        position, ordinal, horizon = rows[0][:3]
        return (position, ordinal), horizon, [row[3:] for row in rows if row[3] is not None]

    async def messages(self, session_id: str, after: str | None, limit: int | None) -> ListOfMessages:
        """Return messages of the session; ValueError if it has no message `after`."""
        behind = 0
        if after is not None:
            found = await self.fetch("message_at", storable(session_id), storable(after))
            if not found:
                raise ValueError(f"session {session_id!r} has no message {after!r}")
            behind = found[0][0]
        return as_messages(await self.fetch("messages", storable(session_id), behind, limit))

    async def messages_of(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that the run was part of."""
        return as_messages(await self.fetch("messages_of", storable(run_id)))

    # Apart from the steps.

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Save the text that turns have written so far; leave out what cannot be stored."""
        rows = [dict(zip(each._fields, encode(each), strict=True)) for each in checkpoints]
        try:
            await self.fetch("checkpoint", json.dumps(rows))
        except NotStorable:
            for each in checkpoints if len(checkpoints) > 1 else ():
                await self.checkpoint([each])

    async def find_key(self, key: str, part: str = "") -> KeyRow | None:
        """Return the row of an idempotency key, None if it has none."""
        rows = await self.fetch("key", storable(key), part)
        return as_key(rows[0]) if rows else None

    async def keep_key(self, row: KeyRow) -> KeyRow:
        """Write the row unless the key has one, and return the row that is stored."""
        while True:
            await self.fetch("keep_key", *encode(row))
            if (kept := await self.find_key(row.key, row.part)) is not None:
                return kept

    async def expire_keys(self, age: float, limit: int) -> int:
        """Delete at most `limit` keys older than `age` seconds; return how many were deleted."""
        if not await self.fetch("has_old_keys", float(age)):
            return 0  # without taking a lock
        ((count,),) = await self.fetch("expire_keys", float(age), limit)
        return int(count)

    # Purging. Each slice is a short transaction, so that steps can go on in between.

    async def purge(self, before: float) -> AsyncIterator[int]:
        """Delete what was complete before a time, slice by slice; yield how many runs each has deleted.

        Looks at every complete run in the order of positions and deletes those that are old enough, with
        their messages; then at sessions without runs, at the history, and at what remains.
        """
        # Sessions that have runs left, each with whether one of them was accepted before.
        left = {(row[0], bool(row[1])) for row in await self.fetch("purge_in_flight", before)}
        after = _START
        while rows := [
            _PastRun(*row) for row in await self.fetch("purge_look_at_runs", before, *after, _SLICE)
        ]:
            if len(rows) == _SLICE and rows[0].position != rows[-1].position:
                # The runs of a turn are deleted together, so if possible a slice ends with a step.
                rows = [row for row in rows if row.position != rows[-1].position]
            gone = [row for row in rows if row.completed_before]
            left |= {(row.session_id, bool(row.accepted_before)) for row in rows if not row.completed_before}
            after = rows[-1][:2]
            yield (
                await self.delete_runs([row.run_id for row in gone], gone[0][0], gone[-1][:2]) if gone else 0
            )
        async for _ in self._purge_sessions({session_id for session_id, _ in left}, after[0]):
            yield 0
        # What remains of the history of a session begins with an accept.
        async for _ in self._purge_history(before, {session_id for session_id, is_old in left if is_old}):
            yield 0
        for name in ("purge_checkpoints", "purge_epochs"):
            await self.fetch(name)

    async def delete_runs(self, run_ids: list[str], first: int, last: Place) -> int:
        """Delete runs from a position up to a place, and their messages; return how many were deleted."""
        ((count,),) = await self.fetch("purge_runs", run_ids, *last, first)
        return int(count)

    async def _purge_sessions(self, kept: set[str], looked_at: int) -> AsyncIterator[None]:
        """Delete sessions without runs, except those that have changed since that position was read."""
        name = ""
        while rows := await self.fetch("purge_look_at_sessions", name, _SLICE):
            name = rows[-1][0]
            if quiet := [row for row in rows if row[0] not in kept]:
                names, versions = zip(*quiet, strict=True)
                await self.fetch("purge_sessions", [*names], [*versions], looked_at)
            yield

    async def _purge_history(self, before: float, kept: set[str]) -> AsyncIterator[None]:
        after = _START
        while rows := await self.fetch("purge_look_at_history", *after, _SLICE):
            after = rows[-1][:2]
            if gone := [row[:2] for row in rows if row[3] < before and row[2] not in kept]:
                positions, ordinals = zip(*gone, strict=True)
                await self.fetch("purge_history", [*positions], [*ordinals], *gone[-1])
            yield
            if all(row[3] > before + _SKEW for row in rows):
                return
