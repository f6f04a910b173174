"""The interface of a ledger: it keeps sessions, one saved step at a time, and knows which workers are alive.

LedgerUnavailable      the ledger cannot be reached; nothing was done
├── NotStorable        the ledger refuses a value for good; nothing was done
├── PurgeCutShort      a purge could not go on; what it had deleted stays deleted
├── LedgerGone         what was opened is no longer there; open the ledger again
└── OutcomeUnknown     a step was sent, its answer was lost, and it cannot be found out whether it was saved
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from turngate._errors import LedgerUnavailable, OutcomeUnknown, TurngateError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
    from typing import Any

    from turngate._events import RunComplete
    from turngate._messages import ListOfMessages
    from turngate.durable._records import Ask, Decide, Decision, KeyRow, Known, Loaded


class LedgerGone(LedgerUnavailable):
    """What was opened is no longer there, for instance because its file was removed or replaced.

    Nothing can be saved until the ledger is opened again.
    """


class NotStorable(LedgerUnavailable):
    """The ledger refuses a value for good, for instance because it is too large. Nothing was done."""


class PurgeCutShort(LedgerUnavailable):
    """A purge could not go on after it had deleted `purged` runs, which stay deleted."""

    def __init__(self, purged: int, why: BaseException) -> None:
        super().__init__(
            f"the purge was cut short after {purged} {'run' if purged == 1 else 'runs'}; "
            f"these are gone, and the rest is kept: {why}"
        )
        self.purged = purged


class LeaseLost(TurngateError):
    """The worker counts as dead. Nothing was saved, and nothing more can be saved under its name."""


class Orphans(NamedTuple):
    """Turns and runs that no living worker looks after; any worker may take them."""

    dead: list[str]
    """Sessions whose turn belongs to a dead worker."""
    unowned: list[str]
    """Sessions whose turn belongs to no worker yet."""
    unentered: list[tuple[str, str]]
    """Session and run of accepted runs that were not entered in time, or whose worker is dead."""


class StoredTurn(NamedTuple):
    """A turn that belongs to a worker on record."""

    session_id: str
    fence: int
    covered: bool
    version: int


class ReadPoint(NamedTuple):
    """Which positions could be read at one moment: those below `until`, except for the `pending` ones.

    No position below the `horizon` is pending.
    """

    horizon: int
    until: int
    pending: frozenset[int] = frozenset()

    def has(self, position: int) -> bool:
        """Return whether this position could be read."""
        return position < self.until and position not in self.pending


Place = tuple[int, int]
"""A position, and an ordinal among the entries at that position."""


class CompletionRecord(NamedTuple):
    """A completion, and its place among all."""

    position: int
    ordinal: int
    complete: RunComplete


class HistoryStep(NamedTuple):
    """The decisions of one step, and its place among all."""

    position: int
    ordinal: int
    session_id: str
    entries: list[dict[str, Any]]
    at: float
    """When it was saved, in seconds since the epoch."""


class Checkpoint(NamedTuple):
    """The text that a turn has written and the data that it has kept so far."""

    session_id: str
    fence: int
    text: str
    kept: str | None


class Ledger(Protocol):
    """Keeps sessions. Every method may raise LedgerUnavailable, and has then done nothing.

    A ledger belongs to one dispatcher, which opens and closes it.

    Each saved step has a position. Positions of one session grow; steps of several sessions may share one.
    Everything below the `horizon` can be read, and nothing new appears there.
    """

    async def open(self) -> None:
        """Connect, and migrate an older schema."""

    async def close(self) -> None:
        """Release everything. Idempotent."""

    def step(self, ask: Ask, decide: Decide) -> Awaitable[Decision]:
        """Load, decide and save, again if another process was faster; return the decision that was saved.

        If `decide` raises, nothing is saved. Raises LeaseLost if the worker counts as dead, and
        OutcomeUnknown if an answer was lost for good.
        """
        ...

    # Workers.

    async def register(self, lease: float) -> int:
        """Return a new name for a worker. It is alive until it is retired or its process dies."""
        ...

    async def retire(self, worker: int) -> None:
        """Declare a worker dead."""

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Keep the worker alive from now on; call `lost` on the loop if that fails."""

    async def expire_workers(self) -> None:
        """Find the workers that have died."""

    async def orphans(self, enter_timeout: float) -> Orphans:
        """Return some of the orphans; runs count as such if not entered within `enter_timeout` seconds."""
        ...

    async def turns_of(self, worker: int) -> list[StoredTurn]:
        """Return the turns that belong to the worker."""
        ...

    # Reading.

    async def find(self, run_ids: Sequence[str]) -> list[Known]:
        """Return the runs of these ids that exist."""
        ...

    async def view(self, session_id: str | None) -> list[Loaded]:
        """Return the session, or every session with something in flight, all as of one moment."""
        ...

    async def epoch(self) -> str:
        """Return the name of the current epoch, which is part of its cursors.

        An epoch begins when the ledger is opened, and ends where the next one begins. If an epoch is missing,
        an older copy of the ledger was restored.
        """
        ...

    async def epoch_end(self, name: str) -> int | None:
        """Return the position behind the last one of an epoch; None if there is no such epoch."""
        ...

    async def read_point(self) -> ReadPoint:
        """Return which positions can be read now."""
        ...

    async def completions_after(self, after: Place, limit: int) -> tuple[Place, int, list[CompletionRecord]]:
        """Return the last purged place, the horizon, and the next completions below it, in order."""
        ...

    async def history_after(self, after: Place, limit: int) -> tuple[Place, int, list[HistoryStep]]:
        """Return the last purged place, the horizon, and the decisions of the next steps, in order."""
        ...

    # Apart from the steps.

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Save the text that turns have written so far, for workers that may have to end them.

        Leaves out what cannot be stored; the end of the turn will report that.
        """

    async def find_key(self, key: str, part: str = "") -> KeyRow | None:
        """Return the row of an idempotency key, None if it has none."""
        ...

    async def keep_key(self, row: KeyRow) -> KeyRow:
        """Write the row unless the key has one, and return the row that is stored."""
        ...

    async def expire_keys(self, age: float, limit: int) -> int:
        """Delete at most `limit` keys older than `age` seconds; return how many were deleted."""
        ...

    async def messages(self, session_id: str, after: str | None, limit: int | None) -> ListOfMessages:
        """Return messages of the session. Raises ValueError if it has no message `after`."""
        ...

    async def messages_of(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that the run was part of."""
        ...

    def purge(self, before: float) -> AsyncIterator[int]:
        """Delete runs that were complete before a time, in short transactions; yield the number of each."""
        ...

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake` on the loop when another process may have changed something. Only a hint."""

    # What turns stream, from process to process.

    longest_message: int
    """How many ASCII characters one relayed message may have."""

    def has_listeners(self) -> bool:
        """Return whether another process may be listening to relayed messages."""
        ...

    async def relay(self, messages: Sequence[str]) -> None:
        """Send messages, in ASCII, to the processes that listen; they may be lost."""

    def on_relay(self, heard: Callable[[str], None] | None) -> None:
        """Call `heard` on the loop with the messages that other processes relay; None stops that."""

    def hint(self, workers: set[int]) -> None:
        """Hint that these workers, or all if the set is empty, should look soon. Never waits; may be lost."""


__all__ = [
    "Checkpoint",
    "CompletionRecord",
    "HistoryStep",
    "LeaseLost",
    "Ledger",
    "LedgerGone",
    "LedgerUnavailable",
    "NotStorable",
    "Orphans",
    "OutcomeUnknown",
    "Place",
    "PurgeCutShort",
    "ReadPoint",
    "StoredTurn",
]
