"""``turngate verify``: the main job. Every check there is, and one table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from turngate_model import DESIGNS, Bounds, Exploration, Explorer, Property, generate, refute, stale

from ._explore import reasons
from ._report import write_report
from ._show import EXIT_CODES, out, print_counterexample, print_json, stages, styled

PROMISES = tuple(each for each in Property if each not in (Property.DECLARED_MOVE, Property.REFINES))


@dataclass
class Verification:
    """What was checked, how often, and what came of it."""

    checks: dict[Property, dict[str, dict[str, int]]] = field(
        default_factory=lambda: {each: {} for each in Property}
    )
    violated: dict[Property, str] = field(default_factory=dict)
    unknown: dict[Property, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What is wrong that no property speaks of, such as a stale diagram."""
    designs: dict[str, Exploration] = field(default_factory=dict)
    sabotaged: dict[str, str] = field(default_factory=dict)
    """For each design, what refuted it on the real dispatcher."""
    model: Exploration | None = None
    seconds: float = 0.0

    def verdict_of(self, each: Property) -> str:
        """Return one of holds, violated and unknown; what was never checked is unknown."""
        if each in self.violated:
            return "violated"
        return "unknown" if each in self.unknown or not self.checks[each] else "holds"

    @property
    def verdict(self) -> str:
        """The verdict on everything."""
        verdicts = {self.verdict_of(each) for each in Property}
        refuted = all(result.counterexample for result in self.designs.values())
        if "violated" in verdicts or self.problems or not refuted:
            return "violated"
        return "unknown" if "unknown" in verdicts or set(self.designs) != set(DESIGNS) else "holds"


@click.command()
@click.option("--deep", is_flag=True, help="Larger bounds: four prompts and two cancels.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--report",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write one self-contained page with verdicts and pictures to DIR/index.html.",
)
def verify(deep: bool, as_json: bool, report: Path | None) -> int:
    """Check everything: the main job.

    Exit code 0 only if every property holds and every known-bad design is
    refuted; 1 if something is violated; 3 if anything stayed unknown.
    """
    if report:
        report.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    verification = Verification()
    with stages(2 + len(DESIGNS)) as begin:
        _explore_model(verification, Bounds(4, 2) if deep else Bounds(), begin)
        _refute_designs(verification, begin)
        _compare_diagrams(verification, begin)
    verification.seconds = time.monotonic() - began
    if as_json:
        print_json(as_object(verification))
    else:
        print_verification(verification)
    if report:
        click.echo(f"wrote {write_report(verification, report)}", err=True)
    return EXIT_CODES[verification.verdict]


def _explore_model(verification: Verification, bounds: Bounds, begin: Callable[[str], None]) -> None:
    begin(f"the model, {bounds.prompts} prompts and {bounds.cancels} cancels")
    result = verification.model = Explorer(bounds).run()
    for each in Property:
        verification.checks[each]["model"] = {"states": result.states}
        if each in result.counterexamples:
            verification.violated[each] = result.counterexamples[each].what
        elif result.verdict == "unknown" and (result.gave_up or result.missed or each in result.unexercised):
            verification.unknown[each] = "; ".join(reasons(result))


def _refute_designs(verification: Verification, begin: Callable[[str], None]) -> None:
    for design in DESIGNS.values():
        begin(f"the design {design.name}")
        verification.designs[design.name] = refute(design)


def _compare_diagrams(verification: Verification, begin: Callable[[str], None]) -> None:
    begin("the diagrams")
    folder = Path("diagrams")
    if folder.is_dir():
        verification.problems += stale(generate(refuted=verification.designs), folder, Path("SPEC.md"))


def as_object(verification: Verification) -> dict[str, Any]:
    """Return a verification as the object that ``--json`` prints."""
    return {
        "verdict": verification.verdict,
        "properties": {
            str(each): {"verdict": verification.verdict_of(each), "checks": verification.checks[each]}
            for each in PROMISES
        },
        "model": {str(each): verification.verdict_of(each) for each in Property if each not in PROMISES},
        "designs": {
            name: {
                "refuted": result.counterexample is not None,
                "by": [str(each) for each in result.claimed if each in result.counterexamples],
                "steps": len(result.counterexample.steps) if result.counterexample else 0,
            }
            for name, result in verification.designs.items()
        },
        "problems": verification.problems,
        "seconds": round(verification.seconds, 3),
    }


def print_verification(verification: Verification) -> None:
    """Print a verification for people."""
    properties = Table(
        "property", "verdict", "checked how often", box=None, pad_edge=False, title_justify="left"
    )
    for each in Property:
        checks = ", ".join(
            f"{name}: {count:,} {unit}"
            for name, counts in verification.checks[each].items()
            for unit, count in counts.items()
        )
        properties.add_row(str(each), styled(verification.verdict_of(each)), checks)
    designs = Table("known-bad design", "verdict", "breaks", "in steps", box=None, pad_edge=False)
    for name, result in verification.designs.items():
        example = result.counterexample
        shown = styled("refuted") if example else "[bold red]not refuted[/]"
        designs.add_row(
            name, shown, str(example.property) if example else "", str(len(example.steps)) if example else ""
        )
    out.print(properties, "", designs, "", sep="\n")
    for problem in verification.problems:
        out.print(problem, style="red", markup=False)
    for each, why in (*verification.violated.items(), *verification.unknown.items()):
        out.print(f"{each}: {why}", markup=False)
    if verification.model:
        for example in verification.model.counterexamples.values():
            print_counterexample(example)
    out.print(f"verdict: {styled(verification.verdict)} in {verification.seconds:.0f} s")
