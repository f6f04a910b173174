"""Compare and swap: load, decide, save if the session is still at the version that was loaded.

For ledgers whose load and save are two messages to a server. No lock is held while anything is decided. There
are five ways for a save to end:

1. It was saved.
2. Somebody else was faster: load and decide again, after a while that grows and differs from process to
   process.
3. The worker counts as dead: nothing was saved, and nothing can be under its name.
4. The server could not be reached: nothing was saved.
5. The answer was lost. The session is loaded again. It remembers the ids of its last steps, and each send has
   an id of its own: so the step was saved (go on as if the answer had come), or it was not (send it again; if
   the lost one arrives after all, only one of the two finds the version it asks for). If so much has happened
   meanwhile that the session may have forgotten, the outcome is unknown, and whoever asked is told. A step
   under an idempotency key is found by its key, however much has happened.
"""

from __future__ import annotations

import asyncio
import random
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, Protocol

from turngate.durable._ledger import LeaseLost, LedgerUnavailable, NotStorable, OutcomeUnknown
from turngate.durable._rows import REMEMBERED

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from turngate.durable._recent import Memory
    from turngate.durable._rows import Ask, Changes, Decide, Decision, Loaded

_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.5


class Unanswered(Exception):
    """What was sent may have been saved, or may yet be."""


class Fate(Enum):
    """What came of a save that was answered."""

    SAVED = "saved"
    STALE = "stale"
    DEAD = "dead"


class Swapping(Protocol):
    """A ledger that loads and saves in two messages."""

    def load(self, ask: Ask) -> Coroutine[Any, Any, Loaded]:
        """Return the session as it is; LedgerUnavailable if that cannot be learnt."""
        ...

    def save(self, ask: Ask, changes: Changes) -> Coroutine[Any, Any, tuple[Fate, int]]:
        """Save, and say what came of it and at which position; raise Unanswered if that is not known."""
        ...


class _Sent:
    """The sends of one step whose answers were lost."""

    def __init__(self) -> None:
        self.decisions: dict[str, Decision] = {}

    def saved(self, loaded: Loaded, *, is_keyed: bool) -> Decision | None:
        """Return the decision that was saved after all, None if none was; raise if it cannot be told."""
        if is_keyed:
            return None if loaded.key is None else self.decisions.get(loaded.key.step_id)
        row = loaded.session
        for step_id, decision in self.decisions.items():
            changes = decision.changes
            assert changes is not None
            if row is not None and step_id in row.recent:
                return decision
            if changes.before is None and (row is None or row.token != changes.after.token):
                if row is None:
                    continue  # there was no session, and there is none
            elif row is None or row.token != changes.after.token:
                raise OutcomeUnknown(f"session {loaded.session_id!r} was purged while a step was on its way")
            if row is not None and row.version - changes.after.version >= REMEMBERED:
                raise OutcomeUnknown(
                    f"session {loaded.session_id!r} has forgotten whether the step was saved"
                )
        return None


async def swap(
    ledger: Swapping, memory: Memory, ask: Ask, decide: Decide, give_up: Callable[[bool], bool]
) -> Decision:
    """Take one step; `give_up`, told whether an answer is missing, says when it was tried for long enough.

    The first attempt is decided on what the `memory` has, if that leads to something that is to be saved.
    """
    sent = _Sent()
    attempt = 0
    while True:
        attempt += 1
        tried = ask if attempt == 1 else ask._replace(step_id=f"{ask.step_id}.{attempt}")
        try:
            recalled = _by_heart(memory, tried, decide) if attempt == 1 else None
            if recalled is not None:
                loaded, decision = recalled
            else:
                loaded = await ledger.load(tried)
                if sent.decisions:
                    saved = sent.saved(loaded, is_keyed=ask.key is not None)
                    if saved is not None:
                        return saved
                decision = decide(loaded, tried.step_id)
            if decision.changes is None:
                return decision
            memory.forget(ask.session_id)
            fate, decision.position = await ledger.save(tried, decision.changes)
        except Unanswered:
            sent.decisions[tried.step_id] = decision
            if give_up(True):
                raise OutcomeUnknown("the ledger did not say whether the step was saved") from None
        except (NotStorable, OutcomeUnknown):
            raise
        except LedgerUnavailable as away:
            if give_up(bool(sent.decisions)):
                if sent.decisions:
                    raise OutcomeUnknown("the ledger did not say whether the step was saved") from away
                raise
        else:
            if fate is Fate.SAVED:
                memory.saved(loaded, decision.changes)
                return decision
            if fate is Fate.DEAD:
                if sent.decisions:
                    raise OutcomeUnknown("the worker died while a step was on its way")
                raise LeaseLost(f"worker {ask.worker} counts as dead")
        await asyncio.sleep(pause(attempt))


def _by_heart(memory: Memory, ask: Ask, decide: Decide) -> tuple[Loaded, Decision] | None:
    """Decide on what is remembered; None if nothing is to be saved then: only a load tells if it is so."""
    loaded = memory.recall(ask)
    if loaded is None:
        return None
    try:
        decision = decide(loaded, ask.step_id)
    except Exception:
        return None
    return None if decision.changes is None else (loaded, decision)


def pause(attempt: int) -> float:
    """Return how long to wait before the next attempt: nothing at first, then more and more, at random."""
    if attempt < 2:
        return 0
    return random.uniform(0, min(_PAUSE * 2**attempt, _LONGEST_PAUSE))  # noqa: S311 - so that two do not meet again
