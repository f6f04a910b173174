"""Make every injection into every scenario, or one of them again."""

from __future__ import annotations

import contextlib
import gc
import warnings
from collections.abc import Iterable, Iterator

from turngate import Dispatcher
from turngate_verify.drivers.faults.found import Faults
from turngate_verify.drivers.faults.injections import Injections
from turngate_verify.drivers.faults.scenarios import SPOILED
from turngate_verify.drivers.faults.trials import FaultStop
from turngate_verify.world.world import Make, without_log


def inject_faults(
    scenarios: Iterable[str] = SPOILED, *, make: Make = Dispatcher, found: Faults | None = None
) -> Faults:
    """Make every injection into each scenario; stop at the first after which something does not hold.

    To watch the search, pass the result, ``found``, which is filled in as it goes.
    """
    found = Faults() if found is None else found
    with _warnings_collected() as warned, contextlib.suppress(FaultStop):
        for name in scenarios:
            Injections(name, make, found, warned).make_all()
    return found


def replay_fault(scenario: str, number: int, *, make: Make = Dispatcher) -> Faults:
    """Make one injection again, and no other.

    Raises ValueError when the scenario has no such injection.
    """
    found = Faults()
    with _warnings_collected() as warned, contextlib.suppress(FaultStop):
        injections = Injections(scenario, make, found, warned, only=number)
        injections.make_all()
        if not 0 <= number <= injections.number:
            raise ValueError(f"{scenario} has the injections 1 to {injections.number}, and no {number}")
    return found


@contextlib.contextmanager
def _warnings_collected() -> Iterator[list[warnings.WarningMessage]]:
    """Collect the warnings, also those that come when garbage is collected.

    What is older than this is frozen, so that the garbage collector need not look at it every time.
    """
    gc.collect()
    gc.freeze()
    try:
        with without_log(), warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield warned
    finally:
        gc.unfreeze()
