"""The known-bad designs: each is refuted, by a property that it is known to break, in a shortest way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from explored import refuted, refuted_durable
from turngate_model import (
    DESIGNS,
    DURABLE_DESIGNS,
    EVERY_DESIGN,
    EVERY_MECHANISM,
    LINE_DESIGNS,
    MECHANISMS,
    NOT_IN_DESIGNS,
    Mechanism,
    Property,
)
from turngate_model.checker import Bounds, DurableBounds, Explorer, MemoryModel, OnDeath, bounds_of
from turngate_model.designs import SMALL_FLAWS, built_in
from turngate_model.durable import DURABLE_MECHANISMS, DurableMechanism, refute_durable
from turngate_model.pictures import refute
from turngate_model.properties import DurableProperty

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
    "hold-flag-consumed": {"HELD"},
    "hold-poisons-new": {"NO_STRAND", "NO_RESIDUE"},
    "hold-forgets-accepted": {"HELD"},
    "held-escapes-cancel": {"EXACTLY_ONE_COMPLETE"},
    "fold-takes-held": {"HELD"},
    "stop-in-two": {"HELD"},
    "resume-starts-two": {"ONE_TURN"},
    "resume-lost": {"NO_STRAND"},
    "edit-after-start": {"AS_EDITED"},
    "requeue-edit": {"TERMINAL_IS_FINAL"},
    "move-duplicates": {"EXACTLY_ONE_COMPLETE"},
    "cancel-by-place": {"NEVER_POISONED", "FULL_COVERAGE"},
    "made-up-rank": {"FIFO"},
    "late-steer": {"DECLARED_MOVE"},
    "second-lane": {"ONE_TURN"},
    "nested-turn": {"EXACTLY_ONE_COMPLETE"},
    "borrowed-marker": {"EXACTLY_ONE_COMPLETE"},
    "borrowed-context": {"NEVER_POISONED"},
    "last-write-wins": {"EXACTLY_ONE_COMPLETE"},
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
    "hold-flag-consumed": 5,
    "hold-poisons-new": 3,
    "hold-forgets-accepted": 3,
    "held-escapes-cancel": 4,
    "fold-takes-held": 6,
    "stop-in-two": 3,
    "resume-starts-two": 6,
    "resume-lost": 8,
    "edit-after-start": 4,
    "requeue-edit": 6,
    "move-duplicates": 6,
    "cancel-by-place": 5,
    "made-up-rank": 8,
    "late-steer": 6,
    "second-lane": 2,
    "nested-turn": 4,
    "borrowed-marker": 6,
    "borrowed-context": 9,
    "last-write-wins": 6,
    "no-version": 3,
    "no-fence": 6,
    "start-before-commit": 3,
    "reused-worker": 3,
    "answer-lost-retried": 4,
    "notify-only-cancel": 4,
    "orphaned-accept": 3,
    "reap-without-handoff": 4,
}


def test_the_catalogue_has_them_all_and_each_says_what_it_does() -> None:
    catalogue = {name: design.breaks for name, design in (EVERY_DESIGN | DURABLE_DESIGNS).items()}
    assert {name: set(map(str, breaks)) for name, breaks in catalogue.items()} == KNOWN_TO_BREAK
    assert all(
        design.flaw.endswith(".") for design in (EVERY_DESIGN | DURABLE_DESIGNS | SMALL_FLAWS).values()
    )


def test_a_class_has_the_flaw_of_the_design_that_it_is_named_after() -> None:
    class PendingFlag(Mechanism):
        pass

    names = {"PendingFlag": PendingFlag, "IdleGap": DurableMechanism, "Other": Mechanism}
    assert built_in(DESIGNS, Mechanism, names) == {"pending-flag": PendingFlag}


@pytest.mark.parametrize("name", KNOWN_TO_BREAK)
def test_the_design_is_refuted_by_what_it_is_known_to_break(name: str) -> None:
    result = refuted(name) if name in EVERY_DESIGN else refuted_durable(name)
    assert result.verdict == "violated"
    assert result.counterexample is not None
    assert result.counterexample.property in KNOWN_TO_BREAK[name]
    steps = len(result.counterexample.told())
    assert len(result.counterexample.steps) == steps <= 9
    assert steps == STEPS.get(name, steps)


EACH = [(name, claim) for name, claims in KNOWN_TO_BREAK.items() for claim in sorted(claims)]


@pytest.mark.parametrize(("name", "claim"), [each for each in EACH if each[0] in EVERY_DESIGN])
def test_a_design_breaks_each_of_what_it_is_known_to_break(name: str, claim: str) -> None:
    broken = Property(claim)
    if broken not in refuted(name).counterexamples:
        assert broken in refute(EVERY_DESIGN[name]._replace(breaks=(broken,))).counterexamples


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
    assert EVERY_MECHANISM.keys() | DURABLE_MECHANISMS.keys() == KNOWN_TO_BREAK.keys()
    for name, mechanism in {**EVERY_MECHANISM, **DURABLE_MECHANISMS}.items():
        own = [each for each in vars(mechanism) if not each.startswith("__") and each != "modes"]
        assert 1 <= len(own) <= (5 if name in DURABLE_DESIGNS else 4), name
        assert issubclass(mechanism, Mechanism | DurableMechanism)


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


# Holds, moves and edits.


@pytest.mark.deep
@pytest.mark.parametrize("name", LINE_DESIGNS)
def test_no_counterexample_to_a_design_of_the_line_is_shorter_with_three_prompts(name: str) -> None:
    bounds = replace(bounds_of(name), prompts=3, cancels=1)
    example = refute(LINE_DESIGNS[name], bounds).counterexample
    assert example is not None
    assert len(example.steps) == STEPS[name]


@pytest.mark.requirement("HELD")
def test_a_flag_of_holds_is_consumed_by_the_first_that_would_start() -> None:
    example = refuted("hold-flag-consumed").counterexamples[Property.HELD]
    assert example.told() == [
        "accept a",
        "accept b",
        "hold the session",
        "enter a: queued",
        "enter b: active",
    ]
    assert example.what == "b is held: it must not become active before it is resumed"


@pytest.mark.requirement("AS_EDITED")
def test_an_edit_that_is_written_later_comes_too_late() -> None:
    example = refuted("edit-after-start").counterexample
    assert example is not None
    assert example.told() == [
        "accept a",
        "edit a (queue)",
        "enter a: active",
        "having seen it wait, write the new prompt of a",
    ]


# Processes.


@pytest.mark.parametrize("on_death", ["fail", pytest.param("retry", marks=pytest.mark.deep)])
@pytest.mark.parametrize(("name", "claim"), [each for each in EACH if each[0] in DURABLE_DESIGNS])
def test_a_design_of_processes_breaks_each_of_what_it_is_known_to_break(
    name: str, claim: str, on_death: OnDeath
) -> None:
    design = DURABLE_DESIGNS[name]
    (broken,) = [each for each in design.breaks if each == claim]
    if on_death == "fail" and broken in refuted_durable(name).counterexamples:
        return
    found = refute_durable(design._replace(breaks=(broken,)), on_death)
    assert broken in found.counterexamples


def test_bounds_too_small_to_refute_a_design_leave_it_unknown() -> None:
    bounds = DurableBounds(prompts=1, expiries=0, losses=0, loads=0)
    for name in ("no-version", "no-fence", "start-before-commit", "answer-lost-retried"):
        assert refute_durable(DURABLE_DESIGNS[name], bounds=bounds).verdict == "unknown"


@pytest.mark.requirement("FENCED")
def test_a_turn_given_up_for_dead_finishes_anyway() -> None:
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
    assert example.what == "this turn of a was given up for dead, or has ended: it should change nothing"
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
    assert example.what == "a is accepted, and waits for a process that is gone"


def test_a_cancel_done_twice_does_not_look_like_two_cancels() -> None:
    """The judge is shown once what a client did once: else the run in between would be rightly covered."""
    twice = DURABLE_DESIGNS["answer-lost-retried"]._replace(breaks=(Property.NEVER_POISONED,))
    bounds = DurableBounds(crashes=0, expiries=0, loads=0)
    example = refute_durable(twice, bounds=bounds).counterexample
    assert example is not None
    assert example.property is Property.NEVER_POISONED
    assert "P1 has no answer, and does it again: cancel" in [step.split(";")[0] for step in example.told()]
