"""A ledger on which calls fail on purpose: any call of any method, before or after it has done its work."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

from turngate.durable import Ledger, LedgerUnavailable, OutcomeUnknown

Spoil = Literal["away", "odd", "lost", "unknown", "broken"]
SPOILS: tuple[Spoil, ...] = get_args(Spoil)
METHODS = tuple(
    name for name, value in vars(Ledger).items() if inspect.isfunction(value) and not name.startswith("_")
)
"""The names of the methods that every ledger has."""
AWAITED = frozenset(name for name in METHODS if inspect.iscoroutinefunction(vars(Ledger)[name])) | {"step"}
PURPOSE = "on purpose"


def spoils_of(method: str) -> tuple[Spoil, ...]:
    """Return the ways in which a method may fail.

    A saved step never ends with a plain LedgerUnavailable, because that says that nothing was done. A method
    that does not wait cannot lose its answer.
    """
    if method not in AWAITED:
        return "away", "odd", "broken"
    return ("away", "odd", "unknown", "broken") if method == "step" else SPOILS


class Fault(NamedTuple):
    """Which call fails, and how.

    away     LedgerUnavailable, and nothing was done
    odd      an exception that no ledger should raise, and nothing was done
    lost     LedgerUnavailable, after it was done
    unknown  OutcomeUnknown, after it was done
    broken   an exception that no ledger should raise, after it was done
    """

    method: str
    number: int
    """Which of the calls of the method, from 0."""
    spoil: Spoil


class SpoiledLedger:
    """Wraps a ledger so that one call fails. Counts the calls of every method."""

    def __init__(self, ledger: Any, fault: Fault | None) -> None:
        self._spoiled = ledger
        self._fault = fault
        self.calls: Counter[str] = Counter()
        self.struck = False

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._spoiled, name)
        if name not in METHODS:
            return value
        return partial(self._await if name in AWAITED else self._call, name, value)

    async def _await(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        spoil = self._next(name)
        _fail_before(spoil)
        answer = await call(*args)
        _fail_after(spoil)
        return answer

    def _call(self, name: str, call: Callable[..., Any], *args: Any) -> Any:
        spoil = self._next(name)
        _fail_before(spoil)
        answer = call(*args)
        _fail_after(spoil)
        return answer

    def _next(self, name: str) -> Spoil | None:
        """Count a call, and return how it fails."""
        number = self.calls[name]
        self.calls[name] += 1
        if self._fault is None or self._fault[:2] != (name, number):
            return None
        self.struck = True
        return self._fault.spoil

    def __repr__(self) -> str:
        return f"<SpoiledLedger {self._spoiled!r}, {self._fault}>"


def _fail_before(spoil: Spoil | None) -> None:
    if spoil == "away":
        raise LedgerUnavailable(PURPOSE)
    if spoil == "odd":
        raise RuntimeError(PURPOSE)


def _fail_after(spoil: Spoil | None) -> None:
    if spoil == "lost":
        raise LedgerUnavailable(PURPOSE)
    if spoil == "unknown":
        raise OutcomeUnknown(PURPOSE)
    if spoil == "broken":
        raise RuntimeError(PURPOSE)
