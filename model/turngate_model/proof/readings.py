"""One text, three readings.

The steps, the judge, the invariant and the properties are written once, as
functions over a world. What differs is only what "for every run" means:

* ``Unbounded``: any number of runs and sessions. Quantifiers stay quantifiers,
  and a solver has to find a proof.
* ``Finite`` over variables: so many runs. Quantifiers become conjunctions, the
  content of a state is unknown, and a solver can try all of them.
* ``Finite`` over plain values: one state. Every formula is true or false, and
  no solver is needed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

from turngate_model.proof.terms import (
    Apply,
    Formula,
    Individual,
    Quantified,
    Sort,
    Term,
    Value,
    Variable,
    all_of,
    any_of,
)
from turngate_model.proof.vocabulary import EVERYTHING, NOTHING, SIGNATURE, Symbol, World


class Definition(NamedTuple):
    """A name for what a step has made of a symbol, so that formulas stay short and can be read."""

    name: str
    parameters: tuple[Variable, ...]
    result: Sort
    body: Value


class Reading(Protocol):
    """What "for every run" means, and how a step gives a symbol new answers."""

    def session_of(self, run: Individual) -> Individual:
        """Return the session that a run belongs to."""
        ...

    def for_all(self, says: Callable[..., Formula], *sorts: Sort) -> Formula:
        """Say something of every value of the sorts."""
        ...

    def exists(self, says: Callable[..., Formula], *sorts: Sort) -> Formula:
        """Say something of at least one value of the sorts."""
        ...

    def candidates(self, hint: str, holds: Callable[[Individual], Formula]) -> list[Individual]:
        """Return the runs of which the formula may hold: a new name for one, or those there are."""
        ...

    def define(
        self, name: str, answer: Callable[..., Any], definitions: list[Definition]
    ) -> Callable[..., Any]:
        """Return a symbol with these answers, noting the definitions that formulas about it need."""
        ...


class Unbounded:
    """Any number of runs and sessions."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def session_of(self, run: Individual) -> Individual:
        """Return the session that a run belongs to, which never changes."""
        return Apply("session", (run,))

    def fresh(self, hint: str, sort: Sort) -> Variable:
        """Return a name that nothing else has."""
        return Variable(f"{hint}!{next(self._numbers)}", sort)

    def world(self, tag: str = "", symbols: dict[str, Symbol] = SIGNATURE) -> World:
        """Return a world of which nothing is known; the tag tells it from others."""

        def answers(name: str) -> Callable[..., Any]:
            return lambda *arguments: Apply(name + tag, arguments)

        return {name: answers(name) for name in symbols}

    def for_all(self, says: Callable[..., Formula], *sorts: Sort) -> Formula:
        """Say something of every value of the sorts; of runs, if nothing is said."""
        return self._quantified("forall", says, sorts or (Sort.RUN,))

    def exists(self, says: Callable[..., Formula], *sorts: Sort) -> Formula:
        """Say something of at least one value of the sorts."""
        return self._quantified("exists", says, sorts or (Sort.RUN,))

    def _quantified(self, kind: str, says: Callable[..., Formula], sorts: tuple[Sort, ...]) -> Formula:
        variables = tuple(self.fresh(sort[0].lower(), sort) for sort in sorts)
        body = says(*variables)
        return Quantified(kind, variables, body) if isinstance(body, Term) else body

    def candidates(self, hint: str, holds: Callable[[Individual], Formula]) -> list[Individual]:
        """Return a name for the run."""
        return [self.fresh(hint, Sort.RUN)]

    def define(
        self, name: str, answer: Callable[..., Any], definitions: list[Definition]
    ) -> Callable[..., Any]:
        """Name the new answers: the definition is a macro of SMT-LIB."""
        symbol = EVERYTHING[name]
        named = f"{name}!{next(self._numbers)}"
        parameters = tuple(self.fresh(sort[0].lower(), sort) for sort in symbol.arguments)
        definitions.append(Definition(named, parameters, symbol.result, answer(*parameters)))
        return lambda *arguments: Apply(named, arguments)


class Finite:
    """So many runs, each of a session that is given."""

    def __init__(self, sessions: tuple[int, ...], symbols: dict[str, Symbol] = SIGNATURE) -> None:
        self.sessions = sessions
        self.symbols = symbols
        self._domains = {Sort.RUN: range(len(sessions)), Sort.SESSION: range(max(sessions) + 1)}
        self._numbers = itertools.count(1)

    @property
    def runs(self) -> range:
        """The runs there are."""
        return self._domains[Sort.RUN]

    def session_of(self, run: Individual) -> Individual:
        """Return the session of a run."""
        assert isinstance(run, int)
        return self.sessions[run]

    def tuples(self, *sorts: Sort) -> Iterator[tuple[int, ...]]:
        """Yield every combination of values of the sorts."""
        return itertools.product(*(self._domains[sort] for sort in sorts))

    def for_all(self, says: Callable[..., Formula], *sorts: Sort) -> Formula:
        """Say something of all that there are."""
        said = []
        for values in self.tuples(*(sorts or (Sort.RUN,))):
            formula = says(*values)
            if formula is False:
                return False
            said.append(formula)
        return all_of(*said)

    def exists(self, says: Callable[..., Formula], *sorts: Sort) -> Formula:
        """Say something of one of those that there are."""
        said = []
        for values in self.tuples(*(sorts or (Sort.RUN,))):
            formula = says(*values)
            if formula is True:
                return True
            said.append(formula)
        return any_of(*said)

    def candidates(self, hint: str, holds: Callable[[Individual], Formula]) -> list[Individual]:
        """Return the runs of which it is not known that the formula does not hold."""
        return [run for run in self.runs if holds(run) is not False]

    def define(
        self, name: str, answer: Callable[..., Any], definitions: list[Definition]
    ) -> Callable[..., Any]:
        """Work the new answers out, one by one; name those that are not known."""
        symbol = self.symbols[name]
        table: dict[tuple[int, ...], Value] = {}
        for values in self.tuples(*symbol.arguments):
            content = answer(*values)
            if isinstance(content, Apply):
                named = Variable(f"{cell(name, values)}!{next(self._numbers)}@now", symbol.result)
                definitions.append(Definition(named.name, (), symbol.result, content))
                content = named
            table[values] = content
        return _looking_up(table)

    def world(self, when: str) -> World:
        """Return a world of which nothing is known, at a moment."""
        return {
            name: _looking_up(
                {
                    values: Variable(f"{cell(name, values)}@{when}", symbol.result)
                    for values in self.tuples(*symbol.arguments)
                }
            )
            for name, symbol in self.symbols.items()
        }

    def world_of(self, tables: dict[str, dict[tuple[int, ...], Value]]) -> World:
        """Return the world with these answers."""
        return {name: _looking_up(table) for name, table in tables.items()}

    def tables(self, world: World) -> dict[str, dict[tuple[int, ...], Value]]:
        """Return the answers of a world."""
        return {
            name: {values: world[name](*values) for values in self.tuples(*symbol.arguments)}
            for name, symbol in self.symbols.items()
        }

    def nothing(self) -> dict[str, dict[tuple[int, ...], Value]]:
        """Return the answers where nothing has happened yet."""
        first: dict[str, Value] = {"next": 1}
        return {
            name: dict.fromkeys(self.tuples(*symbol.arguments), first.get(name, NOTHING[symbol.result]))
            for name, symbol in self.symbols.items()
        }


def cell(name: str, values: tuple[int, ...]) -> str:
    """Return the name of one answer: the symbol, and of whom it is asked."""
    return ".".join((name, *map(str, values)))


def _looking_up(table: dict[tuple[int, ...], Value]) -> Callable[..., Any]:
    return lambda *arguments: table[arguments]
