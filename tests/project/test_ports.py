"""The ports in ports/: their own tests in their own languages, and the player of the vectors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turngate_vectors
from conforming import FLAWS, flawed
from surroundings import ROOT
from turngate_verify.conform import Subject, Wrote, written
from turngate_verify.conform.port import Observed
from turngate_verify.vectors import can_play, play_vector, read
from turngate_verify.vectors.vector import as_record

PORTS = ROOT / "ports"
MINIMAL = str(ROOT / "vectors" / "minimal.jsonl")
VECTORS = read(Path(MINIMAL).read_text(encoding="utf-8"))
SUBJECT = """
import json, sys

for line in sys.stdin:
    asked = json.loads(line)
    {act}
"""


def run(command: list[str], folder: Path, **more: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=os.environ | more, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.needs("node")
def test_the_port_for_node() -> None:
    run(["node", "--test", "test/"], PORTS / "node")


@pytest.mark.needs("go")
def test_the_port_for_go(tmp_path: Path) -> None:
    go = {"GOCACHE": str(tmp_path), "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
    run(["go", "vet", "./..."], PORTS / "go", **go)
    run(["go", "test", "./..."], PORTS / "go", **go)


def subject(tmp_path: Path, act: str) -> list[str]:
    """Return a command that does this with each question."""
    file = tmp_path / "subject.py"
    file.write_text(SUBJECT.format(act=act))
    return [sys.executable, str(file)]


def asking(make: Callable[[], Subject]) -> turngate_vectors.Ask:
    """Return a function that asks a subject of the kit, as the player asks a command."""
    subjects: list[Subject] = []

    def ask(op: str, **arguments: str) -> dict[str, Any]:
        if op == "reset":
            subjects[:] = [make()]
            return {"events": []}
        getattr(subjects[0], op)(*arguments.values())
        return {"events": [shown(event) for event in subjects[0].observe()]}

    return ask


def shown(event: Observed) -> dict[str, Any]:
    return as_record(event) | ({"reason": event.reason} if isinstance(event, Wrote) else {})


@pytest.mark.parametrize("flaw", ["", *FLAWS])
def test_the_player_finds_what_the_kit_finds(flaw: str) -> None:
    make = flawed(flaw)
    features = make().features
    kit = [written(each.program) for each in VECTORS if can_play(features, each) and play_vector(make, each)]
    playable = [
        each for each in turngate_vectors.read(MINIMAL) if turngate_vectors.can_play(features.names, each)
    ]
    found = [turngate_vectors.play(asking(make), features.names, each) for each in playable]
    assert [each.program for each in found if each is not None] == kit
    assert bool(kit) == bool(flaw)


@pytest.mark.needs("node")
@pytest.mark.parametrize(("name", "code"), [("repaired", 0), ("stranded", 1)])
def test_the_player_plays_on_a_command(name: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["node", str(ROOT / "examples" / "conformance" / "node" / f"{name}.mjs")]
    assert turngate_vectors.main([MINIMAL, "--", *command]) == code
    *differences, summary = capsys.readouterr().out.splitlines()
    playable = sum({*each.needs} <= {"cancel", "clear"} for each in VECTORS)
    assert summary == f"{playable} of {len(VECTORS)} vectors played, {code} with a difference"
    assert any("after operation 4 may be seen" in each for each in differences) == bool(code)


EMPTY = "print(json.dumps({'id': asked['id'], 'features': [], 'events': []}), flush=True)"


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("sys.exit(0)", "the command ended, or did not answer hello"),
        ("print('hello')", "is not JSON with the id 1: 'hello'"),
        ("print(json.dumps({'id': 7}))", "is not JSON with the id 1"),
        ("print(line, end='', flush=True)", "the answer to reset has no list of events"),
        (EMPTY.replace("[]", "['real_time']", 1), "turngate conform takes real_time"),
    ],
    ids=["it ends", "no JSON", "another id", "no events", "real time"],
)
def test_a_command_that_cannot_be_used_is_one_line(
    act: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert turngate_vectors.main([MINIMAL, "--", *subject(tmp_path, act)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith("turngate-vectors: ")
    assert said in told[0]


def test_a_command_or_a_file_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in ([MINIMAL, "--", str(tmp_path / "none")], [str(tmp_path / "none"), "--", "true"]):
        assert turngate_vectors.main(arguments) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_other_versions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "vectors.jsonl"
    file.write_text(json.dumps({"vectors": turngate_vectors.VERSION + 1}) + "\n")
    with pytest.raises(turngate_vectors.Unusable, match="version 1"):
        turngate_vectors.read(str(file))


def test_a_dispatcher_that_can_play_no_vector_is_not_right(tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.jsonl"
    heading, *rest = Path(MINIMAL).read_text(encoding="utf-8").splitlines()
    with_needs = [each for each in rest if json.loads(each)["needs"]]
    vectors.write_text("\n".join([heading, *with_needs]) + "\n")
    assert turngate_vectors.main([str(vectors), "--", *subject(tmp_path, EMPTY)]) == 3
