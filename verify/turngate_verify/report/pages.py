"""The reports: one self-contained page with the verdicts, and every counterexample step by step."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from turngate.cli.visible import visible
from turngate_model import DURABLE_DESIGNS, EVERY_DESIGN, EVERY_MECHANISM
from turngate_model.checker import Counterexample
from turngate_model.pictures import lifecycle_svg
from turngate_model.pictures.scenes import SOUND, Scene, Side, instead, of_counterexample
from turngate_model.pictures.walks import Shown, following, shown
from turngate_model.properties import AnyProperty
from turngate_verify.conform import Conformance
from turngate_verify.report.cases import Case, CaseStep, SideStep, of_scene, panel_of, slug, state_rows
from turngate_verify.report.provenance import provenance
from turngate_verify.report.rendering import Markup, drawing, render, written
from turngate_verify.trace import Checked
from turngate_verify.trace_history import Recorded, latest
from turngate_verify.words import counted

if TYPE_CHECKING:
    from turngate_verify.cli.verification import Verification

_FOLLOWS = "follows from the history"
_GROUPS = {
    "violated": "What is violated",
    "flaky": "Broken once, but not when replayed",
    "holds": "What always holds",
    "unknown": "What is not known",
}
_MOST_STEPS = 60
"""How many events of a long recording the page shows, after all those about runs in flight by then."""


class PropertyCard(NamedTuple):
    """A property on a page."""

    name: str
    verdict: str
    sentence: str
    why: str = ""
    checks: str = ""


def write_report(verification: Verification, folder: Path) -> Path:
    """Write the page about everything, and return its path."""
    return written(page(verification), folder / "index.html")


def write_conformance(result: Conformance, folder: Path) -> Path:
    """Write the page about another dispatcher, and return its path."""
    return written(conformance_page(result), folder / "index.html")


def write_trace(checked: Checked, history: list[Recorded], name: str, folder: Path) -> Path:
    """Write the page about a recording, and return its path."""
    return written(trace_page(checked, history, name), folder / "index.html")


def _page(subject: str, verdict: str, command: str, **about: Any) -> str:
    drawn, missing = lifecycle_svg()
    rest: dict[str, Any] = {
        "summary": "",
        "problems": [],
        "conversation": [],
        "remarks": [],
        "drivers": [],
        "unrefuted": [],
        "cases": [],
        "lifecycle": drawing(drawn) if drawn else Markup(""),
    }
    remarks = [*about.pop("remarks", []), *([missing] if missing else [])]
    made = {"command": visible(command), **about.pop("made", {}), **provenance()}
    told = {**rest, **about, "remarks": remarks}
    told["groups"] = _grouped(told.pop("properties"))
    told["violated_first"] = any(case.chip == "violated" for case in told["cases"])
    return render("report.html", subject=visible(subject), verdict=verdict, made=made, **told)


def _grouped(properties: Iterable[PropertyCard]) -> list[tuple[str, list[PropertyCard]]]:
    """Return the properties grouped by verdict, violations first, without empty groups."""
    groups: dict[str, list[PropertyCard]] = {title: [] for title in _GROUPS.values()}
    for each in properties:
        groups[_GROUPS[each.verdict]].append(each)
    return [(title, cards) for title, cards in groups.items() if cards]


# Everything.


def page(verification: Verification) -> str:
    """Return the page about everything."""
    cases = [*_designs(verification), *_durable_designs(verification)]
    designs, durable = verification.designs, verification.durable.designs
    return _page(
        "Turngate",
        verification.verdict,
        verification.command,
        made={"seed": verification.seed or "none", "took": f"{verification.seconds:.0f} s"},
        about="One turn at a time per session, cancels that cover what came before and nothing after, "
        "exactly one RunComplete per run.",
        problems=[visible(each) for each in (*verification.problems, *verification.untested)],
        remarks=[f"not checked: {thing}" for thing in verification.unchecked],
        drivers=[
            (line.name, visible(line.counts()), f"{line.seconds:.1f} s") for line in verification.drivers
        ],
        properties=_properties(verification),
        heading="Known-bad designs",
        hint="Each of them looked right to good engineers.",
        unrefuted=[
            *(name for name, result in designs.items() if result.counterexample is None),
            *(name for name, result in durable.items() if result.counterexample is None),
        ],
        cases=cases,
    )


def _properties(verification: Verification) -> Iterable[PropertyCard]:
    for each in verification.checks:
        broken = [
            result.counterexamples[each].what
            for result in verification.durable.models
            if each in result.counterexamples
        ]
        why = verification.violated.get(each) or "; ".join(broken) or verification.unknown.get(each, "")
        yield PropertyCard(str(each), verification.verdict_of(each), each.sentence, visible(why))


def _designs(verification: Verification) -> Iterable[Case]:
    for name, result in verification.designs.items():
        example = result.counterexample
        if example is None:
            continue
        found = verification.sabotaged.get(name, "")
        by = _by(example.property, len(example.steps)) + (f"; on the real code {found}" if found else "")
        design = EVERY_DESIGN[name]
        scene = of_counterexample(name, design.flaw, example, EVERY_MECHANISM[name])
        replay = f"turngate explore --design {name}"
        yield of_scene(name, scene, chip="refuted", flaw=design.flaw, by=by, replay=replay)


def _by(each: AnyProperty, steps: int) -> str:
    return f"{each} in {steps} step" + ("s" if steps != 1 else "")


def _durable_designs(verification: Verification) -> Iterable[Case]:
    for name, result in verification.durable.designs.items():
        if example := result.counterexample:
            yield _durable_case(name, example, verification.sabotaged.get(name, ""))


def _durable_case(name: str, example: Counterexample, found: str) -> Case:
    """Return a case among processes. Their pictures would need a lane for each, so there is none."""
    steps = []
    before: dict[str, str] = {}
    for number, step in enumerate(example.steps, 1):
        words, after = str(step), step.state or {}
        verdict = f"{example.property}: {example.what}" if number == len(example.steps) else ""
        who, _, does = words.partition(" ")
        is_process = who[:1] == "P" and who[1:].isdigit()
        side = SideStep(name, True, words, state_rows(before, after), verdict)
        steps.append(CaseStep(number, who if is_process else "", does if is_process else words, [side]))
        before = after
    flaw, replay = DURABLE_DESIGNS[name].flaw, f"turngate explore --design {name}"
    by = _by(example.property, len(steps)) + (f"; on the real code {found}" if found else "")
    return Case(slug(name), name, "refuted", flaw, by, replay, steps, Markup(""))


# Another dispatcher.


def conformance_page(result: Conformance) -> str:
    """Return the page about another dispatcher."""
    failed = result.failed
    problems = [f"it could not be judged to the end: {failed.what}"] if failed else []
    played = [
        ("short", f"every program of up to {counted(depth, 'operation')}, sessions: {sessions}", "")
        for sessions, depth in result.depths.items()
    ]
    return _page(
        result.subject,
        result.verdict,
        "turngate conform " + (f"-- {result.subject}" if result.is_command else result.subject),
        summary=visible(f"The verdict: {result.summary}."),
        made={"seed": str(result.seed), "took": f"{result.seconds:.0f} s"},
        about="Held to the promises of Turngate by the conformance kit: short programs, then random ones.",
        problems=[visible(each) for each in (*problems, *filter(None, [result.gave_up]))],
        conversation=[visible(line) for line in failed.conversation] if failed else [],
        remarks=[f"left out: {words}" for words in result.left_out],
        drivers=[*played, ("played", counted(result.played, "short program"), "")],
        properties=[
            PropertyCard(
                str(each),
                result.verdict_of(each),
                each.sentence,
                visible(_why(result, each)),
                _counts(result.checks(each)),
            )
            for each in result.judged
        ],
        heading="Counterexamples",
        hint="For each property that is violated, the shortest program found.",
        cases=[_conformance_case(result, each) for each in result.counterexamples],
    )


def _why(result: Conformance, each: AnyProperty) -> str:
    """Return what is wrong with a property, or why its verdict is unknown."""
    if each in result.counterexamples:
        return result.counterexamples[each].what
    if each in result.flaky:
        finding = result.flaky[each]
        return f"broken once by {finding.program}, but not when replayed: {finding.example.what}"
    return result.why_unknown(each)


def _counts(checks: dict[str, dict[str, int]]) -> str:
    return ", ".join(
        f"{name}: {count:,} {unit if count != 1 else unit.removesuffix('s')}"
        for name, counts in checks.items()
        for unit, count in counts.items()
    )


def _conformance_case(result: Conformance, each: AnyProperty) -> Case:
    example = result.counterexamples[each]
    steps = [
        Shown(f"session {step.session + 1}", step.action.actor, words.partition(":")[0], step.events)
        for step, words in zip(example.steps, example.told(), strict=True)
    ]
    return _case_of_history(
        each,
        example.what,
        steps,
        by=counted(len(steps), "step"),
        replay=result.replay_command(each),
        at_once=True,
    )


def _case_of_history(
    broken: AnyProperty, what: str, steps: list[Shown], *, by: str, replay: str, at_once: bool
) -> Case:
    """Return a case about a history that another dispatcher has shown."""
    seen, sound = shown(steps), following(steps, at_once=at_once)
    said = f"{broken}: {visible(what)}"
    sides = (
        Side("this dispatcher", seen, said, is_broken=True, remembers=_FOLLOWS),
        Side(SOUND, sound, instead(seen, sound)),
    )
    scene = Scene(str(broken), f"{broken}. {broken.sentence}", (panel_of(*sides),))
    return of_scene(
        str(broken), scene, chip="violated", flaw=broken.sentence, by=by, replay=replay, stacked=True
    )


# A recording.


def trace_page(checked: Checked, history: list[Recorded], name: str) -> str:
    """Return the page about a recording. ``history`` is what led to the violation, if there is one."""
    cases, kept = [], history
    command = f"turngate trace {name}"
    if checked.offence:
        kept = latest(history, _MOST_STEPS)
        steps = [Shown(each.session, each.actor, each.words, each.events) for each in kept]
        by = f"line {checked.offence.line}"
        cases.append(
            _case_of_history(
                checked.offence.property, checked.offence.what, steps, by=by, replay=command, at_once=False
            )
        )
    left_out = len(history) - len(kept)
    remarks = [f"not checked: {each}" for each in checked.unchecked]
    if left_out > 0:
        remarks.append(f"{counted(left_out, 'earlier event')} of the session, about complete runs: not shown")
    return _page(
        name,
        checked.verdict,
        command,
        made={"seed": "none: nothing is drawn"},
        about=f"A recorded history: {counted(checked.events, 'event')}, {counted(checked.runs, 'run')}, "
        + ("a whole recording." if checked.whole else "up to the first violation." if cases else "partial."),
        remarks=remarks,
        properties=_traced(checked),
        heading="The violation",
        hint="The history of the session in which it happened.",
        cases=cases,
    )


def _traced(checked: Checked) -> list[PropertyCard]:
    """Return the card of the violated property; a recording says too little about the others."""
    if not checked.offence:
        return []
    broken = checked.offence.property
    return [PropertyCard(str(broken), "violated", broken.sentence, visible(checked.offence.what))]
