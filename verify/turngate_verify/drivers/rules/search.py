"""Rules: everything that a caller, a runner and a store can do to the real dispatcher, in any order.

Hypothesis draws a program, one call of a rule per line, and with it the
interleaving: nothing happens on the loop except when a rule lets it. After
every rule the world is checked, at teardown it is run to its end. What
Hypothesis prints of a failure is a program that can be pasted and run, and
does the same again: there is no clock, no chance and no thread in it.

A check that exercised nothing proves nothing, so a run counts what it reached:
every rule, entry state, declared move and way for a run to end.
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
from turngate_verify.drivers.rules.machine import COMMANDS, CUT_OFF, HOOKS, REFUSALS, RULES, TurngateRules
from turngate_verify.drivers.rules.program import shrink, text
from turngate_verify.drivers.rules.reached import WAYS_TO_END, Tally, name_of
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
"""What a run of the rules is to reach; a move of a run is called as the table has it."""


@dataclass(frozen=True)
class Rules:
    """What came of a run of the rules."""

    examples: int
    """How many were run, the one that broke something included."""
    steps: int
    reached: frozenset[str]
    violation: Violation | None = None
    error: str = ""
    """What went wrong that no property speaks of."""
    program: str = ""
    """The smallest program found that does it, to be pasted and run."""

    @property
    def missed(self) -> frozenset[str]:
        """What was to be reached and was not."""
        return TO_REACH - self.reached


def rules_of(
    make: type[Dispatcher] = Dispatcher, *, claimed: Sequence[str] = (), tally: Tally | None = None
) -> type[TurngateRules]:
    """Return the rules for a dispatcher; for a design, with the properties that it is said to break."""

    class Chosen(TurngateRules):
        pass

    Chosen.__name__ = TurngateRules.__name__
    Chosen.make, Chosen.claimed, Chosen.tally = make, tuple(map(Property, claimed)), tally or Tally()
    return Chosen


def run_rules(
    examples: int,
    *,
    make: type[Dispatcher] = Dispatcher,
    seed: int | None = None,
    steps: int = 40,
    claimed: Sequence[Property] = (),
) -> Rules:
    """Run so many examples of so many steps, up to the first that breaks something, and shrink that one.

    The same seed gives the same examples; without one they are always the same. With ``claimed`` nothing
    but these properties is looked for.
    """
    tally = Tally()
    machine = rules_of(make, claimed=claimed, tally=tally)
    if seed is not None:
        machine = hypothesis.seed(seed)(machine)
    chosen = hypothesis.settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=seed is None,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.generate],
        # Forty steps are a lot to draw, and how long they take is no concern of a world without a clock.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    with suppress(Exception), with_reporter(lambda _: None):
        run_state_machine_as_test(machine, settings=chosen)
    reached = frozenset(tally.reached)
    if tally.raised is None:
        return Rules(tally.examples, tally.steps, reached)
    program, raised = shrink(rules_of(make, claimed=claimed), tally.program, tally.raised)
    return Rules(
        examples=tally.found_in,
        steps=tally.steps,
        reached=reached,
        violation=raised.violation if isinstance(raised, Broken) else None,
        error="" if isinstance(raised, Broken) else f"{type(raised).__name__}: {raised}",
        program=text(program, make, claimed),
    )
