"""Programs: what the kit does to a subject, one operation after another, as text that can be replayed."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal, NamedTuple, TypeAlias, get_args

from turngate_model.mechanism import Action

Name: TypeAlias = Literal[
    "accept",
    "enter",
    "cancel",
    "clear",
    "fold",
    "finish",
    "fail",
    "cancel_run",
    "interrupt",
    "reject",
    "wait",
    "crash",
    "residue",
]
OPERATIONS: tuple[Name, ...] = get_args(Name)
_NAMED: dict[str, Name] = {name: name for name in OPERATIONS}
SESSIONS = tuple(f"s{number}" for number in range(1, 10))
RUNS = "abcdefghijklmnop"
TAKING_IN = ("accept", "interrupt", "reject")
"""The operations that bring a new prompt."""
_ABOUT_A_SESSION = ("cancel", "clear")
ABOUT_ALL = ("wait", "crash", "residue")
"""The operations that are about the whole subject, and about no session."""
REST = -1
"""The gap after an operation that is waited for: the next one is called when the subject is at rest."""


class Op(NamedTuple):
    """One operation: which, about which run, in which session."""

    name: Name
    run: str = ""
    place: int = 0
    gap: int = REST
    """The callbacks until the next operation is called; milliseconds, if the subject cannot be stepped."""

    def __str__(self) -> str:
        """Return the operation as it is written in a replay command."""
        at = [f"@{self.place + 1}"] if self.place else []
        return " ".join((self.name, *([self.run] if self.run else []), *at))

    @property
    def arguments(self) -> dict[str, str]:
        """What the operation is called with: the names are those of the JSON lines, in order."""
        session = {"session": SESSIONS[self.place]}
        if self.name in ABOUT_ALL:
            return {}
        if self.name in _ABOUT_A_SESSION:
            return session
        return {**(session if self.name in TAKING_IN else {}), "run": self.run}

    @property
    def action(self) -> Action:
        """The same as an action of the model, which counterexamples can tell."""
        match self.name:
            case "accept":
                return Action("caller", "accept", self.run, "fold")
            case "interrupt" | "reject":
                return Action("caller", "accept", self.run, self.name)
            case "finish":
                return Action("runner", "end", self.run, "end_turn")
            case "fail":
                return Action("runner", "end", self.run, "error")
            case "fold":
                return Action("runner", "fold", self.run)
            case "wait" | "crash" | "residue":
                return Action("session", self.name)
            case _:
                return Action("caller", self.name, self.run)


Program: TypeAlias = tuple[Op, ...]


class BadProgram(ValueError):
    """A text that is not a program."""


def gaps(program: Program) -> int:
    """Return how many operations of a program are followed by another before the subject is at rest."""
    return sum(op.gap != REST for op in program)


def written(program: Program) -> str:
    """Return a program as text.

    A plus stands between operations that are called in the same moment, and
    ``+2`` between those with two callbacks in between.
    """
    return "".join(f"{op}{_between(op.gap)}" for op in program).removesuffix(", ")


def _between(gap: int) -> str:
    return ", " if gap == REST else f" +{gap or ''} "


def parsed(text: str) -> Program:
    """Return the program that is written in a text."""
    program: Program = ()
    for part in text.split(","):
        if part.strip():
            first, *more = re.split(r" \+(\d{0,5}) ", part)
            ops = [_parsed(each) for each in (first, *more[1::2])]
            gap = [*(int(each or 0) for each in more[::2]), REST]
            program += tuple(op._replace(gap=each) for op, each in zip(ops, gap, strict=True))
    if not program:
        raise BadProgram(
            f"there is no operation in {text!r}; a program is like 'accept a, finish a +2 cancel'"
        )
    if sum(op.name in TAKING_IN for op in program) > len(RUNS):
        raise BadProgram(f"a program accepts at most {len(RUNS)} prompts")
    known: dict[str, int] = {}
    for op in program:
        if op.name in TAKING_IN:
            if op.run in known:
                raise BadProgram(f"{op.run} is accepted twice")
            known[op.run] = op.place
        elif op.run and known.get(op.run) != op.place:
            raise BadProgram(f"'{op}' is about a run that its session has not accepted")
    return program


def _parsed(text: str) -> Op:
    words = text.split()
    at = re.fullmatch(rf"@([2-{len(SESSIONS)}])", words[-1] if words else "")
    first, *runs = words[: len(words) - bool(at)] or [""]
    name = _NAMED.get(first)
    if name is None:
        raise BadProgram(f"{text.strip()!r} is no operation; there are {', '.join(OPERATIONS)}")
    if len(runs) != (name not in (*_ABOUT_A_SESSION, *ABOUT_ALL)) or (at and name in ABOUT_ALL):
        raise BadProgram(f"{text.strip()!r} should be like 'enter a', 'cancel' or 'accept b @2'")
    return Op(name, runs[0] if runs else "", int(at[1]) - 1 if at else 0)


def part_of(program: Program, kept: Collection[int]) -> Program:
    """Return some operations of a program; a gap goes with the operation after it."""
    return tuple(
        op._replace(gap=op.gap if nth + 1 in kept else REST) for nth, op in enumerate(program) if nth in kept
    )


def renamed(program: Program) -> Program:
    """Return a program with its sessions and runs named in the order in which they come up."""
    names = {op.run: RUNS[nth] for nth, op in enumerate(op for op in program if op.name in TAKING_IN)}
    places = dict.fromkeys(op.place for op in program if op.name not in ABOUT_ALL)
    moved = {place: nth for nth, place in enumerate(places)}
    return tuple(op._replace(run=names.get(op.run, ""), place=moved.get(op.place, 0)) for op in program)
