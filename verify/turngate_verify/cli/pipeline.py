"""The options ``--junit`` and ``--markdown``, and what is written where GitHub runs a command."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from turngate_verify.cli.show import err
from turngate_verify.pipeline.outcome import Outcome
from turngate_verify.pipeline.requirements import RequirementResult
from turngate_verify.pipeline.writing import github_annotations, junit, markdown

F = TypeVar("F", bound=Callable[..., Any])


def _in_a_folder(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    """Refuse a file that could not be written, before the work begins."""
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {value.parent}")
    return value


def output_options(command: F) -> F:
    """Give a command the options for the files that a pipeline reads."""
    kind = click.Path(dir_okay=False, writable=True, path_type=Path)
    for name, what in (("--markdown", "a Markdown summary"), ("--junit", "the results as JUnit XML")):
        help_ = f"Write {what} to FILE."
        command = click.option(name, metavar="FILE", type=kind, callback=_in_a_folder, help=help_)(command)
    return command


def outputs_wanted(*files: Path | None) -> bool:
    """Tell whether anything is written for a pipeline."""
    return any(files) or any(os.environ.get(name) for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"))


def write_outputs(outcome: Outcome, junit_file: Path | None, markdown_file: Path | None) -> None:
    """Write the files that were asked for, and what GitHub shows if it runs this."""
    step_summary = os.environ.get("GITHUB_STEP_SUMMARY")
    try:
        if junit_file:
            junit_file.write_bytes(junit(outcome))
        if markdown_file:
            markdown_file.write_text(markdown(outcome), encoding="utf-8")
        if step_summary:
            with Path(step_summary).open("a", encoding="utf-8") as file:
                file.write(markdown(outcome))
    except OSError as wrong:
        raise click.ClickException(f"cannot write {wrong.filename}: {wrong.strerror}") from None
    if os.environ.get("GITHUB_ACTIONS"):
        for line in github_annotations(outcome):
            err.print(line)


def told(requirements: dict[str, RequirementResult]) -> dict[str, dict[str, str]]:
    """Return the results by requirement as ``--json`` prints them."""
    return {
        name: {"result": said.status, **({"why": said.why} if said.why else {})}
        for name, said in requirements.items()
    }
