"""Conditions as text: SMT-LIB 2.6, which Z3, cvc5 and others read.

Every text is whole: it declares the sorts and symbols that it uses, asserts
what is assumed and the negation of the goal, and asks whether all that can be
true at once. ``unsat`` is the answer that proves the condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from turngate_model.proof.conditions import Condition
from turngate_model.proof.readings import Definition
from turngate_model.proof.terms import SMALL_SORTS, Formula, not_, text
from turngate_model.proof.vocabulary import EVERYTHING, SIGNATURE

_NAME = re.compile(r"[A-Za-z_][\w.!@]*")


def small_sorts() -> Iterator[str]:
    """Yield the declarations of the sorts whose values are listed; prefixes keep the values apart."""
    for sort, constants in SMALL_SORTS.items():
        values = " ".join(f"({text(each)})" for each in constants)
        yield f"(declare-datatypes (({sort} 0)) (({values})))"


def defined(definition: Definition) -> str:
    """Return a definition as a macro."""
    parameters = " ".join(f"({each.name} {each.sort})" for each in definition.parameters)
    return f"(define-fun {definition.name} ({parameters}) {definition.result} {text(definition.body)})"


def asserted(formula: Formula) -> str:
    """Return the assertion of a formula."""
    return f"(assert {text(formula)})"


def document(condition: Condition, *, finding: bool = True) -> str:
    """Return the text of a condition.

    Without ``finding`` the clauses that say that something exists are left out of what is assumed: what
    follows from less follows from all, and a solver is often done sooner.
    """
    clauses = [(each, formula) for each, formula in condition.clauses if finding or not each.finds]
    lines = [
        *(f"; {line}" for line in (str(condition.kind), str(condition))),
        "(set-logic ALL)",
        "(declare-sort Run 0)",
        "(declare-sort Session 0)",
        *small_sorts(),
        "(declare-fun session (Run) Session)",
        *_declarations(condition.worlds),
        *(f"(declare-const {each.name} {each.sort})" for each in condition.constants),
    ]
    asserts: list[str] = []
    for clause, formula in clauses:
        asserts += [f"; {clause.name}: {clause.sentence}", asserted(formula)]
    asserts += [asserted(each) for each in condition.assumes]
    asserts += ["; not the goal", asserted(not_(condition.goal))]
    needed = _needed(condition.definitions, asserts)
    return "\n".join((*lines, *needed, *asserts, "(check-sat)", ""))


def _declarations(worlds: Iterable[str]) -> Iterator[str]:
    for tag in worlds:
        for name, symbol in SIGNATURE.items():
            yield f"(declare-fun {name}{tag} ({' '.join(symbol.arguments)}) {symbol.result})"


def _needed(definitions: Iterable[Definition], asserts: list[str]) -> list[str]:
    """Return the definitions that the assertions use, and those that these use."""
    used = {name for line in asserts if not line.startswith(";") for name in _NAME.findall(line)}
    needed: list[str] = []
    for definition in reversed([*definitions]):
        if definition.name in used:
            line = defined(definition)
            used.update(_NAME.findall(line))
            needed.append(line)
    return needed[::-1]


assert not {name for name in EVERYTHING if not _NAME.fullmatch(name)}
