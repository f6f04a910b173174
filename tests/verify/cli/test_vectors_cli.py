"""``turngate vectors``: where it writes, and what it says of a file that is stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surroundings import ROOT
from turngate.cli.main import run

MINIMAL = (ROOT / "vectors" / "minimal.jsonl").read_text(encoding="utf-8")


def test_the_minimal_set_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["vectors"]) == 0
    assert capsys.readouterr().out == MINIMAL


def test_a_file_is_written_and_found_up_to_date_until_it_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "vectors.jsonl"
    assert run(["vectors", "--check", str(file)]) == 1
    assert not file.exists()
    assert run(["vectors", str(file)]) == 0
    assert file.read_text(encoding="utf-8") == MINIMAL
    assert run(["vectors", "--check", str(file)]) == 0
    file.write_text(MINIMAL.replace("accept a", "accept b", 1), encoding="utf-8")
    capsys.readouterr()
    assert run(["vectors", "--check", str(file)]) == 1
    assert capsys.readouterr().err == f"{file} is stale; run: turngate vectors {file}\n"


def test_a_check_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["vectors", "--check"]) == 2
    assert "FILE" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["vectors", str(tmp_path / "nowhere" / "v.jsonl")]) == 2
    assert "No such file or directory" in capsys.readouterr().err


@pytest.mark.deep
def test_the_full_set_is_written_with_its_name(tmp_path: Path) -> None:
    file = tmp_path / "full.jsonl"
    assert run(["vectors", "--full", str(file)]) == 0
    heading, *vectors = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    assert heading["set"] == "full"
    assert len(vectors) > 1000
    assert run(["vectors", "--full", "--check", str(file)]) == 0
