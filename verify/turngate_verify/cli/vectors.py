"""``turngate vectors``: writes test vectors for dispatchers in other languages."""

from __future__ import annotations

from pathlib import Path

import click

from turngate_verify.cli.show import EXIT_CODES, err, out, stages
from turngate_verify.vectors import full, lines, minimal
from turngate_verify.words import counted


@click.command()
@click.argument("file", default="-", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.option(
    "--full", "whole", is_flag=True, help="Every operation in every state, instead of the minimal set."
)
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if FILE is stale.")
def vectors(file: Path, whole: bool, check: bool) -> int:
    """Write test vectors to FILE, JSON lines; without it, or with '-', to standard output.

    docs/spec/vectors.md describes them. The minimal set refutes every
    known-bad design that the port can show.
    """
    to_standard_output = str(file) == "-"
    if check and to_standard_output:
        raise click.UsageError("--check needs a FILE to compare with")
    with stages(1) as begin:
        begin("generating vectors")
        made = full() if whole else minimal()
    written = [*lines("full" if whole else "minimal", made)]
    if check:
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        if text.splitlines() != written:
            err.print(f"{file} is stale; run: turngate vectors {'--full ' if whole else ''}{file}")
            return EXIT_CODES["violated"]
        out.print(f"{file} is up to date")
    elif to_standard_output:
        for line in written:
            out.print(line)
    else:
        file.write_text("\n".join([*written, ""]), encoding="utf-8")
        out.print(f"wrote {counted(len(made), 'vector')} to {file}")
    return 0
