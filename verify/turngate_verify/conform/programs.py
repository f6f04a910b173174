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


class Op(NamedTuple):
    """One operation: which, about which run, in which session."""

    name: Name
    run: str = ""
    place: int = 0
    at_once: bool = False
    """Whether the next operation is called in the same moment, without waiting for this one."""

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


def written(program: Program) -> str:
    """Return a program as text; a plus stands between operations that are called in the same moment."""
    parts = [f"{op}{' + ' if op.at_once else ', '}" for op in program]
    return "".join(parts).removesuffix(", ")


def parsed(text: str) -> Program:
    """Return the program that is written in a text."""
    program: Program = ()
    for part in text.split(","):
        if part.strip():
            *held, last = [_parsed(each) for each in part.split(" + ")]
            program += (*(op._replace(at_once=True) for op in held), last)
    if not program:
        raise BadProgram(f"there is no operation in {text!r}; a program is like 'accept a, cancel, enter a'")
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
    """Return some operations of a program; what is left of a burst has a last operation, too."""
    return tuple(
        op._replace(at_once=op.at_once and nth + 1 in kept) for nth, op in enumerate(program) if nth in kept
    )


def renamed(program: Program) -> Program:
    """Return a program with its sessions and runs named in the order in which they come up."""
    names = {op.run: RUNS[nth] for nth, op in enumerate(op for op in program if op.name in TAKING_IN)}
    places = dict.fromkeys(op.place for op in program if op.name not in ABOUT_ALL)
    moved = {place: nth for nth, place in enumerate(places)}
    return tuple(op._replace(run=names.get(op.run, ""), place=moved.get(op.place, 0)) for op in program)
