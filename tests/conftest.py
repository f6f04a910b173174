"""What concerns every test: programs that may be missing, and time that must not matter."""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest

from surroundings import StandingStill, insist_on

TURNGATE = re.compile(r"^(?:from|import) (turngate(?:\._\w+)?)\b", re.MULTILINE)


def about(path: Path) -> str:
    """Tell from what a file imports whether its tests are about the dispatcher, a driver or neither."""
    parts = set(TURNGATE.findall(path.read_text(encoding="utf-8")))
    if "turngate._verify" in parts:
        return "driver"
    return "dispatcher" if parts and "turngate._cli" not in parts else ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    subjects = {path: about(path) for path in {item.path for item in items}}
    for item in items:
        if subject := subjects[item.path]:
            item.add_marker(subject)


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
