"""The pair in Go: what the kit finds in the one, which was built in earnest, and that its twin is sound."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from surroundings import ROOT
from turngate_model import Property
from turngate_verify.conform import JUDGED, Command, Effort, Features, ProgramLimits, check, parsed, play
from turngate_verify.vectors import can_play, minimal, play_vector

pytestmark = [pytest.mark.usefixtures("standing_clock"), pytest.mark.needs("go")]

GO = ROOT / "examples" / "conformance" / "go"
LONG = 600.0
"""Seconds after which something counts as hung: nothing that works takes so long on any machine."""
QUICK = Effort(programs=1000, depth=5, examples=5)
BROKEN = {
    Property.EXACTLY_ONE_COMPLETE: [
        "accept a, enter a, accept b, enter b, cancel",
        "accept a, enter a, accept b, enter b, clear, finish a",
        "accept a, enter a, accept b, enter b, fold a, finish a",
    ],
    Property.NO_STRAND: ["accept a, enter a, accept b, enter b, fail a"],
    Property.LAST_WORD: ["accept a, enter a, accept b, enter b, finish a"],
    Property.FIFO: ["accept a, accept b, accept c, enter a, enter c, enter b, finish a"],
}
"""What the dispatcher breaks, and programs that show each of its flaws."""


def built(name: str, folder: Path) -> Path:
    """Build one of the pair. Nothing is fetched, and nothing is written outside of the folder."""
    program = folder / name
    surroundings = os.environ | {"GOCACHE": str(folder / "cache"), "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
    subprocess.run(["go", "vet", "./..."], cwd=GO, env=surroundings, check=True)
    subprocess.run(["go", "build", "-o", program, f"./{name}"], cwd=GO, env=surroundings, check=True)
    return program


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("go")


@pytest.fixture(scope="module")
def described(folder: Path) -> Iterator[Command]:
    command = Command(str(built("described", folder)), timeout=LONG)
    yield command
    command.stop()


@pytest.fixture(scope="module")
def repaired(folder: Path) -> Iterator[Command]:
    command = Command(str(built("repaired", folder)), timeout=LONG)
    yield command
    command.stop()


def test_what_the_described_one_breaks(described: Command) -> None:
    result = check(described, effort=QUICK)
    assert result.failed is None
    assert result.verdict == "violated"
    assert {*BROKEN} - {Property.FIFO} == result.counterexamples.keys() - {Property.FIFO}
    for each in result.counterexamples.keys() - {Property.FIFO}:
        assert len(result.counterexamples[each].steps) == 5


@pytest.mark.parametrize(("broken", "program"), [(each, text) for each in BROKEN for text in BROKEN[each]])
def test_each_flaw_is_shown_by_a_program_of_its_own(
    described: Command, repaired: Command, broken: Property, program: str
) -> None:
    played = play(described, parsed(program), ProgramLimits())
    assert broken in {each.property for each in (*played.violations, *(late for late, _ in played.late))}
    sound = play(repaired, parsed(program), ProgramLimits())
    assert (sound.violations, sound.late) == ((), ())


def test_the_repaired_one_breaks_nothing(repaired: Command) -> None:
    result = check(repaired, effort=QUICK)
    assert result.failed is None
    assert (result.verdict, result.replays) == ("holds", {})
    assert result.features == Features(two_phase=True, folds=True, clear=True, messages=True)
    assert {each for each in JUDGED if result.verdict_of(each) != "holds"} == {Property.NO_RESIDUE}


def test_the_vectors_refute_the_one_and_not_the_other(described: Command, repaired: Command) -> None:
    able = Features(two_phase=True, folds=True, clear=True, messages=True)
    vectors = [vector for vector in minimal() if can_play(able, vector)]
    refuted = [vector for vector in vectors if play_vector(described, vector)]
    known = {name for vector in refuted for name in vector.refutes}
    assert {"silent-drop", "silent-fold", "swallowed-outer", "stranded-queue", "silent-clear"} <= known
    for vector in vectors:
        assert (difference := play_vector(repaired, vector)) is None, str(difference)
