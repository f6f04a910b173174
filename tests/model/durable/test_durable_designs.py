"""The known-bad designs with processes that die: each is refuted by what it is known to break."""

from __future__ import annotations

import pytest

from explored import refuted_durable
from turngate_model import DURABLE_DESIGNS
from turngate_model.checker import DurableBounds, OnDeath
from turngate_model.durable import DURABLE_MECHANISMS, DurableMechanism, refute_durable
from turngate_model.properties import DurableProperty, Property

KNOWN_TO_BREAK = {
    "no-version": {"EXACTLY_ONE_COMPLETE", "ONE_TURN", "FULL_COVERAGE"},
    "no-fence": {"FENCED", "EXACTLY_ONE_COMPLETE"},
    "start-before-commit": {"ONE_TURN", "FULL_COVERAGE"},
    "reused-worker": {"ADOPTED", "ONE_TURN"},
    "answer-lost-retried": {"EXACTLY_ONE_COMPLETE"},
    "notify-only-cancel": {"FULL_COVERAGE"},
    "orphaned-accept": {"ADOPTED", "DURABLE"},
    "reap-without-handoff": {"NO_STRAND", "ADOPTED"},
}
STEPS = {
    "no-version": 3,
    "no-fence": 6,
    "start-before-commit": 3,
    "reused-worker": 3,
    "answer-lost-retried": 4,
    "notify-only-cancel": 4,
    "orphaned-accept": 3,
    "reap-without-handoff": 4,
}


def test_there_are_the_eight_and_each_says_what_it_does() -> None:
    assert {name: set(map(str, each.breaks)) for name, each in DURABLE_DESIGNS.items()} == KNOWN_TO_BREAK
    assert all(design.flaw.endswith(".") for design in DURABLE_DESIGNS.values())


@pytest.mark.parametrize("name", DURABLE_DESIGNS)
def test_the_design_is_refuted_by_what_it_is_known_to_break(name: str) -> None:
    result = refuted_durable(name)
    assert result.verdict == "violated"
    assert result.counterexample is not None
    assert result.counterexample.property in KNOWN_TO_BREAK[name]
    assert len(result.counterexample.steps) == STEPS[name]


EACH = [(name, claim) for name, claims in KNOWN_TO_BREAK.items() for claim in sorted(claims)]


@pytest.mark.parametrize("on_death", ["fail", pytest.param("retry", marks=pytest.mark.deep)])
@pytest.mark.parametrize(("name", "claim"), EACH)
def test_a_design_breaks_each_of_what_it_is_known_to_break(name: str, claim: str, on_death: OnDeath) -> None:
    design = DURABLE_DESIGNS[name]
    (broken,) = [each for each in design.breaks if each == claim]
    if on_death == "fail" and broken in refuted_durable(name).counterexamples:
        return
    found = refute_durable(design._replace(breaks=(broken,)), on_death)
    assert broken in found.counterexamples


def test_a_design_is_as_small_as_its_flaw() -> None:
    assert DURABLE_MECHANISMS.keys() == DURABLE_DESIGNS.keys()
    for name, mechanism in DURABLE_MECHANISMS.items():
        own = [each for each in vars(mechanism) if not each.startswith("__")]
        assert 1 <= len(own) <= 5, name
        assert issubclass(mechanism, DurableMechanism)


def test_bounds_too_small_to_refute_a_design_leave_it_unknown() -> None:
    bounds = DurableBounds(prompts=1, expiries=0, losses=0, loads=0)
    for name in ("no-version", "no-fence", "start-before-commit", "answer-lost-retried"):
        assert refute_durable(DURABLE_DESIGNS[name], bounds=bounds).verdict == "unknown"


@pytest.mark.requirement("FENCED")
def test_a_turn_given_up_for_dead_finishes_all_the_same() -> None:
    result = refuted_durable("no-fence")
    example = result.counterexamples[DurableProperty.FENCED]
    assert example.told() == [
        "P1 saves: submit a; a is active",
        "P1 calls the runner for a",
        "P1 is given up for dead, and lives",
        "P1 notices that it was given up, and takes a new name",
        "P1 saves: take over the turn of a, whose process is dead; RunComplete of a: lost",
        "P1 saves: finish the turn of a; RunComplete of a: finished",
    ]
    assert example.what == "this turn of a was given up for dead, or is over: it should change nothing"
    assert len(result.counterexamples[Property.EXACTLY_ONE_COMPLETE].steps) == 6


@pytest.mark.requirement("ADOPTED")
def test_a_process_under_its_old_name_keeps_others_from_its_turn() -> None:
    example = refuted_durable("reused-worker").counterexample
    assert example is not None
    assert example.told() == [
        "P1 saves: submit a; a is active",
        "P1 dies",
        "P1 comes back, under its old name",
    ]
    assert example.what == "the turn of a is active, and no process will end it"


@pytest.mark.requirement("DURABLE")
def test_what_was_accepted_is_orphaned_when_every_process_dies() -> None:
    orphans = DURABLE_DESIGNS["orphaned-accept"]._replace(breaks=(DurableProperty.DURABLE,))
    example = refute_durable(orphans, bounds=DurableBounds(processes=1, expiries=0, loads=0)).counterexample
    assert example is not None
    assert example.told() == [
        "P1 saves: accept a",
        "P1 dies",
        "P1 comes back, under a new name",
        "the dead process is given up",
    ]
    assert example.what == "a is accepted, and waits for a process that is no more"


def test_a_cancel_done_twice_does_not_look_like_two_cancels() -> None:
    """The judge is shown once what a client did once: else the run in between would be rightly covered."""
    twice = DURABLE_DESIGNS["answer-lost-retried"]._replace(breaks=(Property.NEVER_POISONED,))
    bounds = DurableBounds(crashes=0, expiries=0, loads=0)
    example = refute_durable(twice, bounds=bounds).counterexample
    assert example is not None
    assert example.property is Property.NEVER_POISONED
    assert "P1 has no answer, and does it again: cancel" in [step.split(";")[0] for step in example.told()]
