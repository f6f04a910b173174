"""The campaign for soundness: it passes right dispatchers, and says which it accuses."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

import flights
from surroundings import ROOT

FEW = ["--executions", "1", "--programs", "60", "--examples", "1", "--seconds", "600"]


@pytest.fixture(scope="module")
def soundness() -> ModuleType:
    spec = importlib.util.spec_from_file_location("soundness", ROOT / "tools" / "soundness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("standing_clock")
def test_it_counts_what_it_has_played_and_accuses_no_right_dispatcher(
    soundness: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert soundness.main([*FEW, "--only", "FlightSteps"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("seed 0 FlightSteps: ")
    assert "2 subjects, 0 accusations" in shown or "1 subjects, 0 accusations" in shown


@pytest.mark.usefixtures("standing_clock")
def test_it_says_which_dispatcher_is_accused_by_which_program(
    soundness: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(flights, "RIGHT", [flights.LosesInTheTick])
    assert soundness.main([*FEW, "--only", "FlightLosesInTheTick"]) == 1
    assert "ACCUSED FlightLosesInTheTick: " in capsys.readouterr().out


def test_a_name_of_none_is_refused(soundness: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        soundness.main(["--only", "Nope"])
    assert "'Nope'" in capsys.readouterr().err
