"""Faults: every scenario spoiled once at every point, and dispatchers that do not stand it."""

from __future__ import annotations

import pytest

import broken_dispatchers
from turngate import Dispatcher
from turngate._verify._faults import KINDS, SPOILED, inject_faults
from turngate_model import Property


def test_the_dispatcher_stands_every_fault() -> None:
    found = inject_faults()
    assert found.failure is None, "\n".join(found.failure.told())
    assert dict(found.injections) == {
        "cancel": 220,
        "store": 60,
        "callback": 62,
        "interrupt": 364,
        "shutdown": 110,
        "dropped": 110,
    }
    assert set(found.injections) == set(KINDS)
    assert found.awaits == 52


BROKEN = {
    "Unprimed": ("cancel", Property.EXACTLY_ONE_COMPLETE),
    "Unguarded": ("callback", None),
    "Deaf": ("interrupt", None),
    "GivesUpWriting": ("cancel", Property.ON_RECORD),
    "LeavesTasks": ("none", None),
    "ForgetsToAwait": ("cancel", None),
    "ForgetsToLook": ("none", None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_dispatcher_that_does_not_stand_a_fault_is_found(name: str) -> None:
    make: type[Dispatcher] = getattr(broken_dispatchers, name)
    failure = inject_faults(make=make).failure
    assert failure is not None
    assert (failure.kind, failure.broken) == BROKEN[name], failure.told()
    assert failure.scenario in SPOILED


def test_a_fault_is_told() -> None:
    failure = inject_faults(make=broken_dispatchers.Unprimed).failure
    assert failure is not None
    assert failure.told() == [
        "EXACTLY_ONE_COMPLETE: a has ended without a RunComplete: it is owed one",
        "in the scenario 'handed off', with the task of the turn of a cancelled after 4 steps",
    ]
