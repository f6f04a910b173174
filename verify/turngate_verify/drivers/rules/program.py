"""Programs: what was done to a world, line by line; run again, made smaller, and printed to be pasted.

Hypothesis shrinks what it has drawn. This shrinks what was done, which is less
work: a line that does not matter is left out, and the runs are renamed as if
it had never been.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from turngate_verify.drivers.rules.machine import TurngateRules

Program = tuple["Line", ...]


class Line(NamedTuple):
    """One call of a rule, by name."""

    rule: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        """Return the call as it is written."""
        drawn = ", ".join(f"{name}={value!r}" for name, value in sorted(self.arguments.items()))
        return f"state.{self.rule}({drawn})"

    @property
    def names(self) -> int:
        """How many runs the line gives a name to."""
        return len(self.arguments.get("prompts", ()))


def run(rules: type[TurngateRules], program: Sequence[Line]) -> Exception | None:
    """Run a program in a world of its own, and return what it raises."""
    state = rules()
    try:
        try:
            for line in program:
                getattr(state, line.rule)(**line.arguments)
        finally:
            state.teardown()
    except Exception as exc:
        return exc
    return None


def shrink(rules: type[TurngateRules], program: Program, raised: Exception) -> tuple[Program, Exception]:
    """Return a program from which nothing can be left out, and what it raises: the same kind of thing."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(program):
            also = run(rules, candidate)
            if also is not None and kind(also) == kind(raised):
                program, raised, smaller = candidate, also, True
                break
    return program, raised


def kind(raised: Exception) -> object:
    """Return what makes two failures the same: the property, or the type of an exception."""
    violation = getattr(raised, "violation", None)
    return violation.property if violation else type(raised)


def text(program: Program, make: type, claimed: Sequence[str] = ()) -> str:
    """Return a program as Python to be pasted and run."""
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


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs with less in them: half of it, some lines, one line, then shorter lines."""
    for size in (len(program) // 2, len(program) // 4, 1):
        for start in range(len(program) - size, -1, -1) if size else ():
            yield _without(program, start, start + size)
    for nth, line in enumerate(program):
        for arguments in _simpler(line.arguments):
            yield (*program[:nth], Line(line.rule, arguments), *program[nth + 1 :])
        for prompt in range(line.names if line.names > 1 else 0):
            prompts = line.arguments["prompts"]
            fewer = {**line.arguments, "prompts": prompts[:prompt] + prompts[prompt + 1 :]}
            renamed = _renamed(program[nth + 1 :], _named_before(program, nth) + prompt, 1)
            yield (*program[:nth], Line(line.rule, fewer), *renamed)


def _simpler(arguments: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in arguments.items():
        if isinstance(value, list) and name != "prompts":
            yield from ({**arguments, name: value[:nth] + value[nth + 1 :]} for nth in range(len(value)))
        elif isinstance(value, int) and value:
            yield {**arguments, name: type(value)(value - 1)}
        elif name == "hook" and value:
            yield {**arguments, name: ""}


def _without(program: Program, start: int, end: int) -> Program:
    gone = sum(line.names for line in program[start:end])
    return (*program[:start], *_renamed(program[end:], _named_before(program, start), gone))


def _named_before(program: Program, nth: int) -> int:
    return sum(line.names for line in program[:nth])


def _renamed(lines: Program, kept: int, gone: int) -> Iterator[Line]:
    """Yield the lines with the runs renamed as if those after the first ``kept`` had never been."""
    for rule, arguments in lines:
        after, r, number = arguments.get("run", "").rpartition("r")
        if gone and number.isdigit() and int(number) > kept + gone:
            yield Line(rule, {**arguments, "run": f"{after}{r}{int(number) - gone}"})
        else:
            yield Line(rule, arguments)
