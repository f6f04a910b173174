"""Formulas as values: what is known is folded, the rest is written as SMT-LIB."""

from __future__ import annotations

import pytest

from turngate_model.proof.paths import RelationPath, walk
from turngate_model.proof.readings import Finite, Unbounded
from turngate_model.proof.terms import (
    Record,
    Sort,
    TurnPhase,
    Value,
    Variable,
    all_of,
    any_of,
    at_most,
    choice,
    differ,
    equal,
    implies,
    is_one_of,
    less,
    not_,
    plus,
    text,
    the_higher,
)
from turngate_model.proof.vocabulary import EVERYTHING, MECHANISM, SIGNATURE

A, B = Variable("a", Sort.BOOL), Variable("b", Sort.BOOL)
N = Variable("n", Sort.INT)
P = Variable("p", Sort.PHASE)

WRITTEN = {
    "a conjunction": (all_of(A, True, B), "(and a b)"),
    "one of it": (all_of(True, A), "a"),
    "none of it": (all_of(A, False), "false"),
    "an empty one": (all_of(), "true"),
    "a disjunction": (any_of(A, False, B), "(or a b)"),
    "one that is known": (any_of(A, True), "true"),
    "a negation": (not_(A), "(not a)"),
    "an implication": (implies(A, B), "(=> a b)"),
    "one with a known end": (implies(A, False), "(not a)"),
    "one that holds anyway": (implies(False, A), "true"),
    "the same": (equal(A, A), "true"),
    "an equation": (equal(P, TurnPhase.NONE), "(= p phase_none)"),
    "one with truth": (equal(A, True), "a"),
    "one with falsehood": (equal(False, A), "(not a)"),
    "constants that are the same": (equal(Record.ERROR, Record.ERROR), "true"),
    "constants that differ": (differ(Record.ERROR, Record.CANCELED), "true"),
    "one of several": (
        is_one_of(P, TurnPhase.NONE, TurnPhase.ERROR),
        "(or (= p phase_none) (= p phase_error))",
    ),
    "a choice of values": (choice(A, N, 0), "(ite a n 0)"),
    "a choice of truths": (choice(A, True, B), "(or a (and (not a) b))"),
    "a choice that is none": (choice(A, N, N), "n"),
    "a known choice": (choice(False, N, 0), "0"),
    "less": (less(N, 3), "(< n 3)"),
    "at most": (at_most(0, N), "(<= 0 n)"),
    "numbers that are known": (less(2, 3), "true"),
    "a sum": (plus(N, -1), "(+ n (- 1))"),
    "a known sum": (plus(2, 1), "3"),
    "the higher one": (the_higher(N, 2), "(ite (<= n 2) 2 n)"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_written_as(name: str) -> None:
    value: Value = WRITTEN[name][0]
    assert text(value) == WRITTEN[name][1]


def test_what_is_no_value_is_refused() -> None:
    with pytest.raises(TypeError):
        text(None)  # type: ignore[arg-type]  # wrong on purpose


def test_for_every_run_is_a_quantifier_or_every_run_there_is() -> None:
    anybody = Unbounded()
    queue = anybody.world()["queue"]
    assert text(anybody.for_all(queue)) == "(forall ((r!1 Run)) (queue r!1))"
    assert text(anybody.exists(lambda s: equal(s, s), Sort.SESSION)) == "true"
    three = Finite((0, 0, 1))
    assert text(three.exists(three.world("now")["queue"])) == "(or queue.0@now queue.1@now queue.2@now)"
    assert three.for_all(lambda run: less(run, 3)) is True
    assert three.exists(lambda session: equal(session, 2), Sort.SESSION) is False


def test_both_ways_of_an_unknown_branch_are_walked_and_one_of_a_known_branch() -> None:
    def step(path: RelationPath) -> None:
        if path.branch(A, "first") and path.branch(True, "known"):
            path.branch(B, "second")

    trails = [path.trail for path in walk(Unbounded(), {}, step)]
    assert sorted(trails) == [
        ["first", "known", "not second"],
        ["first", "known", "second"],
        ["not first"],
    ]


def test_each_run_that_may_be_meant_is_chosen_once() -> None:
    reading = Finite((0, 0, 0))
    paths = [
        *walk(reading, {}, lambda path: path.assume(equal(path.choose("one", lambda x: less(x, 2), ""), 1)))
    ]
    assert [path.chosen[0].run for path in paths] == [1]


def test_nobody_takes_a_path_that_chooses_whom_there_is_not() -> None:
    def step(path: RelationPath) -> None:
        path.choose("one", lambda _run: False, "there is none")

    assert [*walk(Finite((0,)), {}, step)] == []


def test_every_symbol_says_what_it_means_and_designs_keep_more() -> None:
    assert all(symbol.meaning for symbol in EVERYTHING.values())
    assert set(MECHANISM) < set(SIGNATURE) < set(EVERYTHING)
