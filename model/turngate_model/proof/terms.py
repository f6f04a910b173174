"""Formulas as values: what the text of the proof is made of.

A formula is a plain Python ``bool`` where its truth is known, and a ``Term``
where only a solver can tell. Every connective here takes both, and folds what
is known: ``all_of(True, x)`` is ``x``. So the same text that makes a formula
for a solver computes a plain ``bool`` when it is given plain values.

A term is one of three things: a variable, an application of a symbol to
arguments, or a quantified formula. ``text`` writes it in the notation of
SMT-LIB, which every solver reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias


class Sort(StrEnum):
    """What a symbol of the proof speaks of, by its name in SMT-LIB."""

    RUN = "Run"
    SESSION = "Session"
    BOOL = "Bool"
    INT = "Int"
    STATE = "State"
    PHASE = "Phase"
    RECORD = "Record"


class Constant(StrEnum):
    """A value of one of the small sorts; its class is the sort."""


class State(Constant):
    """Where a run is in its life, as the abstract session has it; unborn before its accept."""

    UNBORN = "unborn"
    ACCEPTED = "accepted"
    CANCEL_ON_ENTRY = "cancel_on_entry"
    QUEUED = "queued"
    ACTIVE = "active"
    COMPLETE = "complete"


class Phase(Constant):
    """What the turn that a run leads is doing: none is there, its runner runs, or this is being written."""

    NONE = "none"
    RUNNING = "running"
    END_TURN = "end_turn"
    ERROR = "error"
    CANCELED = "canceled"


class Record(Constant):
    """What the messages of a run say."""

    NOTHING = "nothing"
    END_TURN = "end_turn"
    ERROR = "error"
    CANCELED = "canceled"
    UNWRITTEN = "unwritten"


SMALL_SORTS: dict[Sort, type[Constant]] = {Sort.STATE: State, Sort.PHASE: Phase, Sort.RECORD: Record}
"""The sorts whose values are listed."""


@dataclass(frozen=True, eq=False, slots=True)
class Term:
    """A formula, number or thing of which only a solver can tell the value."""


@dataclass(frozen=True, eq=False, slots=True)
class Variable(Term):
    """A name that stands for one value: bound by a quantifier, or declared."""

    name: str
    sort: Sort


@dataclass(frozen=True, eq=False, slots=True)
class Apply(Term):
    """A symbol applied to its arguments: a connective, or a symbol of the vocabulary."""

    symbol: str
    arguments: tuple[Value, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Quantified(Term):
    """A formula that holds for all values of its variables, or for some."""

    kind: str
    variables: tuple[Variable, ...]
    body: Value


Value: TypeAlias = Term | bool | int | Constant
Formula: TypeAlias = Term | bool
Number: TypeAlias = Term | int
Individual: TypeAlias = Term | int
"""A run or a session: a term, or its number where there are only so many of them."""


def all_of(*formulas: Formula) -> Formula:
    """Say that every formula holds."""
    if False in formulas:
        return False
    open_ = [each for each in formulas if each is not True]
    if not open_:
        return True
    return open_[0] if len(open_) == 1 else Apply("and", tuple(open_))


def any_of(*formulas: Formula) -> Formula:
    """Say that at least one formula holds."""
    if True in formulas:
        return True
    open_ = [each for each in formulas if each is not False]
    if not open_:
        return False
    return open_[0] if len(open_) == 1 else Apply("or", tuple(open_))


def not_(formula: Formula) -> Formula:
    """Say that the formula does not hold."""
    return Apply("not", (formula,)) if isinstance(formula, Term) else not formula


def implies(condition: Formula, formula: Formula) -> Formula:
    """Say that the formula holds if the condition does."""
    if isinstance(condition, Term) and isinstance(formula, Term):
        return Apply("=>", (condition, formula))
    return any_of(not_(condition), formula)


def equal(one: Value, other: Value) -> Formula:
    """Say that two values are the same; of two formulas, that one holds exactly if the other does."""
    if one is other:
        return True
    if not isinstance(one, Term) and not isinstance(other, Term):
        return bool(one == other)
    for known, open_ in ((one, other), (other, one)):
        if isinstance(known, bool) and not isinstance(open_, int | Constant):
            return open_ if known else not_(open_)
    return Apply("=", (one, other))


def differ(one: Value, other: Value) -> Formula:
    """Say that two values are not the same."""
    return not_(equal(one, other))


def is_one_of(value: Value, *others: Value) -> Formula:
    """Say that the value is one of the others."""
    return any_of(*(equal(value, other) for other in others))


def choice(condition: Formula, then: Any, otherwise: Any) -> Any:
    """Return the one value if the condition holds, else the other."""
    if not isinstance(condition, Term):
        return then if condition else otherwise
    if then is otherwise:
        return then
    if isinstance(then, bool) or isinstance(otherwise, bool):
        return any_of(all_of(condition, then), all_of(not_(condition), otherwise))
    return Apply("ite", (condition, then, otherwise))


def less(one: Number, other: Number) -> Formula:
    """Say that one number is below the other."""
    if isinstance(one, Term) or isinstance(other, Term):
        return Apply("<", (one, other))
    return one < other


def at_most(one: Number, other: Number) -> Formula:
    """Say that one number is not above the other."""
    if isinstance(one, Term) or isinstance(other, Term):
        return Apply("<=", (one, other))
    return one <= other


def plus(number: Number, more: int) -> Number:
    """Return the sum."""
    return Apply("+", (number, more)) if isinstance(number, Term) else number + more


def the_higher(one: Number, other: Number) -> Number:
    """Return the higher one of two numbers."""
    higher: Number = choice(at_most(one, other), other, one)
    return higher


def text(value: Value) -> str:
    """Write a value in the notation of SMT-LIB."""
    match value:
        case Variable(name, _):
            return name
        case Apply(symbol, arguments):
            return f"({symbol} {' '.join(map(text, arguments))})"
        case Quantified(kind, variables, body):
            bound = " ".join(f"({each.name} {each.sort})" for each in variables)
            return f"({kind} ({bound}) {text(body)})"
        case Constant():
            return f"{type(value).__name__.lower()}_{value}"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if value >= 0 else f"(- {-value})"
        case _:
            raise TypeError(value)
