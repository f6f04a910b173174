"""Compare and swap: load, decide, save if the session is still at the version that was loaded.

This is for ledgers whose load and save are two messages to a server. No lock is held while a step is decided.
A save ends in one of five ways:

1. It was saved.
2. Another process was faster. Load and decide again, after a random pause that grows.
3. The worker counts as dead. Nothing was saved, and nothing more can be saved under its name.
4. The server could not be reached. Nothing was saved.
5. The answer was lost. Load the session again: it remembers the ids of its last steps, and each send has an
   id of its own. If the id is there, the step was saved; go on as if the answer had come. If not, send it
   again; if the lost one arrives after all, only one of the two finds its version. If the session has taken
   too many steps meanwhile to remember the id, the outcome is unknown, and the caller gets OutcomeUnknown. A
   step under an idempotency key can always be found by its key.

A process caches sessions as it last saved them, so that its next step need not load what it has just written.
Every step changes the version of its session, so a cached session is valid as long as its version is current,
and the save checks that. Decisions that save nothing, refusals included, are taken only on a loaded session.
"""

from __future__ import annotations

import asyncio
import random
import time
from bisect import bisect, insort
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from turngate._core import QUEUED
from turngate.durable._ledger import LeaseLost, LedgerUnavailable, NotStorable, OutcomeUnknown
from turngate.durable._records import REMEMBERED, Known, Loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from turngate.durable._records import Ask, Changes, Decide, Decision, RunRow, SessionRow

_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.5
_SESSIONS_LIMIT: Final = 4_096
_RUNS_LIMIT: Final = 64
_TEXT_LIMIT: Final = 16_384
"""The most characters of prompts and attachments that a cached session may have."""
_NUMBERS: Final = 64
"""How many fresh numbers to keep for steps that do not load."""


class Unanswered(Exception):
    """What was sent may have been saved, or may still be saved."""


class Refused(LedgerUnavailable):
    """The server has refused a statement: nothing was done."""


class Conflict(Exception):
    """Another process was faster: nothing was done."""


class Fate(Enum):
    """The result of a save that was answered."""

    SAVED = "saved"
    STALE = "stale"
    DEAD = "dead"


class Swapping(Protocol):
    """A ledger that loads and saves in two messages."""

    def load(self, ask: Ask) -> Coroutine[Any, Any, Loaded]:
        """Return the session as it is. Raises LedgerUnavailable."""
        ...

    def save(self, ask: Ask, changes: Changes) -> Coroutine[Any, Any, tuple[Fate, int]]:
        """Save, and return the result and the position. Raises Unanswered if they are not known."""
        ...


class _Cached(NamedTuple):
    """A session with its accepted and active runs, and with its queue if all of that is known."""

    session: SessionRow
    runs: list[RunRow]
    has_queue: bool


class SessionCache:
    """The sessions that this process saved last, some fresh numbers, and the ledger's clock.

    A number is fresh for a session if it is higher than the session's fence. It does not matter if another
    process got a higher one meanwhile: if it used that in this session, the version has changed.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, _Cached] = {}
        self._numbers: list[int] = []
        self._clock: float | None = None

    def numbers_wanted(self) -> int:
        """Return how many fresh numbers to ask the ledger for."""
        return _NUMBERS - len(self._numbers) if len(self._numbers) < _NUMBERS // 2 else 0

    def add_numbers(self, numbers: Sequence[int]) -> None:
        """Add fresh numbers."""
        self._numbers = sorted([*self._numbers, *numbers])

    def set_clock(self, now: float) -> None:
        """Note the time by the ledger's clock."""
        self._clock = now - time.monotonic()

    def recall(self, ask: Ask) -> Loaded | None:
        """Return what a load would return if no other process has written; None if it is not known.

        A run that `is_new` is assumed to be unknown to every other session; the save checks that.
        """
        cached = self._sessions.get(ask.session_id)
        if cached is None or self._clock is None or ask.with_text or (ask.head and not cached.has_queue):
            return None
        found = next((row for row in cached.runs if row.run_id == ask.run_id), None)
        if found is None and ask.run_id is not None and not ask.is_new:
            return None
        lowest = bisect(self._numbers, cached.session.fence)
        if lowest == len(self._numbers):
            return None
        known = None if found is None else Known(found, None)
        now = time.monotonic() + self._clock
        return Loaded(ask.session_id, cached.session, cached.runs, known, self._numbers.pop(lowest), now)

    def saved(self, loaded: Loaded, changes: Changes) -> None:
        """Cache a session as it was saved."""
        if changes.after.fence != loaded.fresh:  # the number was not used
            insort(self._numbers, loaded.fresh)
            del self._numbers[:-_NUMBERS]
        self._sessions.pop(loaded.session_id, None)
        rows = {row.run_id: row for row in loaded.runs}
        queued = 0 if loaded.session is None else loaded.session.queued
        has_queue = queued == sum(row.state is QUEUED for row in loaded.runs)
        rows |= {row.run_id: row for row in changes.new}
        for change in changes.changed:
            rows[change.run_id] = change.applied(rows[change.run_id])
        for complete in changes.done:
            rows.pop(complete.run_id, None)
        text = sum(len(row.prompt) + len(row.attachments) for row in rows.values())
        if len(rows) > _RUNS_LIMIT or text > _TEXT_LIMIT:
            return
        runs = [row for row in rows.values() if has_queue or row.state is not QUEUED]
        self._sessions[loaded.session_id] = _Cached(changes.after, runs, has_queue)
        if len(self._sessions) > _SESSIONS_LIMIT:
            del self._sessions[next(iter(self._sessions))]

    def forget(self, session_id: str) -> None:
        """Drop a session: another process has written, or it is not known what was saved."""
        self._sessions.pop(session_id, None)

    def fingerprint(self) -> tuple[object, ...]:
        """Return the cached values, for comparison with another moment."""
        versions = [(name, each.session.version, each.has_queue) for name, each in self._sessions.items()]
        return (*self._numbers, *versions)


class LostSends:
    """The sends of one step whose answers were lost, by id."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}

    def saved(self, loaded: Loaded, *, is_keyed: bool) -> Decision | None:
        """Return the decision that was saved after all; None if none was.

        Raises OutcomeUnknown if the session does not show it.
        """
        if is_keyed:
            return None if loaded.key is None else self.decisions.get(loaded.key.step_id)
        row = loaded.session
        for step_id, decision in self.decisions.items():
            changes = decision.changes
            assert changes is not None
            if row is not None and step_id in row.recent:
                return decision
            if row is None or row.token != changes.after.token:
                if changes.before is not None:
                    raise OutcomeUnknown(
                        f"session {loaded.session_id!r} was purged while a step was on its way"
                    )
                if row is None:
                    continue  # there was no session, and there is none
            if row.version - changes.after.version >= REMEMBERED:
                raise OutcomeUnknown(
                    f"session {loaded.session_id!r} has forgotten whether the step was saved"
                )
        return None


async def swap(
    ledger: Swapping, cache: SessionCache, ask: Ask, decide: Decide, give_up: Callable[[bool], bool]
) -> Decision:
    """Take one step. `give_up` gets whether an answer is missing, and returns whether to stop trying.

    The first attempt uses the cached session, if there is one and the decision on it saves something.
    """
    lost = LostSends()
    attempt = 0
    while True:
        attempt += 1
        tried = ask if attempt == 1 else ask._replace(step_id=f"{ask.step_id}.{attempt}")
        try:
            recalled = _decide_on_cached(cache, tried, decide) if attempt == 1 else None
            if recalled is not None:
                loaded, decision = recalled
            else:
                loaded = await ledger.load(tried)
                if lost.decisions:
                    saved = lost.saved(loaded, is_keyed=ask.key is not None)
                    if saved is not None:
                        return saved
                decision = decide(loaded, tried.step_id)
            if decision.changes is None:
                return decision
            cache.forget(ask.session_id)
            fate, decision.position = await ledger.save(tried, decision.changes)
        except Unanswered:
            lost.decisions[tried.step_id] = decision
            if give_up(True):
                raise OutcomeUnknown("the ledger did not say whether the step was saved") from None
        except (NotStorable, OutcomeUnknown):
            raise
        except LedgerUnavailable as away:
            if give_up(bool(lost.decisions)):
                if lost.decisions:
                    raise OutcomeUnknown("the ledger did not say whether the step was saved") from away
                raise
        else:
            if fate is Fate.SAVED:
                cache.saved(loaded, decision.changes)
                return decision
            if fate is Fate.DEAD:
                if lost.decisions:
                    raise OutcomeUnknown("the worker died while a step was on its way")
                raise LeaseLost(f"worker {ask.worker} counts as dead")
        await asyncio.sleep(pause(attempt))


def _decide_on_cached(cache: SessionCache, ask: Ask, decide: Decide) -> tuple[Loaded, Decision] | None:
    """Decide on the cached session; None if that saves nothing: then a loaded session has to decide."""
    loaded = cache.recall(ask)
    if loaded is None:
        return None
    try:
        decision = decide(loaded, ask.step_id)
    except Exception:
        return None
    return None if decision.changes is None else (loaded, decision)


def pause(attempt: int) -> float:
    """Return how many seconds to wait before the next attempt: 0 at first, then random and growing."""
    if attempt < 2:
        return 0
    return random.uniform(0, min(_PAUSE * 2**attempt, _LONGEST_PAUSE))  # noqa: S311 - no secret
