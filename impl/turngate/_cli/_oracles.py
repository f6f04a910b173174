"""``turngate oracles``: the explorer held against SPIN and TLC."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from turngate_model import Bounds, Comparison, OracleFailed, OracleMissing, Oracles

from ._show import EXIT_CODES, err, out, print_json, stages, styled

_TOOLS = ("Python", "SPIN", "TLC")


@click.command()
@click.option("--deep", is_flag=True, help="Go on to 4 prompts, which takes TLC a minute.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def oracles(deep: bool, as_json: bool) -> int:
    """Compare the explorer with SPIN and TLC, number by number.

    All three explore the heart of the mechanism: accept, enter, cancel, fold,
    end, settle, handoff. Exit code 0: they agree in every number, nothing is
    violated and every known-bad design is refuted; 1: they do not; 2: a tool
    is not installed; 3: a tool came to no verdict.
    """
    try:
        asked = Oracles(deep=deep)
        with stages(asked.questions) as begin:
            comparison = asked.compare(begin)
    except OracleMissing as missing:
        raise click.ClickException(str(missing)) from None
    except OracleFailed as failed:
        if as_json:
            print_json({"verdict": "unknown", "reasons": [str(failed)]})
        err.print(f"turngate: {failed}", markup=False)
        return EXIT_CODES["unknown"]
    differences = list(comparison.differences())
    verdict = "violated" if differences else "holds"
    if as_json:
        print_json(_as_object(comparison, verdict, differences))
    else:
        out.print(_table(comparison))
        for difference in differences:
            out.print(f"  [red]but[/] {difference}")
        out.print(f"the same machine, the same counts: {styled(verdict)}")
    return EXIT_CODES[verdict]


def _table(comparison: Comparison) -> Table:
    """Return all that was asked, a row each, and what each tool said."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("prompts, cancels, sessions: states, transitions, depth")
    for name in _TOOLS:
        table.add_column(name, justify="right")
    for bounds, found in comparison.counts.items():
        table.add_row(_numbers(bounds), *(str(found[name]) for name in _TOOLS))
    for (design, broken), found in comparison.refutations.items():
        table.add_row(f"{design}: {broken}", *(str(found[name]) for name in _TOOLS))
    for design, verdict in comparison.liveness.items():
        table.add_row(f"{design}: every entered run completes", "", "", verdict)
    table.add_row("seconds to a verdict (3, 2, 2)", *(f"{comparison.verdicts[name]:.1f}" for name in _TOOLS))
    largest = _numbers(list(comparison.counts)[-1])
    table.add_row(f"states a second ({largest})", *(f"{comparison.rates[name]:,.0f}" for name in _TOOLS))
    return table


def _numbers(bounds: Bounds) -> str:
    return f"{bounds.prompts}, {bounds.cancels}, {bounds.sessions}"


def _as_object(comparison: Comparison, verdict: str, differences: list[str]) -> dict[str, Any]:
    counts = [
        {
            "prompts": bounds.prompts,
            "cancels": bounds.cancels,
            "sessions": bounds.sessions,
            "tools": {
                name: {**(each.counts._asdict() if each.counts else {}), "seconds": round(each.total, 3)}
                for name, each in found.items()
            },
        }
        for bounds, found in comparison.counts.items()
    ]
    designs = [
        {
            "design": design,
            "property": str(broken),
            "tools": {
                name: {"refuted": bool(each.violated), "steps": each.steps} for name, each in found.items()
            },
        }
        for (design, broken), found in comparison.refutations.items()
    ]
    return {
        "verdict": verdict,
        "differences": differences,
        "counts": counts,
        "designs": designs,
        "liveness": comparison.liveness,
        "seconds_to_verdict": {name: round(seconds, 3) for name, seconds in comparison.verdicts.items()},
        "states_per_second": {name: round(rate) for name, rate in comparison.rates.items()},
    }
