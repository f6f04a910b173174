"""The rules against the real dispatcher: nothing breaks, all is reached, and what fails can be pasted."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import broken_dispatchers
from turngate import Dispatcher, Run
from turngate_model import TABLE
from turngate_verify.drivers.rules.program import RuleCall, _simpler, program_text, run_program, shrink
from turngate_verify.drivers.rules.search import TO_REACH, rules_of, run_rules
from turngate_verify.drivers.sabotage import LeakySession, PendingFlag, SilentDrop, StrandedQueue
from turngate_verify.world.expecting import Broken

for name, examples in {"quick": 75, "ci": 3_000, "deep": 30_000}.items():
    settings.register_profile(
        f"turngate-{name}",
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        # Hypothesis takes minutes to shrink a program, shrink takes seconds.
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        # As in run_rules: long programs, and no clock to be slow by.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )

PROFILE = settings.get_profile(f"turngate-{os.environ.get('TURNGATE_PROFILE', 'quick')}")


def run_profile(profile: settings, make: type[Dispatcher] = Dispatcher) -> None:
    """Run the rules; of what fails, add the smallest program that does it."""
    rules = rules_of(make)
    try:
        run_state_machine_as_test(rules, settings=profile)
    except Exception as raised:
        if rules.tally.raised is not None:
            smallest, _ = shrink(rules_of(make), rules.tally.program, rules.tally.raised)
            raised.add_note(program_text(smallest, make))
        raise


def test_nothing_breaks_with_the_profile() -> None:
    run_profile(PROFILE)


def test_a_break_under_the_profile_is_shown_as_a_small_program() -> None:
    with pytest.raises(Broken) as broken:
        run_profile(settings(PROFILE, database=None, derandomize=True), SilentDrop)
    with pytest.raises(Broken) as again:
        exec(broken.value.__notes__[-1], {})
    assert again.value.violation.property == broken.value.violation.property
    assert len(broken.value.__notes__[-1].splitlines()) <= 12


def test_nothing_breaks_and_everything_is_reached() -> None:
    rules = run_rules(300)
    assert (rules.violation, rules.error, rules.program) == (None, "", "")
    assert rules.examples >= 300
    assert rules.steps > 10 * rules.examples
    assert rules.missed == frozenset()


def test_the_goals_name_every_declared_move() -> None:
    moves = {name for name in TO_REACH if name.startswith("move: ")}
    assert len(moves) == len(TABLE)


def test_too_little_is_not_enough() -> None:
    rules = run_rules(2, seed=1, steps=3)
    assert rules.violation is None
    assert rules.missed > {"end: folded and finished"}


BROKEN = [PendingFlag, SilentDrop, StrandedQueue]


@pytest.mark.parametrize("make", BROKEN)
def test_the_printed_program_can_be_pasted_and_does_it_again(make: type[Dispatcher]) -> None:
    rules = run_rules(500, make=make, seed=2)
    assert rules.violation is not None
    for _ in range(3):
        with pytest.raises(Broken) as broken:
            exec(rules.program, {})
        assert broken.value.violation == rules.violation
    assert len(rules.program.splitlines()) <= 12


def test_what_hypothesis_prints_can_be_pasted_and_does_it_again() -> None:
    rules = rules_of(LeakySession)
    chosen = settings(
        PROFILE,
        max_examples=50,
        stateful_step_count=5,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    with pytest.raises(Broken) as broken:
        run_state_machine_as_test(rules, settings=chosen)
    printed = [line for line in broken.value.__notes__ if line.startswith("state")]
    assert printed[0] == "state = TurngateRules()"
    assert printed[-1] == "state.teardown()"
    with pytest.raises(Broken) as again:
        exec("\n".join(printed), {"TurngateRules": rules})
    assert again.value.violation == broken.value.violation


def test_a_problem_without_a_property_is_an_error() -> None:
    class Forgetful(Dispatcher):
        async def enter(self, run: Run) -> Any:
            raise LookupError(run.run_id)

    rules = run_rules(100, make=Forgetful, seed=1)
    assert rules.violation is None
    assert rules.error == "LookupError: r1"
    assert "state.enter" in rules.program


WRONG = [
    # Found by hooks that raise, or act when they are called.
    "Unguarded",
    "GuardsTooLittle",
    "ForgetsTooLate",
    # Found by subscribers that are cut off.
    "LosesTheBuffered",
    "NeverCutsOff",
    "CutsOffTooSoon",
    "CutsOffInSilence",
    "SkipsTheNext",
    # Found when completions are forgotten.
    "NeverForgets",
    "ForgetsOneMore",
    "ForgetsTheLatest",
    "GoesByRunId",
    "EmptiesHandles",
    "RefusesTheForgotten",
    "CancelsWhatIsOver",
    # Found by what runners leave behind, by contexts, by other loops and by what comes after the end.
    "TakesLateWrites",
    "RunsInItsOwnContext",
    "AnyLoop",
    "GivesLists",
    "RecordsAfterTheEnd",
]


@pytest.mark.parametrize("name", WRONG)
def test_the_rules_find_a_dispatcher_that_is_wrong_about(name: str) -> None:
    rules = run_rules(1_000, make=getattr(broken_dispatchers, name), seed=3)
    assert rules.violation or rules.error
    with pytest.raises(Exception) as again:  # noqa: PT011 - what it is depends on the program that was found
        exec(rules.program, {})
    assert rules.violation or rules.error.startswith(type(again.value).__name__)


def test_a_cancel_of_one_run_covers_its_turn_in_the_order_of_acceptance() -> None:
    program = (
        RuleCall("accept", {"session": "s", "prompts": ["fold", "fold"], "hook": ""}),
        RuleCall("enter", {"run": "r2"}),
        RuleCall("enter", {"run": "r1", "then": 1}),
        RuleCall("runner", {"run": "r2", "does": ["fold"], "then": 1}),
        RuleCall("cancel_run", {"run": "r2"}),
    )
    assert run_program(rules_of(), program) is None


def test_effects_of_a_hook_are_recorded_after_the_current_step() -> None:
    program = (
        RuleCall("accept", {"session": "s", "prompts": ["fold"], "hook": "cancel now"}),
        RuleCall("enter", {"run": "r1", "then": 1}),
        RuleCall(
            "submit", {"session": "s", "prompts": ["fold", "queue", "queue"], "waits": False, "then": 3}
        ),
        RuleCall("runner", {"run": "r1", "does": ["fold", "finish"], "then": 2}),
    )
    assert run_program(rules_of(), program) is None
    raised = run_program(rules_of(broken_dispatchers.PerformsAtOnce), program)
    assert re.findall(r"\[[\d, ]+\]", str(raised)) == ["[4, 2, 3]", "[2, 4, 3]"]


def test_a_program_is_shrunk_to_what_matters_and_its_runs_are_renamed() -> None:
    rules = rules_of(SilentDrop, claimed=["EXACTLY_ONE_COMPLETE"])
    program = (
        RuleCall("accept", {"session": "t", "prompts": ["fold", "queue"], "hook": "listen", "then": 2}),
        RuleCall("store", {"plan": "slow", "then": 1}),
        RuleCall("accept", {"session": "s", "prompts": ["fold", "queue", "fold"], "hook": "", "then": 0}),
        RuleCall("enter", {"run": "r3", "then": 0}),
        RuleCall("enter", {"run": "r5", "then": 3}),
        RuleCall("cancel", {"session": "s", "then": 0}),
    )
    raised = run_program(rules, program)
    assert isinstance(raised, Broken)
    smallest, also = shrink(rules, program, raised)
    assert isinstance(also, Broken)
    assert also.violation.property == raised.violation.property
    accept, *others = program_text(smallest, SilentDrop, ["EXACTLY_ONE_COMPLETE"]).splitlines()[4:]
    assert accept.startswith("state.accept(hook='', prompts=[")
    assert len(smallest[0].arguments["prompts"]) == 2
    assert others == [
        "state.enter(run='r1', then=0)",
        "state.enter(run='r2', then=0)",
        "state.cancel(session='s', then=0)",
        "state.teardown()",
    ]


def test_every_argument_of_a_program_can_be_pasted() -> None:
    program = (RuleCall("begin_close", {"finish": math.inf, "then": 0}),)
    exec(program_text(program, Dispatcher), {})


def test_a_number_in_a_program_shrinks_towards_0_and_no_further() -> None:
    assert [[*_simpler({"then": then})] for then in (-2, 0, 2)] == [[{"then": -1}], [], [{"then": 1}]]


SAME = """
import hashlib
from turngate_verify.drivers.rules.machine import TurngateRules
from turngate_verify.drivers.rules.search import run_rules

lived = hashlib.sha256()
teardown = TurngateRules.teardown

def lives(self):
    teardown(self)
    history = [[sorted(part) if isinstance(part, frozenset) else part for part in event]
               for _, event in self.world.monitor.history]
    told = [self.program, history, self.world.monitor.delivered, [r.read_so_far for r in self.readers]]
    lived.update(repr(told).encode())

TurngateRules.teardown = lives
run_rules(8, seed=7)
print(lived.hexdigest())
"""


def test_the_same_seed_lives_the_same_lives_whatever_the_hashes_and_the_modules_are() -> None:
    lives = {
        subprocess.run(
            [sys.executable, "-c", f"{loaded}\n{SAME}"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed, loaded in (("1", ""), ("2", "import turngate.durable, turngate_model.proof"))
    }
    assert len(lives) == 1
