"""What a ledger is: where sessions are kept, one saved step at a time, and who of those that share it lives.

LedgerUnavailable      the ledger cannot be reached; nothing was done
├── NotStorable        the ledger refuses a value for good; nothing was done
├── PurgeCutShort      a purge could not go on; what it had purged stays purged
├── LedgerGone         what was opened is no longer there; it has to be opened again
└── OutcomeUnknown     a step was sent and its answer lost, and nobody can tell any more whether it was saved
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from turngate._errors import LedgerUnavailable, OutcomeUnknown, TurngateError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any

    from turngate._events import RunComplete
    from turngate._messages import ListOfMessages
    from turngate.durable._purge import Purge
    from turngate.durable._records import Ask, Decide, Decision, KeyRow, Known, Loaded


class LedgerGone(LedgerUnavailable):
    """What was opened is no longer there: nothing can be saved until the ledger is opened again.

    Its file was removed, say, or another one put in its place.
    """


class NotStorable(LedgerUnavailable):
    """The ledger refuses a value for good, say because it is too large. Nothing was done."""


class PurgeCutShort(LedgerUnavailable):
    """A purge could not go on. What it had purged stays purged: `purged` runs."""

    def __init__(self, purged: int, why: BaseException) -> None:
        super().__init__(
            f"the purge was cut short after {purged} {'run' if purged == 1 else 'runs'}; "
            f"these are gone, and the rest is kept: {why}"
        )
        self.purged = purged


class LeaseLost(TurngateError):
    """The worker counts as dead: nothing can be saved under its name any more, and nothing was."""


class Debts(NamedTuple):
    """What nobody will do unless whoever notices does it."""

    dead: list[str]
    """Sessions whose turn belongs to a worker that is dead."""
    unowned: list[str]
    """Sessions whose turn belongs to nobody."""
    unentered: list[tuple[str, str]]
    """Session and run of what was accepted and not entered, by a worker that is dead or in all the time."""


class Mine(NamedTuple):
    """A turn that is this worker's on record."""

    session_id: str
    fence: int
    covered: bool
    version: int


class Moment(NamedTuple):
    """What was there to be read at one moment: of the positions below `until` all but the `pending` ones.

    Below the `horizon` there is none that is pending.
    """

    horizon: int
    until: int
    pending: frozenset[int] = frozenset()

    def has(self, position: int) -> bool:
        """Say whether what is at this position was there."""
        return position < self.until and position not in self.pending


Place = tuple[int, int]
"""A position, and an ordinal among what is at that position."""


class Finished(NamedTuple):
    """A completion and its place in the order of all."""

    position: int
    ordinal: int
    complete: RunComplete


class Told(NamedTuple):
    """The decisions of one step and its place in the order of all."""

    position: int
    ordinal: int
    session_id: str
    entries: list[dict[str, Any]]


class Checkpoint(NamedTuple):
    """What a turn has written and kept so far."""

    session_id: str
    fence: int
    text: str
    kept: str | None


class Ledger(Protocol):
    """Where sessions are kept. Every method may raise LedgerUnavailable, and has then done nothing.

    A ledger belongs to one dispatcher, which opens and closes it.

    Positions: each step that is saved has one, and those of one session grow; steps of several sessions may
    share one. Everything at a position below the `horizon` is there to be read: nothing appears below it any
    more.
    """

    history: bool
    """Whether the decisions of each step are kept."""

    async def open(self) -> None:
        """Connect, and bring the schema up to date."""

    async def close(self) -> None:
        """Let go of everything. Idempotent."""

    def step(self, ask: Ask, decide: Decide) -> Awaitable[Decision]:
        """Load, decide and save, again if somebody else was faster, and return the decision that was saved.

        What `decide` raises is raised, and nothing is saved. Raises LeaseLost when the worker counts as dead
        and OutcomeUnknown when an answer was lost for good.
        """
        ...

    # Who lives.

    async def register(self, lease: float) -> int:
        """Return a name for a worker that no other has had; it lives until it is retired or dies."""
        ...

    async def retire(self, worker: int) -> None:
        """Have a worker count as dead."""

    def keep_alive(self, worker: int, lease: float, lost: Callable[[int], None]) -> None:
        """Keep the worker alive from now on; call `lost`, on the loop, when that has failed."""

    async def bury(self) -> None:
        """Find out who has died."""

    async def debts(self, enter_timeout: float) -> Debts:
        """Return some of what is owed by the dead, and what was not entered for so many seconds."""
        ...

    async def mine(self, worker: int) -> list[Mine]:
        """Return the turns that belong to the worker."""
        ...

    # Looking on.

    async def find(self, run_ids: Sequence[str]) -> list[Known]:
        """Return those of the runs that are known."""
        ...

    async def view(self, session_id: str | None) -> list[Loaded]:
        """Return the session, or every session that has something in flight, all at one moment."""
        ...

    async def name(self) -> str:
        """Return the name of the epoch, by which its cursors are told from those of another.

        An epoch begins when the ledger is opened, and ends where the next one begins. One that is missing was
        lost: an older copy of the ledger was put in its place.
        """
        ...

    async def end_of(self, name: str) -> int | None:
        """Return the position that no cursor of the epoch reaches; None if there is no such epoch."""
        ...

    async def moment(self) -> Moment:
        """Return what there is to be read now, with the horizon as it is now."""
        ...

    async def finished(self, after: Place, limit: int) -> tuple[Place, int, list[Finished]]:
        """Return the last that was purged, the horizon, and the next completions below it, in order."""
        ...

    async def told(self, after: Place, limit: int) -> tuple[Place, int, list[Told]]:
        """Return the last that was purged, the horizon, and the decisions of the next steps, in order."""
        ...

    # Beside the steps.

    async def checkpoint(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Put by what turns have written so far, for those who may have to end them.

        What cannot be stored is left out: the end of the turn will say so.
        """

    async def find_key(self, key: str, part: str = "") -> KeyRow | None:
        """Return the row of an idempotency key, None if it has none."""
        ...

    async def keep_key(self, row: KeyRow) -> KeyRow:
        """Write the row unless the key has one, and return the row that it has."""
        ...

    async def expire_keys(self, age: float, limit: int) -> int:
        """Forget at most `limit` keys that are older than so many seconds; return how many it was."""
        ...

    async def messages(self, session_id: str, after: str | None, limit: int | None) -> ListOfMessages:
        """Return messages of the session; ValueError if it has no message `after`."""
        ...

    async def messages_of(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that the run was part of."""
        ...

    async def purge(self, purge: Purge) -> int:
        """Take the next slice of a purge, a short transaction; return how many runs are gone."""
        ...

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake`, on the loop, when somebody else may have changed something. Only a hint."""

    # What turns stream.

    longest_message: int
    """So many ASCII characters may be relayed in one message."""

    def is_overheard(self) -> bool:
        """Say whether another process may be listening to what is relayed."""
        ...

    async def relay(self, messages: Sequence[str]) -> None:
        """Say something, in ASCII, to the processes that listen; it may be lost."""

    def overhear(self, heard: Callable[[str], None] | None) -> None:
        """Call `heard`, on the loop, with what other processes relay, from now on; None: no longer."""

    def hint(self, workers: set[int]) -> None:
        """Let these workers look soon; `set()`: whoever listens. Never waits, and may come to nothing."""


__all__ = [
    "Checkpoint",
    "Debts",
    "Finished",
    "LeaseLost",
    "Ledger",
    "LedgerGone",
    "LedgerUnavailable",
    "Mine",
    "Moment",
    "NotStorable",
    "OutcomeUnknown",
    "Place",
    "PurgeCutShort",
    "Told",
]
