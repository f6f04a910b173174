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
    "hold",
    "resume",
    "hold_run",
    "resume_run",
    "stop",
    "move",
    "edit",
    "send_now",
    "into",
]
OPERATIONS: tuple[Name, ...] = get_args(Name)
_NAMED: dict[str, Name] = {name: name for name in OPERATIONS}
SESSIONS = tuple(f"s{number}" for number in range(1, 10))
RUNS = "abcdefghijklmnop"
TAKING_IN = ("accept", "interrupt", "reject", "into")
"""The operations that bring a new prompt."""
_ABOUT_A_SESSION = ("cancel", "clear", "hold", "resume", "stop")
LINE: tuple[Name, ...] = (
    "hold", "resume", "hold_run", "resume_run", "stop", "move", "edit", "send_now", "into",
)  # fmt: skip
"""The operations on waiting runs."""
ABOUT_ALL = ("wait", "crash", "residue")
"""The operations that are about the whole subject, not about a session."""
REST = -1
"""The gap after an operation that is waited for: the next one is called when the subject is at rest."""


class Op(NamedTuple):
    """One operation: which, about which run, in which session."""

    name: Name
    run: str = ""
    place: int = 0
    gap: int = REST
    """The callbacks until the next operation is called; milliseconds, if the subject cannot be stepped."""
    other: str = ""
    """The run before which this one is moved, or for whose turn it is brought; the number of an edit."""

    def __str__(self) -> str:
        """Return the operation as it is written in a replay command."""
        at = [f"@{self.place + 1}"] if self.place else []
        other = [self.other] if self.other and self.name != "edit" else []
        return " ".join((self.name, *([self.run] if self.run else []), *other, *at))

    @property
    def arguments(self) -> dict[str, str | None]:
        """The arguments of the operation, in order, under the names that the JSON lines use."""
        session: dict[str, str | None] = {"session": SESSIONS[self.place]}
        if self.name in ABOUT_ALL:
            return {}
        if self.name in _ABOUT_A_SESSION:
            return session
        about = {**(session if self.name in TAKING_IN else {}), "run": self.run}
        match self.name:
            case "move":
                return {**about, "before": self.other or None}
            case "into":
                return {**about, "into": self.other}
            case "edit":
                return {**about, "prompt": edited(self.run, self.other)}
            case _:
                return about

    @property
    def action(self) -> Action:
        """The operation as an action of the model, which counterexamples are made of."""
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
            case "into":
                return Action("caller", "accept", self.run, "into")
            case "move":
                named = f"{self.run} {self.other}".rstrip()
                return Action("caller", "move", named, "before" if self.other else "last")
            case "edit":
                return Action("caller", "edit", self.run, "prompt")
            case _:
                return Action("caller", self.name, self.run)


Program: TypeAlias = tuple[Op, ...]


def edited(run: str, number: str) -> str:
    """Return the prompt that an edit gives a run. Until then the prompt is the id of the run."""
    return f"{run}#{number}"


def run_of(prompt: str) -> str:
    """Return the run that a prompt belongs to, whether or not it was edited."""
    return prompt.partition("#")[0]


class BadProgram(ValueError):
    """The text is not a program."""


def gaps(program: Program) -> int:
    """Count the operations of a program that are followed by another before the subject is at rest."""
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
    """Parse a program."""
    program: Program = ()
    for part in text.split(","):
        if part.strip():
            first, *more = re.split(r" \+(\d{0,5}) ", part)
            ops = [_parsed(each) for each in (first, *more[1::2])]
            gap = [*(int(each or 0) for each in more[::2]), REST]
            named = [(op.name, op.run) for op in ops if op.name in LINE]
            if len(set(named)) < len(named):
                raise BadProgram(f"{part.strip()!r} does the same twice: an answer could be that to either")
            program += tuple(op._replace(gap=each) for op, each in zip(ops, gap, strict=True))
    if not program:
        raise BadProgram(
            f"there is no operation in {text!r}; a program is like 'accept a, finish a +2 cancel'"
        )
    if sum(op.name in TAKING_IN for op in program) > len(RUNS):
        raise BadProgram(f"a program accepts at most {len(RUNS)} prompts")
    known: dict[str, int] = {}
    for op in program:
        if op.name in ("into", "move") and op.other and known.get(op.other) != op.place:
            raise BadProgram(f"'{op}' is about a run that its session has not accepted")
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
    takes = {"into": (2,), "move": (1, 2)}.get(name, (int(name not in (*_ABOUT_A_SESSION, *ABOUT_ALL)),))
    if len(runs) not in takes or (at and name in ABOUT_ALL):
        like = "'into b a', 'move c b' or 'move c'" if name in ("into", "move") else "'enter a', 'cancel'"
        raise BadProgram(f"{text.strip()!r} should be like {like} or 'accept b @2'")
    run, other = [*runs, "", ""][:2]
    return Op(name, run, int(at[1]) - 1 if at else 0, other=other)


def part_of(program: Program, kept: Collection[int]) -> Program:
    """Return some operations of a program; a gap goes with the operation after it."""
    return tuple(
        op._replace(gap=op.gap if nth + 1 in kept else REST) for nth, op in enumerate(program) if nth in kept
    )


def renamed(program: Program) -> Program:
    """Return a program with its sessions and runs renamed in the order of their first appearance."""
    names = {op.run: RUNS[nth] for nth, op in enumerate(op for op in program if op.name in TAKING_IN)}
    places = dict.fromkeys(op.place for op in program if op.name not in ABOUT_ALL)
    moved = {place: nth for nth, place in enumerate(places)}
    return tuple(
        op._replace(
            run=names.get(op.run, ""),
            place=moved.get(op.place, 0),
            other="" if op.name == "edit" else names.get(op.other, ""),
        )
        for op in program
    )
