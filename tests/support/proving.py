"""What the tests of the proof share: the solvers, or a visible reason why they are not asked."""

from __future__ import annotations

from collections import Counter

from surroundings import insist_on_package
from turngate_model.proof import PARTS, Proof
from turngate_model.proof.solvers import PACKAGES, Z3, Cvc5, Way, solvers


def both_solvers() -> tuple[Z3, Cvc5]:
    """Return the solvers; where one is missing the test is skipped, and fails if CI is set."""
    for package in PACKAGES:
        insist_on_package(package)
    return solvers()


def asked(solver: Z3 | Cvc5) -> None:
    """Have a solver asked in its first way only, and give up soon: there is nothing to be found."""
    (name,) = (each for each in solver.ways[0].settings if each.startswith("rlimit"))
    solver.ways = (Way(True, {**solver.ways[0].settings, name: "200000"}),)


def a_proof() -> Proof:
    """Return a proof in which everything has gone well."""
    return Proof(conditions=Counter(dict.fromkeys(PARTS, 100)))
