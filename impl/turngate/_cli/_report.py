"""The report: one self-contained page with the verdicts, the lifecycle and every counterexample."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from turngate_model import DESIGNS, Property, lifecycle_svg, sequence_svg

if TYPE_CHECKING:
    from ._verify import Verification

PAGE = Template(resources.files("turngate._cli").joinpath("page.html").read_text(encoding="utf-8"))


def write_report(verification: Verification, folder: Path) -> Path:
    """Write the page and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(page(verification), encoding="utf-8")
    return path


def page(verification: Verification) -> str:
    """Return the page."""
    wrong = (*verification.problems, *verification.untested)
    problems = (f"<p class='problem'>{escape(problem)}</p>" for problem in wrong)
    return PAGE.substitute(
        verdict=verification.verdict,
        facts="".join(_facts(verification)),
        problems="".join(problems),
        properties="".join(_property(verification, each) for each in Property),
        lifecycle=_lifecycle(),
        designs="".join(_designs(verification)),
    )


def _facts(verification: Verification) -> Iterator[str]:
    """Yield how much was done, by what it is counted in."""
    totals: dict[tuple[str, str], int] = {}
    for checks in verification.checks.values():
        for name, counts in checks.items():
            for unit, count in counts.items():
                totals[name, unit] = max(totals.get((name, unit), 0), count)
    for (name, unit), count in totals.items():
        yield f"<div><b>{count:,}</b><span class='soft'>{escape(unit)}, {escape(name)}</span></div>"
    refuted = sum(result.counterexample is not None for result in verification.designs.values())
    yield f"<div><b>{refuted} of {len(DESIGNS)}</b><span class='soft'>known-bad designs refuted</span></div>"
    yield f"<div><b>{verification.seconds:.0f} s</b><span class='soft'>in all</span></div>"


def _property(verification: Verification, each: Property) -> str:
    verdict = verification.verdict_of(each)
    why = verification.violated.get(each) or verification.unknown.get(each, "")
    checks = "".join(
        f"<li>{escape(name)}: {count:,} {escape(unit)}</li>"
        for name, counts in verification.checks[each].items()
        for unit, count in counts.items()
    )
    return (
        f"<div class='card'><h3><span>{each}</span><span class='chip {verdict}'>{verdict}</span></h3>"
        f"<p>{escape(each.sentence)}</p>"
        + (f"<p class='problem'>{escape(why)}</p>" if why else "")
        + f"<ul class='checks'>{checks}</ul></div>"
    )


def _lifecycle() -> str:
    drawn, missing = lifecycle_svg()
    return f"<div class='picture'>{drawn}</div>" if drawn else f"<p class='soft'>{escape(missing)}</p>"


def _designs(verification: Verification) -> Iterator[str]:
    for name, result in verification.designs.items():
        example = result.counterexample
        if example is None:
            yield f"<p class='problem'>{escape(name)} is not refuted</p>"
            continue
        found = verification.sabotaged.get(name, "")
        by = f"{example.property} in {len(example.steps)} steps" + (
            f"; on the real code {found}" if found else ""
        )
        yield (
            f"<details><summary><code>{escape(name)}</code><span class='chip refuted'>refuted</span>"
            f"<span>{escape(DESIGNS[name].flaw)}</span><span class='by'>{escape(by)}</span></summary>"
            f"<div class='picture'>{sequence_svg(name, DESIGNS[name].flaw, example)}</div></details>"
        )
