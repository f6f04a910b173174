"""``turngate prove``: every property, for any number of prompts, cancels, holds, moves and sessions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from turngate_model.proof import (
    DEEP,
    INVARIANT,
    NOT_SAID,
    PARTS,
    WHOLE,
    Proof,
    SolverMissing,
    stages_of,
    write_smt,
)
from turngate_model.proof import (
    prove as prove_all,
)
from turngate_verify.cli.show import EXIT_CODES, err, out, print_but, print_json, stages, styled
from turngate_verify.words import counted

_PROCESSES = 2
"""How many processes share the work; more are hardly faster, for the longest job is one of few."""


@click.command()
@click.option("--deep", is_flag=True, help="Compare the known-bad designs with three prompts instead of two.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--smt",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write every condition to DIR as SMT-LIB, for other solvers, and prove nothing.",
)
def prove(deep: bool, as_json: bool, smt: Path | None) -> int:
    """Prove every property, for any number of prompts, cancels, holds, moves and sessions.

    Z3 and cvc5 must both prove every condition, the relation must take, within bounds, exactly the steps of
    the mechanism, and every deliberate mistake must be noticed. Exit code 0: all of this is so; 1: something
    is refuted or differs; 2: a solver is not installed; 3: a solver could not decide, or a deliberate mistake
    went unnoticed.
    """
    if smt:
        err.print(f"wrote {counted(write_smt(smt), 'condition')} to {smt}")
        return 0
    thoroughness = DEEP if deep else WHOLE
    try:
        with stages(stages_of(thoroughness)) as begin:
            proof = prove_all(thoroughness, begin, processes=_PROCESSES)
    except SolverMissing as missing:
        raise click.ClickException(str(missing)) from None
    if as_json:
        print_json(as_object(proof))
    else:
        print_proof(proof)
    return EXIT_CODES[proof.verdict]


def as_object(proof: Proof) -> dict[str, Any]:
    """Return a proof as the object that ``--json`` prints."""
    judged, needed, shared = proof.judged, proof.needed, proof.tied_places
    return {
        "verdict": proof.verdict,
        "properties": {
            part: {"verdict": proof.verdict_of(part), "conditions": proof.conditions[part]} for part in PARTS
        },
        "invariant": {each.name: each.sentence for each in INVARIANT},
        "solvers": {
            name: {"version": each.version, "seconds": round(each.seconds, 3), **each.answers}
            for name, each in proof.solvers.items()
        },
        "tie": {
            name: {"states": each.states, "steps": each.steps, "difference": each.difference}
            for name, each in {**proof.tied, **({"places": shared} if shared else {})}.items()
        },
        "paths": {"all": proof.paths, "taken": proof.paths_taken},
        "readings": proof.readings._asdict() if proof.readings else None,
        "judged": {"events": judged.events, "obligations": len(judged.mistakes)} if judged else None,
        "without": needed.without if needed else None,
        "designs": {
            name: {"property": str(each.breaks), "steps": len(each.found), "explorer": each.explored}
            for name, each in proof.unrolled.items()
        },
        "not_said": NOT_SAID,
        "problems": proof.problems,
        "seconds": round(proof.seconds, 3),
    }


def print_proof(proof: Proof) -> None:
    """Print a proof for people: one line per property, and the evidence for it."""
    by = ", ".join(f"{name} {each.version}" for name, each in proof.solvers.items())
    table = Table("property", "verdict", "conditions", "proved by", box=None, pad_edge=False)
    for part in PARTS:
        verdict = proof.verdict_of(part)
        table.add_row(part, styled(verdict), f"{proof.conditions[part]:,}", by if verdict == "holds" else "")
    out.print(table, "", sep="\n")
    for line in _evidence(proof):
        out.print(line)
    for problem in proof.problems:
        print_but(problem)
    out.print("verdict:", styled(proof.verdict), f"in {proof.seconds:.0f} s")


def _evidence(proof: Proof) -> list[str]:
    """Return the evidence for the proof, one line each."""
    lines = [
        f"{name}: {sum(each.answers.values()):,} conditions, {each.seconds:.0f} s"
        for name, each in proof.solvers.items()
    ]
    sound = [each for each in proof.tied.values() if each.design is None]
    designs = [each for each in proof.tied.values() if each.design is not None]
    steps, states = (sum(getattr(each, of) for each in sound) for of in ("steps", "states"))
    lines.append(f"beside the mechanism: {steps:,} steps of {states:,} session states")
    if shared := proof.tied_places:
        lines.append(
            f"the same where sessions share places: {shared.steps:,} steps of {shared.states:,} states"
        )
    if designs:
        steps, states = (sum(getattr(each, of) for each in designs) for of in ("steps", "states"))
        lines.append(f"beside {len(designs)} known-bad designs: {steps:,} steps of {states:,} session states")
    lines.append(f"paths: {proof.paths_taken} of {proof.paths} taken, the others proved never to be taken")
    if proof.readings:
        lines.append(
            f"beside plain computation: {proof.readings.asked:,} steps asked of Z3, "
            f"of which {proof.readings.taken:,} can be taken"
        )
    if proof.judged:
        found = sum(proof.judged.mistakes.values())
        lines.append(
            f"beside the abstract session: {proof.judged.events:,} events; {found} of "
            f"{len(proof.judged.mistakes)} obligations broken on purpose, and found"
        )
    if proof.needed:
        lines.append(
            f"clauses: {len(INVARIANT)}, without {len(proof.needed.without)} of which something fails"
        )
    refuted = sum(each.bites for each in proof.unrolled.values())
    if proof.unrolled:
        lines.append(
            f"known-bad designs: {refuted} of {len(proof.unrolled)} refuted by unrolling, "
            "in as many steps as the explorer needs"
        )
        lines += [f"not said here: {name}, because {why}" for name, why in NOT_SAID.items()]
    return lines
