"""``turngate diagrams``: writes the pictures, and the generated parts of pages."""

from __future__ import annotations

from pathlib import Path

import click

from turngate_model import EVERY_DESIGN
from turngate_model.pictures import generate, stale, write
from turngate_verify.cli.show import EXIT_CODES, err, out, stages


@click.command()
@click.option(
    "--check", is_flag=True, help="Write nothing; list what is stale, and exit with 1 if anything is."
)
@click.option(
    "--directory",
    default=Path("diagrams"),
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the pictures are. The generated parts of SPEC.md and of docs/ beside it are written too.",
)
def diagrams(check: bool, directory: Path) -> int:
    """Write the diagrams of the lifecycle, the session, the races and the known-bad designs."""
    if not check:
        directory.mkdir(parents=True, exist_ok=True)
    with stages(len(EVERY_DESIGN) + 1) as begin:
        generated = generate(begin)
    if generated.skipped:
        err.print(f"turngate: {generated.skipped}")
    try:
        changed = (stale if check else write)(generated, directory, directory.parent)
    except ValueError as wrong:
        raise click.ClickException(str(wrong)) from None
    for path in changed:
        out.print(path if check else f"wrote {path}")
    if check and changed:
        err.print("run: turngate diagrams")
        return EXIT_CODES["violated"]
    out.print(f"{len(generated.drawings)} diagrams are up to date")
    return 0
