"""The machine that the tests run on: what may be missing there, and how that is told."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from conftest import about, pytest_runtest_setup
from surroundings import insist_on


def test_a_program_that_is_missing_fails_in_ci_and_is_told_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NOT RUN: the program dot is not installed"):
        insist_on("dot")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="NOT RUN: the program dot is not installed"):
        insist_on("dot")


def test_a_program_that_is_there_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: f"/bin/{program}")
    insist_on("dot")


def test_what_a_test_says_it_needs_is_insisted_on(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    request.node.add_marker(pytest.mark.needs("sh", "no-such-program"))
    with pytest.raises(pytest.skip.Exception, match="no-such-program"):
        pytest_runtest_setup(request.node)


def test_a_file_is_about_what_it_imports(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    for imports, subject in {
        "import turngate\n": "dispatcher",
        "import sys\nfrom turngate import Run\nfrom turngate_model._loop import VirtualLoop\n": "dispatcher",
        "from turngate._core import SessionCore\n": "dispatcher",
        "from turngate import Run\nfrom turngate._verify._rules import run_rules\n": "driver",
        "from turngate import Run\nfrom turngate._cli import run\n": "",
        "from turngate_model import Bounds\nfrom turngate_itself import TurngateSubject\n": "",
    }.items():
        file.write_text(imports, encoding="utf-8")
        assert about(file) == subject, imports


def test_the_files_about_the_dispatcher_are_found() -> None:
    subjects = {path.stem: about(path) for path in Path(__file__).parent.glob("test_*.py")}
    assert {subjects[f"test_{name}"] for name in ("core", "dispatcher", "settle", "sqlite")} == {"dispatcher"}
    assert {subjects[f"test_{name}"] for name in ("lockstep", "rules", "schedules", "faults")} == {"driver"}
    assert {subjects[f"test_{name}"] for name in ("explorer", "trace", "conform")} == {""}
