"""The pytest plugin: an adapter in a test module is the whole suite; other modules notice nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surroundings import ROOT
from turngate_model import Property

PATHS = [str(ROOT / part) for part in ("impl", "model", "verify", "tests/support", "examples/conformance")]

FLAWED = """
from math import inf
from conforming import Plain
from turngate_verify.conform import Effort

class Stranding(Plain):
    __test__ = True
    effort = Effort(programs=700, examples=10, seconds=inf)

    def __init__(self):
        super().__init__("strands")
"""
BROKEN = """
from conforming import Plain

class Broken(Plain):
    __test__ = True

    def finish(self, run):
        raise RuntimeError("out of order")
"""
INNOCENT = """
class Features:
    features = "not ours"

def test_nothing():
    pass
"""


def pytest_in(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest as a user would, in a folder without configuration."""
    program = f"import sys; sys.path[:0] = {PATHS}; import pytest; sys.exit(pytest.main({list(arguments)}))"
    command = [sys.executable, "-c", program]
    settings = {name: value for name, value in os.environ.items() if name != "CI"}  # a longer summary
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def stranding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stranding")
    (folder / "test_mine.py").write_text(FLAWED)
    return folder


def test_an_adapter_is_one_test_per_property(stranding: Path) -> None:
    code, printed = pytest_in(stranding, "-rs", "-p", "no:cacheprovider")
    assert code == 1
    assert "1 failed, 11 passed, 1 skipped" in printed
    assert (
        f"NO_STRAND: {Property.NO_STRAND.sentence}\n"
        "   1  accept a\n"
        "   2  accept b\n"
        "   3  enter a: active\n"
        "   4  enter b: queued\n"
        "   5  the turn of a fails: RunComplete of a: no luck\n"
        "  but b hangs: it neither started nor completed before the subject came to rest, "
        "and no turn of its session is active. It should have started\n"
        "  replay: turngate conform --replay 'accept a, accept b, enter a, enter b, fail a' "
        "test_mine.py:Stranding\n"
    ) in printed
    assert "NO_RESIDUE is unknown: " in printed


def test_the_usual_options_work(stranding: Path) -> None:
    code, printed = pytest_in(stranding, "-p", "no:cacheprovider", "-k", "FIFO or ONE_TURN", "-v")
    assert code == 0
    assert "test_mine.py::Stranding::ONE_TURN PASSED" in printed
    assert "2 passed, 11 deselected" in printed


def test_it_works_with_xdist(stranding: Path) -> None:
    code, printed = pytest_in(stranding, "-p", "no:cacheprovider", "-n", "2")
    assert code == 1
    assert "1 failed, 11 passed, 1 skipped" in printed


def test_a_subject_that_cannot_be_judged_fails_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    code, printed = pytest_in(tmp_path, "-p", "no:cacheprovider", "-k", "FIFO")
    assert code == 1
    assert "at finish a: it raised RuntimeError" in printed
    assert "3  finish a" in printed


def test_why_a_subject_cannot_be_judged_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "test_broken.py").write_text(BROKEN)
    code, printed = pytest_in(tmp_path, "-p", "no:cacheprovider")
    assert code == 1
    assert printed.count("at finish a: it raised RuntimeError('out of order')") == 1
    assert printed.count("see test_broken.py::Broken::NEVER_POISONED") == 11


UNSTEADY = """
from itertools import cycle
from conforming import Plain
from turngate_verify.conform import Effort

class Unsteady(Plain):
    __test__ = True
    effort = Effort(programs=30, examples=0)
    turns = cycle([""] * 9 + ["completes twice"])

    def __init__(self):
        super().__init__(next(self.turns))
"""


def test_what_is_flaky_fails_with_both_transcripts(tmp_path: Path) -> None:
    (tmp_path / "test_unsteady.py").write_text(UNSTEADY)
    code, printed = pytest_in(tmp_path, "-p", "no:cacheprovider", "-k", "EXACTLY_ONE_COMPLETE")
    assert code == 1
    assert "gets a second RunComplete\n  flaky: played again, the same program did" in printed
    assert "not break it:\n   1  accept a\n" in printed
    assert "  replay: turngate conform --replay 'accept a" in printed


def test_a_run_that_does_not_use_the_kit_does_not_load_it(tmp_path: Path) -> None:
    (tmp_path / "test_innocent.py").write_text(INNOCENT)
    (tmp_path / "conftest.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        "    assert 'turngate_verify.pytest_plugin' in sys.modules\n"
        "    kit = {'turngate', 'turngate_model', 'turngate_verify.conform', 'hypothesis.core'}\n"
        "    assert not kit & set(sys.modules)\n"
    )
    # Other plugins that are installed here load Hypothesis, which is their own affair.
    without = ("-p", "no:hypothesispytest", "-p", "no:schemathesis")
    code, printed = pytest_in(tmp_path, "-p", "no:cacheprovider", "-W", "error", *without)
    assert code == 0, printed
    assert "1 passed" in printed
