"""The unbounded proof: every property, for any number of prompts, cancels and sessions.

To be read in this order:

1. ``vocabulary``: the symbols in which a state is told.
2. ``relation`` and ``judge``: the mechanism and the abstract session again, over
   these symbols; ``flawed``: the known-bad designs.
3. ``invariant`` and ``consequences``: what is true between steps, and the
   properties that follow; ``isolation``: two worlds that agree on a session.
4. ``conditions``: what has to be proved; ``smtlib`` and ``solvers``: by whom.
5. ``comparison``, ``agreement``, ``judging``, ``unrolling`` and ``teeth``: why to
   believe it.
6. ``prover``: all of it.

Underneath are ``terms`` (formulas as values), ``readings`` (one text, three
readings), ``paths`` and ``steps`` (symbolic execution).
"""

from turngate_model.proof.flawed import FLAWED, NOT_SAID
from turngate_model.proof.invariant import INVARIANT
from turngate_model.proof.prover import (
    DEEP,
    PARTS,
    QUICK,
    WHOLE,
    Proof,
    ProofThoroughness,
    prove,
    stages_of,
    write_smt,
)
from turngate_model.proof.solvers import SolverMissing, what_to_install

__all__ = [
    "DEEP",
    "FLAWED",
    "INVARIANT",
    "NOT_SAID",
    "PARTS",
    "QUICK",
    "WHOLE",
    "Proof",
    "ProofThoroughness",
    "SolverMissing",
    "prove",
    "stages_of",
    "what_to_install",
    "write_smt",
]
