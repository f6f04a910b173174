"""``turngate verify`` and the files around it: it looks at its own files only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from surroundings import ROOT
from turngate_verify.cli import verify
from turngate_verify.cli.verification import Verification
from turngate_verify.report.provenance import own_checkout


@pytest.fixture
def somebodys_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with diagrams and a specification of its own, and with the name of ours."""
    (tmp_path / "diagrams").mkdir()
    (tmp_path / "diagrams" / "lifecycle.svg").write_text("theirs", encoding="utf-8")
    (tmp_path / "SPEC.md").write_text("theirs", encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'turngate'\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_the_checkout_that_is_run_is_looked_at(
    somebodys_project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[Path] = []

    def stale(_generated: object, folder: Path, checkout: Path) -> list[str]:
        looked_at.extend((folder.resolve(), checkout.resolve()))
        return ["it is stale"]

    monkeypatch.setattr(verify, "generate", lambda refuted: None)
    monkeypatch.setattr(verify, "stale", stale)
    verification = Verification()
    assert verify._diagrams_compared(verification) == "1 stale"
    assert looked_at == [ROOT / "diagrams", ROOT]
    assert (verification.problems, verification.unchecked) == (["it is stale"], [])


LOOKS = """
import json
from turngate_verify.cli import verify
verification = verify.Verification()
assert verify._diagrams_compared(verification) == "not compared here"
print(json.dumps([verification.problems, verification.unchecked]))
"""


@pytest.mark.parametrize("place", ["venv/lib/site-packages", "model"])
def test_where_it_is_installed_it_looks_at_nothing(somebodys_project: Path, place: str) -> None:
    installed = somebodys_project / place
    for package in ("model/turngate_model", "impl/turngate", "verify/turngate_verify"):
        shutil.copytree(ROOT / package, installed / Path(package).name)
    if place == "model":  # as if it were ours, but for the name
        (somebodys_project / "pyproject.toml").write_text("[project]\nname = 'theirs'\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", LOOKS],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(installed)},
    )
    problems, (unchecked,) = json.loads(done.stdout)
    assert problems == []
    assert "diagrams" in unchecked


def test_our_checkout_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert own_checkout() == ROOT


@pytest.mark.parametrize("broken", ["", "name = 7", "[project]\nname = 'other'", "project = 'turngate'"])
def test_a_project_that_does_not_say_that_it_is_ours_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(broken, encoding="utf-8")
    file = tmp_path / "model" / "turngate_model" / "__init__.py"
    monkeypatch.setattr("turngate_model.__file__", str(file))
    assert own_checkout() is None
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'turngate'", encoding="utf-8")
    assert own_checkout() == tmp_path
