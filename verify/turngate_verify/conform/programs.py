"""Programs: what the kit does to a subject, one operation after another, as text that can be replayed."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

from turngate_model.mechanism import Action

Name: TypeAlias = Literal["accept", "enter", "cancel", "clear", "fold", "finish", "fail"]
OPERATIONS: tuple[Name, ...] = get_args(Name)
_NAMED: dict[str, Name] = {name: name for name in OPERATIONS}
SESSIONS = ("s1", "s2")
RUNS = "abcdefghijklmnop"
_ABOUT_A_SESSION = ("cancel", "clear")


class Op(NamedTuple):
    """One operation: which, about which run, in which session."""

    name: Name
    run: str
    place: int = 0

    def __str__(self) -> str:
        """Return the operation as it is written in a replay command."""
        return " ".join((self.name, *([self.run] if self.run else []), *(["@2"] if self.place else [])))

    @property
    def action(self) -> Action:
        """The same as an action of the model, which counterexamples can tell."""
        match self.name:
            case "accept":
                return Action("caller", "accept", self.run, "fold")
            case "finish":
                return Action("runner", "end", self.run, "end_turn")
            case "fail":
                return Action("runner", "end", self.run, "error")
            case "fold":
                return Action("runner", "fold", self.run)
            case _:
                return Action("caller", self.name, self.run)


Program: TypeAlias = tuple[Op, ...]


class BadProgram(ValueError):
    """A text that is not a program."""


def written(program: Program) -> str:
    """Return a program as text."""
    return ", ".join(map(str, program))


def parsed(text: str) -> Program:
    """Return the program that is written in a text."""
    program = tuple(_parsed(part) for part in text.split(",") if part.strip())
    if not program:
        raise BadProgram(f"there is no operation in {text!r}; a program is like 'accept a, cancel, enter a'")
    if sum(op.name == "accept" for op in program) > len(RUNS):
        raise BadProgram(f"a program accepts at most {len(RUNS)} prompts")
    known: dict[str, int] = {}
    for op in program:
        if op.name == "accept":
            if op.run in known:
                raise BadProgram(f"{op.run} is accepted twice")
            known[op.run] = op.place
        elif op.run and known.get(op.run) != op.place:
            raise BadProgram(f"'{op}' is about a run that its session has not accepted")
    return program


def _parsed(text: str) -> Op:
    words = text.split()
    place = int(words[-1] == "@2")
    first, *runs = words[: len(words) - place] or [""]
    name = _NAMED.get(first)
    if name is None:
        raise BadProgram(f"{text.strip()!r} is no operation; there are {', '.join(OPERATIONS)}")
    if len(runs) != (name not in _ABOUT_A_SESSION):
        raise BadProgram(f"{text.strip()!r} should be like 'enter a', 'cancel' or 'accept b @2'")
    return Op(name, runs[0] if runs else "", place)


def renamed(program: Program) -> Program:
    """Return a program with its sessions and runs named in the order in which they come up."""
    names = {op.run: RUNS[nth] for nth, op in enumerate(op for op in program if op.name == "accept")}
    moved = {op.place: place for place, op in enumerate({op.place: op for op in program}.values())}
    return tuple(op._replace(run=names.get(op.run, ""), place=moved[op.place]) for op in program)
