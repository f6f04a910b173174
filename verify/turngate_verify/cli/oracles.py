"""``turngate oracles``: compares the explorer with SPIN and TLC."""

from __future__ import annotations

import click
from rich.table import Table

from turngate_model.oracles import Comparison, OracleFailed, OracleMissing, Oracles
from turngate_verify.cli.show import EXIT_CODES, err, out, print_but, print_json, stages, styled

_TOOLS = ("Python", "SPIN", "TLC")


@click.command()
@click.option("--deep", is_flag=True, help="Go on to 4 prompts, which takes TLC a minute.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def oracles(deep: bool, as_json: bool) -> int:
    """Compare the explorer with SPIN and TLC, number by number.

    All three explore the heart of the mechanism: accept, enter, cancel, fold,
    end, settle, handoff. The explorer and TLC also explore hold, resume, stop,
    move, edit and send now. Exit code 0: they agree on every number, nothing is violated and every known-bad
    design is refuted; 1: they do not; 2: a tool is not installed; 3: a tool reached no verdict.
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
        else:
            err.print(f"turngate: {failed}")
        return EXIT_CODES["unknown"]
    differences = comparison.differences()
    verdict = "violated" if differences else "holds"
    if as_json:
        print_json(
            {
                "verdict": verdict,
                "differences": differences,
                "answers": [each._asdict() for each in comparison.answers],
                "liveness": comparison.liveness,
                "seconds_to_verdict": {name: round(each, 3) for name, each in comparison.seconds.items()},
                "states_per_second": {name: round(each) for name, each in comparison.rates.items()},
            }
        )
        return EXIT_CODES[verdict]
    out.print(_table(comparison))
    for difference in differences:
        print_but(difference)
    out.print("the same machine, the same counts:", styled(verdict))
    return EXIT_CODES[verdict]


def _table(comparison: Comparison) -> Table:
    """Return a table with a row for each question, and the answer of each tool."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("within, or design")
    table.add_column("")
    for name in _TOOLS:
        table.add_column(name, justify="right")
    before = ""
    for answers in comparison.answers:
        found = (answers.said.get(name, "left out") for name in _TOOLS)
        said = (f"{value:,}" if isinstance(value, int) else value for value in found)
        table.add_row("" if answers.about == before else answers.about, answers.what, *said)
        before = answers.about
    for design, verdict in comparison.liveness.items():
        table.add_row(design, "every entered run completes", "", "", verdict)
    table.add_row("3, 2, 2", "seconds to a verdict", *(f"{each:.2f}" for each in comparison.seconds.values()))
    table.add_row("4, 2, 2", "states a second", *(f"{each:,.0f}" for each in comparison.rates.values()))
    table.caption = "bounds: prompts, cancels, sessions"
    return table
