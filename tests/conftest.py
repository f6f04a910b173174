"""What concerns every test: programs that may be missing, and time that must not matter."""

from __future__ import annotations

import gc

import pytest

from surroundings import StandingStill, insist_on


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of the garbage collector's way, for many tests have it collect."""
    gc.collect()
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            insist_on(program)


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> StandingStill:
    """Keep the searches of the conformance kit from running out of time, however slow the machine is."""
    clock = StandingStill()
    monkeypatch.setattr("turngate_model.conform._suite.time", clock)
    return clock
