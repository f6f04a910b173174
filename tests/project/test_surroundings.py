"""The machine that the tests run on: what may be missing there, and how that is reported."""

from __future__ import annotations

import shutil

import pytest
from conftest import MARKED, marker, pytest_runtest_setup

from surroundings import ROOT, insist_on, insist_on_package


def test_a_missing_program_fails_in_ci_and_is_reported_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NOT RUN: the program dot is not installed"):
        insist_on("dot")
    monkeypatch.delenv("CI")
    with pytest.raises(pytest.skip.Exception, match="NOT RUN: the program dot is not installed"):
        insist_on("dot")


def test_a_missing_package_is_reported_like_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    insist_on_package("pytest")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="NOT RUN: the package no_such_package is not installed"):
        insist_on_package("no_such_package")


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


def test_a_test_is_marked_by_its_folder() -> None:
    assert marker(ROOT / "tests" / "impl" / "test_core.py") == "dispatcher"
    assert marker(ROOT / "tests" / "verify" / "drivers" / "test_rules.py") == "driver"
    assert marker(ROOT / "tests" / "verify" / "test_trace.py") is None
    assert all((ROOT / folder).is_dir() for folder in MARKED)
