"""``turngate trace --intervals``: what it prints, what it refuses, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turngate_verify.cli import run

LINES: list[dict[str, Any]] = [
    {"event": "accept", "session": "s", "run": "a", "call": 0, "return": 1},
    {"event": "start", "run": "a", "at": 2},
    {"event": "cancel", "session": "s", "call": 3, "return": 4},
    {"event": "ended", "run": "a", "at": 5},
    {"event": "complete", "run": "a", "cancelled": True, "call": 4, "return": 6},
]


def written(path: Path, *lines: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_a_history_from_several_files_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    one = written(tmp_path / "one.jsonl", *LINES[3:])
    two = written(tmp_path / "two.jsonl", *LINES[:3], {"event": "end"})
    assert run(["trace", "--intervals", one, two, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["events"], told["runs"], told["unchecked"]) == ("holds", 5, 1, [])


def test_a_violation_is_drawn_with_its_intervals(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = [*LINES[:4], {**LINES[4], "cancelled": False, "call": 5}, {"event": "end"}]
    path = written(tmp_path / "wrong.jsonl", *wrong)
    assert run(["trace", "--intervals", path]) == 1
    out = capsys.readouterr().out
    assert "FULL_COVERAGE" in out
    assert "-> line 5  complete a finished" in out
    assert "|--" in out
    assert run(["trace", "--intervals", path, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["property"], told["line"]) == ("FULL_COVERAGE", "line 5")


def test_bad_input_gets_one_clear_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path / "bad.jsonl", {"event": "jump"})
    assert run(["trace", "--intervals", path]) == 2
    assert "line 1: unknown event 'jump'" in capsys.readouterr().err
    assert run(["trace", path, path]) == 2
    assert "--intervals" in capsys.readouterr().err
