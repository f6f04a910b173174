"""What concerns every test: programs that may be missing, and time that must not matter."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

from surroundings import ROOT, StandingStill, insist_on

MARKED = {
    "tests/acp": "acp",
    "tests/cli": "command",
    "tests/durable": "ledger",
    "tests/impl": "dispatcher",
    "tests/server": "server",
    "tests/verify/drivers": "driver",
    "tests/recipes": "agents",
}
"""The folders whose tests `make coverage`, `make matrix` and `make agents` choose, and by which marker."""


def marker(path: Path) -> str | None:
    """Return the marker of a test by the folder that its file is in."""
    return MARKED.get(path.parent.relative_to(ROOT).as_posix())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if mark := marker(item.path):
            item.add_marker(mark)
        if isinstance(item, pytest.Function) and "postgres" in parameters(item):
            item.add_marker("needs")  # starting the server reports what is missing


def parameters(item: pytest.Function) -> list[object]:
    """Return what a test was parametrised with."""
    return [*item.callspec.params.values()] if hasattr(item, "callspec") else []


@pytest.hookimpl(optionalhook=True)  # `make mutants` does without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Start two workers per core, for many tests wait for processes, sockets and clocks."""
    return 2 * (os.cpu_count() or 1)


def pytest_collection_finish() -> None:
    """Keep what is loaded by now out of the garbage collector's way, for many tests have it collect."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Have the PostgreSQL that tests have started be gone when they have ended."""
    postgres = sys.modules.get("postgres")
    if postgres is not None and postgres.cluster.cache_info().currsize:
        postgres.cluster().remove()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            insist_on(program)


@pytest.fixture(autouse=True)
def _not_on_github(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands say more where GitHub runs them: a test that is about this sets the variables itself."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> StandingStill:
    """Keep the searches of the conformance kit from running out of time, however slow the machine is."""
    clock = StandingStill()
    monkeypatch.setattr("turngate_verify.conform.suites.time", clock)
    monkeypatch.setattr("turngate_verify.conform.midflight.time", clock)
    return clock
