"""The report: one self-contained page with the verdicts, the lifecycle and every counterexample."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from turngate_model import DESIGNS, Property
from turngate_model.durable import DURABLE_DESIGNS
from turngate_model.pictures import lifecycle_svg, sequence_svg
from turngate_model.properties import AnyProperty, DurableProperty
from turngate_verify.conform import Conformance
from turngate_verify.visible import visible

if TYPE_CHECKING:
    from turngate_verify.cli.verify import Verification

PAGE = Template(resources.files("turngate_verify.report").joinpath("page.html").read_text(encoding="utf-8"))


def write_report(verification: Verification, folder: Path) -> Path:
    """Write the page and return its path."""
    return _written(page(verification), folder)


def write_conformance(result: Conformance, folder: Path) -> Path:
    """Write the page about another dispatcher and return its path."""
    return _written(conformance_page(result), folder)


def _written(text: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def page(verification: Verification) -> str:
    """Return the page."""
    wrong = (*verification.problems, *verification.untested)
    problems = (f"<p class='problem'>{escape(problem)}</p>" for problem in wrong)
    return PAGE.substitute(
        subject="Turngate",
        pictures="Known-bad designs",
        about="Each looked right to good engineers. Open one to see who did what, in what order, and what "
        "should have been.",
        verdict=verification.verdict,
        facts="".join(_facts(verification)),
        problems="".join(problems),
        properties="".join((*(_property(verification, each) for each in Property), *_durable(verification))),
        lifecycle=_lifecycle(),
        designs="".join((*_designs(verification), *_durable_designs(verification))),
    )


def conformance_page(result: Conformance) -> str:
    """Return the page about another dispatcher."""
    problems, conversation = "", ""
    if failed := result.failed:
        problems = f"<p class='problem'>it could not be judged to the end: {escape(visible(failed.what))}</p>"
        conversation = f"<pre>{escape(chr(10).join(map(visible, failed.conversation)))}</pre>"
    left_out = "".join(f"<p class='soft'>left out: {escape(words)}</p>" for words in result.left_out)
    return PAGE.substitute(
        subject=escape(result.subject),
        pictures="Counterexamples",
        about="For each property that is violated, the shortest program found and how to replay it.",
        verdict=result.verdict,
        facts="".join(_conformance_facts(result)),
        problems=problems + conversation + left_out,
        properties="".join(
            _card(
                each,
                result.verdict_of(each),
                _why(result, each),
                result.checks(each),
            )
            for each in result.judged
        ),
        lifecycle=_lifecycle(),
        designs="".join(_counterexamples(result)),
    )


def _why(result: Conformance, each: AnyProperty) -> str:
    """Return what is wrong with a property, or why that is not known."""
    if each in result.counterexamples:
        return result.counterexamples[each].what
    if each in result.flaky:
        finding = result.flaky[each]
        return f"broken once by {finding.program}, and not again: {finding.example.what}"
    return result.why_unknown(each)


def _conformance_facts(result: Conformance) -> Iterator[str]:
    for sessions, depth in result.depths.items():
        extent = "one session" if sessions == 1 else "two sessions"
        yield f"<div><b>{depth}</b><span class='soft'>operations, every program in {extent}</span></div>"
    yield f"<div><b>{result.played:,}</b><span class='soft'>short programs</span></div>"
    yield f"<div><b>{result.seconds:.0f} s</b><span class='soft'>in all</span></div>"


def _counterexamples(result: Conformance) -> Iterator[str]:
    for each, example in result.counterexamples.items():
        steps = f"{len(example.steps)} steps"
        yield (
            f"<details><summary><code>{each}</code><span class='chip violated'>violated</span>"
            f"<span>{escape(result.replay_command(each))}</span><span class='by'>{steps}</span></summary>"
            f"<div class='picture'>{sequence_svg(each, each.sentence, example)}</div></details>"
        )


def _facts(verification: Verification) -> Iterator[str]:
    """Yield how much each check has done, in its own unit."""
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
    why = verification.violated.get(each) or verification.unknown.get(each, "")
    return _card(each, verification.verdict_of(each), why, verification.checks[each])


def _durable(verification: Verification) -> Iterator[str]:
    """Yield a card for each property of processes that share a ledger."""
    models = verification.durable.models
    for each in DurableProperty:
        broken = [result.counterexamples[each].what for result in models if each in result.counterexamples]
        checked = {
            f"model of {result.bounds.processes} processes, on death {result.bounds.on_death}": {
                "states": result.states
            }
            for result in models
        }
        yield _card(each, verification.durable.verdict_of(each), "; ".join(broken), checked)


def _durable_designs(verification: Verification) -> Iterator[str]:
    for name, result in verification.durable.designs.items():
        example = result.counterexample
        if example is None:
            yield f"<p class='problem'>{escape(name)} is not refuted</p>"
            continue
        steps = "".join(f"<li>{escape(step)}</li>" for step in example.told())
        yield (
            f"<details><summary><code>{escape(name)}</code><span class='chip refuted'>refuted</span>"
            f"<span>{escape(DURABLE_DESIGNS[name].flaw)}</span>"
            f"<span class='by'>{example.property} in {len(example.steps)} steps</span></summary>"
            f"<ol>{steps}</ol><p class='problem'>but {escape(example.what)}</p></details>"
        )


def _card(each: AnyProperty, verdict: str, why: str, checked: dict[str, dict[str, int]]) -> str:
    checks = "".join(
        f"<li>{escape(name)}: {count:,} {escape(unit)}</li>"
        for name, counts in checked.items()
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
