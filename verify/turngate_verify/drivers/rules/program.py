"""Programs: the calls that an example made of its rules, to be run again, shrunk, and printed as Python.

Hypothesis shrinks the choices that it drew, which takes minutes. ``shrink``
leaves calls out of the program, which takes seconds. When a call that made runs
is left out, the later runs are renamed: they get the run_ids that they would
have had without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from turngate_verify.drivers.rules.machine import TurngateRules

RulesProgram = tuple["RuleCall", ...]


class RuleCall(NamedTuple):
    """One call of a rule: its name and its arguments."""

    rule: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        """Return the call as Python."""
        drawn = ", ".join(f"{name}={_python(value)}" for name, value in sorted(self.arguments.items()))
        return f"state.{self.rule}({drawn})"

    @property
    def new_runs(self) -> int:
        """How many new run_ids the call uses: one for each prompt."""
        return len(self.arguments.get("prompts", ()))


def _python(value: object) -> str:
    """Return a value as Python, also the one number whose repr is none."""
    return "float('inf')" if value == math.inf else repr(value)


def run_program(rules: type[TurngateRules], program: Sequence[RuleCall]) -> Exception | None:
    """Run a program in a new world, and return the exception that it raises, if any."""
    state = rules()
    try:
        try:
            for call in program:
                getattr(state, call.rule)(**call.arguments)
        finally:
            state.teardown()
    except Exception as exc:
        return exc
    return None


def shrink(
    rules: type[TurngateRules], program: RulesProgram, raised: Exception
) -> tuple[RulesProgram, Exception]:
    """Leave out of a failing program all that it fails without; return what remains, and what that raises.

    A smaller program counts only if it fails in the same way.
    """
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            also = run_program(rules, candidate)
            if also is not None and _way_of_failing(also) == _way_of_failing(raised):
                program, raised, smaller = candidate, also, True
                break
    return program, raised


def _way_of_failing(raised: Exception) -> object:
    """Return the property that is broken, or else the type of the exception."""
    violation = getattr(raised, "violation", None)
    return violation.property if violation else type(raised)


def program_text(program: RulesProgram, make: type, claimed: Sequence[str] = ()) -> str:
    """Return a program as Python to paste and run."""
    chosen = [] if make.__name__ == "Dispatcher" else [make.__name__]
    if claimed:
        chosen.append("claimed=" + repr([str(each) for each in claimed]))
    return "\n".join(
        [
            "from turngate_verify.drivers.rules.search import rules_of",
            *([f"from {make.__module__} import {make.__name__}"] if chosen else []),
            "",
            f"state = rules_of({', '.join(chosen)})()",
            *map(str, program),
            "state.teardown()",
            "",
        ]
    )


def _smaller(program: RulesProgram) -> Iterator[RulesProgram]:
    """Yield smaller programs: without half of the calls, a quarter, one; then with simpler calls."""
    for size in (len(program) // 2, len(program) // 4, 1):
        for start in range(len(program) - size, -1, -1) if size else ():
            yield _without(program, start, start + size)
    for nth, call in enumerate(program):
        for arguments in _simpler(call.arguments):
            yield (*program[:nth], RuleCall(call.rule, arguments), *program[nth + 1 :])
        for prompt in range(call.new_runs if call.new_runs > 1 else 0):
            prompts = call.arguments["prompts"]
            fewer = {**call.arguments, "prompts": prompts[:prompt] + prompts[prompt + 1 :]}
            renamed = _renamed(program[nth + 1 :], _runs_before(program, nth) + prompt, 1)
            yield (*program[:nth], RuleCall(call.rule, fewer), *renamed)


def _simpler(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield simpler arguments of one call: a shorter list, a number nearer to 0, no hook.

    The prompts stay as they are: without one of them the later runs have to be renamed.
    """
    for name, value in arguments.items():
        if isinstance(value, list) and name != "prompts":
            yield from ({**arguments, name: value[:nth] + value[nth + 1 :]} for nth in range(len(value)))
        elif isinstance(value, int) and value:
            yield {**arguments, name: type(value)(value - 1 if value > 0 else value + 1)}
        elif name == "hook" and value:
            yield {**arguments, name: ""}


def _without(program: RulesProgram, start: int, end: int) -> RulesProgram:
    """Leave out the calls from ``start`` up to ``end``."""
    gone = sum(call.new_runs for call in program[start:end])
    return (*program[:start], *_renamed(program[end:], _runs_before(program, start), gone))


def _runs_before(program: RulesProgram, nth: int) -> int:
    return sum(call.new_runs for call in program[:nth])


def _renamed(calls: RulesProgram, kept: int, gone: int) -> Iterator[RuleCall]:
    """Rename the runs in calls. The first ``kept`` runs stay, the ``gone`` runs after these are missing."""
    for rule, arguments in calls:
        after, r, number = arguments.get("run", "").rpartition("r")
        if gone and number.isdigit() and int(number) > kept + gone:
            yield RuleCall(rule, {**arguments, "run": f"{after}{r}{int(number) - gone}"})
        else:
            yield RuleCall(rule, arguments)
