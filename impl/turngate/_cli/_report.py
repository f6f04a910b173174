"""The report: one self-contained page with the verdicts, the lifecycle and every counterexample as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from turngate_model import DESIGNS, Property, lifecycle_svg, sequence_svg

if TYPE_CHECKING:
    from ._verify import Verification

PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Turngate: $verdict</title>
<style>
:root { --ink: #1f2933; --soft: #616e7c; --line: #e4e7eb; --page: #f5f7fa; --card: #ffffff;
        --holds: #2f855a; --violated: #c0392b; --unknown: #b7791f; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
       font: 15px/1.5 system-ui, "Helvetica Neue", Helvetica, Arial, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 32px 24px 64px; }
header { border-left: 10px solid var(--$verdict); background: var(--card); border-radius: 10px;
         padding: 22px 28px; box-shadow: 0 1px 3px rgb(0 0 0 / 8%); }
h1 { margin: 0; font-size: 30px; } h1 b { color: var(--$verdict); }
h2 { margin: 40px 0 14px; font-size: 21px; }
p { margin: 6px 0; } .soft { color: var(--soft); }
.facts { display: flex; flex-wrap: wrap; gap: 26px; margin-top: 14px; }
.facts div b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(340px, 1fr)); gap: 14px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px; }
.card h3 { margin: 0 0 4px; font-size: 15px; display: flex; justify-content: space-between; gap: 8px; }
.chip { color: #fff; border-radius: 99px; padding: 1px 10px; font-size: 12px; font-weight: 600; white-space: nowrap; }
.holds, .refuted { background: var(--holds); } .violated, .not { background: var(--violated); }
.unknown { background: var(--unknown); }
.checks { list-style: none; margin: 8px 0 0; padding: 8px 0 0; border-top: 1px solid var(--line);
          font-size: 13px; color: var(--soft); font-variant-numeric: tabular-nums; }
.picture { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 10px; overflow-x: auto; }
.picture svg { max-width: 100%; height: auto; display: block; margin: 0 auto; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin: 8px 0; }
summary { cursor: pointer; padding: 11px 18px; display: flex; gap: 14px; align-items: baseline; flex-wrap: wrap; }
summary code { font-weight: 700; min-width: 170px; } summary .by { margin-left: auto; color: var(--soft); font-size: 13px; }
details .picture { border: 0; border-top: 1px solid var(--line); border-radius: 0 0 10px 10px; }
.problem { color: var(--violated); font-weight: 600; }
</style>
</head>
<body><main>
<header>
<h1>Turngate: <b>$verdict</b></h1>
<p class="soft">One turn at a time per session, cancels that cover what came before and nothing after,
exactly one RunComplete per run.</p>
<div class="facts">$facts</div>
$problems
</header>
<h2>What always holds</h2>
<div class="grid">$properties</div>
<h2>The life of a run</h2>
$lifecycle
<h2>Known-bad designs</h2>
<p class="soft">Each looked right to good engineers. Open one to see who did what, in what order, and what should
have been.</p>
$designs
</main></body>
</html>
""")


def write_report(verification: Verification, folder: Path) -> Path:
    """Write the page and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(page(verification), encoding="utf-8")
    return path


def page(verification: Verification) -> str:
    """Return the page."""
    problems = (f"<p class='problem'>{escape(problem)}</p>" for problem in verification.problems)
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
