"""Run the rules: Hypothesis has callers, runners and the others do anything to the real dispatcher.

Hypothesis draws a program, which is a list of calls of rules. It draws the
interleaving with it, because the loop runs nothing unless a rule says so. After
every rule the example checks its world; at the end it lets the world come to its
end. A failing program can be pasted and run, and fails again in the same way:
there is no clock, no chance and no thread in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis.reporting import with_reporter
from hypothesis.stateful import run_state_machine_as_test

from turngate import Dispatcher
from turngate_model import TABLE, Property, Violation
from turngate_verify.drivers.rules.dice import backend_of
from turngate_verify.drivers.rules.example import RULES
from turngate_verify.drivers.rules.hooks import HOOKS
from turngate_verify.drivers.rules.machine import CUT_OFF, TurngateRules
from turngate_verify.drivers.rules.program import program_text, shrink
from turngate_verify.drivers.rules.reached import WAYS_TO_END, Tally, name_of
from turngate_verify.drivers.rules.refusals import REFUSALS
from turngate_verify.drivers.rules.runners import COMMANDS
from turngate_verify.world.expecting import Broken

TO_REACH = frozenset(
    {
        *(f"rule: {name}" for name in RULES),
        *(f"runner: {name}" for name in COMMANDS),
        *(f"hook: {name}" for name in HOOKS),
        CUT_OFF,
        *(f"refused: {refusal.__name__}" for refusal in REFUSALS),
        *(f"end: {way}" for way in WAYS_TO_END),
        *(name_of(row) for row in TABLE),
    }
)
"""What the examples together must reach."""


@dataclass(frozen=True)
class Rules:
    """The result of running the rules."""

    examples: int
    """How many examples were run, up to and including the first that failed."""
    steps: int
    reached: frozenset[str]
    violation: Violation | None = None
    error: str = ""
    """What went wrong, if it breaks no property."""
    program: str = ""
    """The smallest program found that fails in this way, as Python."""

    @property
    def missed(self) -> frozenset[str]:
        """What the examples did not reach, and should have."""
        return TO_REACH - self.reached


def rules_of(
    make: type[Dispatcher] = Dispatcher, *, claimed: Sequence[str] = (), tally: Tally | None = None
) -> type[TurngateRules]:
    """Return the rules for a class of dispatchers, ``claimed`` being the properties it is said to break."""

    class Chosen(TurngateRules):
        pass

    Chosen.__name__ = TurngateRules.__name__
    Chosen.make, Chosen.claimed, Chosen.tally = make, tuple(map(Property, claimed)), tally or Tally()
    return Chosen


def run_rules(
    examples: int,
    *,
    make: type[Dispatcher] = Dispatcher,
    seed: int = 0,
    steps: int = 40,
    claimed: Sequence[Property] = (),
    tally: Tally | None = None,
    shrinks: bool = True,
) -> Rules:
    """Run examples up to the first that fails, and shrink its program.

    The same seed gives the same examples. With ``claimed``, only a violation of one of these properties is a
    failure. To watch, pass the ``tally``, which is kept as it goes. Without ``shrinks`` the program that
    fails is returned as it was drawn, which is enough to know that one does.
    """
    tally = Tally() if tally is None else tally
    machine = rules_of(make, claimed=claimed, tally=tally)
    chosen = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        backend=backend_of(seed),
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        # Hypothesis would complain that examples of forty steps are large and slow. They may be.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    with suppress(Exception), with_reporter(lambda _: None):
        run_state_machine_as_test(machine, settings=chosen)
    reached = frozenset(tally.reached)
    if tally.raised is None:
        return Rules(tally.examples, tally.steps, reached)
    program, raised = tally.program, tally.raised
    if shrinks:
        program, raised = shrink(rules_of(make, claimed=claimed), program, raised)
    return Rules(
        examples=tally.found_in,
        steps=tally.steps,
        reached=reached,
        violation=raised.violation if isinstance(raised, Broken) else None,
        error="" if isinstance(raised, Broken) else f"{type(raised).__name__}: {raised}",
        program=program_text(program, make, claimed),
    )
