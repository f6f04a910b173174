"""The known-bad designs: each is refuted, by a property that it is known to break, in a shortest way."""

from __future__ import annotations

import pytest

from explored import refuted
from turngate_model import DESIGNS, MECHANISMS, NOT_IN_DESIGNS, Mechanism, Property
from turngate_model.checker import Bounds, Explorer, MemoryModel
from turngate_model.pictures import refute

# What each design is known to break.
KNOWN_TO_BREAK = {
    "no-accept-tracking": {"FULL_COVERAGE"},
    "pending-flag": {"FULL_COVERAGE", "NEVER_POISONED"},
    "pending-count": {"NEVER_POISONED", "FULL_COVERAGE"},
    "hasty-clear": {"FULL_COVERAGE"},
    "silent-entry": {"EXACTLY_ONE_COMPLETE"},
    "unlocked-drain": {"FULL_COVERAGE", "EXACTLY_ONE_COMPLETE"},
    "silent-drop": {"EXACTLY_ONE_COMPLETE"},
    "silent-fold": {"EXACTLY_ONE_COMPLETE"},
    "swallowed-outer": {"EXACTLY_ONE_COMPLETE"},
    "stranded-queue": {"NO_STRAND"},
    "idle-gap": {"FIFO", "ONE_TURN"},
    "unserialized-entry": {"ONE_TURN"},
    "blind-release": {"ONE_TURN", "FULL_COVERAGE"},
    "unlocked-clear": {"EXACTLY_ONE_COMPLETE"},
    "late-mark": {"NEVER_POISONED"},
    "untracked": {"NEVER_POISONED"},
    "late-own-complete": {"LAST_WORD"},
    "publish-first": {"LAST_WORD"},
    "reused-id": {"EXACTLY_ONE_COMPLETE"},
    "leaky-session": {"NO_RESIDUE"},
}


def test_there_are_the_twenty_and_each_says_what_it_does() -> None:
    assert {name: set(map(str, design.breaks)) for name, design in DESIGNS.items()} == KNOWN_TO_BREAK
    assert all(design.flaw.endswith(".") for design in DESIGNS.values())


@pytest.mark.parametrize("name", DESIGNS)
def test_the_design_is_refuted_by_what_it_is_known_to_break(name: str) -> None:
    result = refuted(name)
    assert result.verdict == "violated"
    assert result.counterexample is not None
    assert result.counterexample.property in KNOWN_TO_BREAK[name]
    assert len(result.counterexample.steps) == len(result.counterexample.told()) <= 9


BOTH = [
    (name, claim) for name, claims in KNOWN_TO_BREAK.items() for claim in sorted(claims) if len(claims) > 1
]


@pytest.mark.parametrize(("name", "claim"), BOTH)
def test_a_design_that_breaks_two_properties_breaks_each(name: str, claim: str) -> None:
    found = refute(DESIGNS[name]._replace(breaks=(Property(claim),)))
    assert found.counterexample is not None
    assert found.counterexample.property == claim


@pytest.mark.requirement("NEVER_POISONED")
def test_a_flag_is_taken_by_a_later_run() -> None:
    example = refuted("pending-flag").counterexamples[Property.NEVER_POISONED]
    assert example.told() == ["accept a", "cancel", "accept b", "enter b: cancel_on_entry"]


@pytest.mark.requirement("FULL_COVERAGE")
def test_the_sibling_of_a_flagged_run_escapes() -> None:
    flag = DESIGNS["pending-flag"]._replace(breaks=(Property.FULL_COVERAGE,))
    example = refute(flag).counterexample
    assert example is not None
    assert example.told() == [
        "accept a",
        "accept b",
        "cancel",
        "enter a: cancel_on_entry",
        "enter b: active",
    ]
    assert example.what == "b was accepted before the cancel: it should be cancelled on entry, not active"


@pytest.mark.requirement("NO_STRAND")
def test_a_failing_turn_strands_the_queue() -> None:
    example = refuted("stranded-queue").counterexample
    assert example is not None
    assert example.told()[-2:] == [
        "the turn of a fails",
        "the messages of a are written: RunComplete of a: runner failed",
    ]


def test_a_design_is_as_small_as_its_flaw() -> None:
    assert MECHANISMS.keys() == DESIGNS.keys()
    for name, mechanism in MECHANISMS.items():
        own = [each for each in vars(mechanism) if not each.startswith("__") and each != "modes"]
        assert 1 <= len(own) <= 3, name
        assert issubclass(mechanism, Mechanism)


def test_designs_are_refuted_with_every_operation_too() -> None:
    for name in ("no-accept-tracking", "silent-drop", "leaky-session"):
        design = DESIGNS[name]
        explorer = Explorer(MemoryModel(Bounds(2, 1), MECHANISMS[name], name=name), claimed=design.breaks)
        assert explorer.run().counterexample is not None


SMALL = [Bounds(*size, NOT_IN_DESIGNS) for size in ((1, 0, 1), (1, 1, 1), (2, 0, 1), (2, 1, 1), (2, 1, 2))]


@pytest.mark.parametrize("name", DESIGNS)
def test_a_design_that_the_bounds_do_not_put_to_the_test_is_unknown(name: str) -> None:
    design = DESIGNS[name]
    verdicts = []
    for bounds in SMALL:
        result = Explorer(MemoryModel(bounds, MECHANISMS[name], name=name), claimed=design.breaks).run()
        assert result.verdict == ("violated" if result.counterexample else "unknown"), bounds
        verdicts.append(result.verdict)
    assert verdicts[0] == "unknown" or name in ("publish-first", "reused-id")
