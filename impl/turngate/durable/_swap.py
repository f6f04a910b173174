"""Compare and swap: load, decide, save if the session is still at the version that was loaded.

For ledgers whose load and save are two messages to a server. No lock is held while a step is decided. A save
ends in one of five ways:

1. It was saved.
2. Another process was faster. Load and decide again, after a random pause that grows.
3. The worker counts as dead. Nothing was saved, and nothing can be under its name.
4. The server could not be reached. Nothing was saved.
5. The answer was lost. Load the session again: it remembers the ids of its last steps, and each send has an
   id of its own. If the id is there, the step was saved, and goes on as if the answer had come. If not, send
   it again; should the lost one arrive after all, only one of the two finds its version. If so much has
   happened meanwhile that the session may have forgotten the id, the outcome is unknown, and the caller is
   told so. A step under an idempotency key is found by its key, however much has happened.
"""

from __future__ import annotations

import asyncio
import random
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from turngate.durable._ledger import LeaseLost, LedgerUnavailable, NotStorable, OutcomeUnknown
from turngate.durable._records import REMEMBERED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from turngate.durable._cache import SessionCache
    from turngate.durable._records import Ask, Changes, Decide, Decision, Loaded

_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.5


class Unanswered(Exception):
    """What was sent may have been saved, or may yet be."""


class Fate(Enum):
    """How a save ended that was answered."""

    SAVED = "saved"
    STALE = "stale"
    DEAD = "dead"


class Swapping(Protocol):
    """A ledger that loads and saves in two messages."""

    def load(self, ask: Ask) -> Coroutine[Any, Any, Loaded]:
        """Return the session as it is. Raises LedgerUnavailable."""
        ...

    def save(self, ask: Ask, changes: Changes) -> Coroutine[Any, Any, tuple[Fate, int]]:
        """Save, and return how that ended and at which position. Raises Unanswered if that is not known."""
        ...


class LostSends:
    """The sends of one step whose answers were lost, by their ids."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}

    def saved(self, loaded: Loaded, *, is_keyed: bool) -> Decision | None:
        """Return the decision that was saved after all, None if none was.

        Raises OutcomeUnknown if the session does not tell.
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
    """Take one step. `give_up` is told whether an answer is missing, and says when to stop trying.

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
    """Decide on the cached session; None if that saves nothing, which only a loaded session may decide."""
    loaded = cache.recall(ask)
    if loaded is None:
        return None
    try:
        decision = decide(loaded, ask.step_id)
    except Exception:
        return None
    return None if decision.changes is None else (loaded, decision)


def pause(attempt: int) -> float:
    """Return how many seconds to wait before the next attempt: none at first, then longer, at random."""
    if attempt < 2:
        return 0
    return random.uniform(0, min(_PAUSE * 2**attempt, _LONGEST_PAUSE))  # noqa: S311 - no secret
