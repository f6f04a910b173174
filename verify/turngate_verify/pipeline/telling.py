"""Results of ``conform`` and ``trace`` as outcomes."""

from __future__ import annotations

from turngate_model.properties import AnyProperty, Property
from turngate_verify.conform.result import JUDGED, Conformance
from turngate_verify.intervals.judge import JudgedHistory
from turngate_verify.pipeline.outcome import Case, Outcome
from turngate_verify.pipeline.requirements import AtStake, RequirementResult, results
from turngate_verify.pipeline.situations import Situations, of_steps
from turngate_verify.trace import NEVER_SHOWN, Checked

RECORDED = ("two_phase", "folds", "clear", "cancel", "cancel_run")
"""What a recording can show, in the words of the features of a subject."""
_OWED = (Property.EXACTLY_ONE_COMPLETE, Property.NO_STRAND)


def requirements_of(result: Conformance) -> dict[str, RequirementResult]:
    """Return what a check of a subject says about every requirement."""
    verdicts = {each: result.verdict_of(each) for each in result.judged}
    offences = {
        each: AtStake() if _overlaps(result, each) else _at_stake(of_steps(example.steps), example.what)
        for each, example in result.counterexamples.items()
    }
    return results(result.features.names, result.witnessed, verdicts, offences)


def _at_stake(situations: Situations, what: str) -> AtStake:
    return AtStake(frozenset(situations.last), frozenset(situations.blamed(what)))


def _overlaps(result: Conformance, each: AnyProperty) -> bool:
    """Return whether operations of the counterexample overlap; then no single step shows what is wrong."""
    return any(step.at_once or step.words for step in result.counterexamples[each].steps)


def of_conformance(result: Conformance) -> Outcome:
    """Return a check of a subject as an outcome."""
    cases = [_property(result, each) for each in result.judged]
    if result.failed:
        cases.append(Case("subject", "error", result.failed.what, "\n".join(result.failed.conversation)))
    return Outcome(
        result.subject,
        result.verdict,
        result.summary,
        result.seconds,
        tuple(cases),
        requirements_of(result),
    )


def _property(result: Conformance, each: AnyProperty) -> Case:
    match result.verdict_of(each):
        case "violated":
            example = result.counterexamples[each]
            told = [*example.told(), f"replay: {result.replay_command(each)}"]
            return Case(str(each), "failed", example.what, "\n".join(told))
        case "flaky":
            finding = result.flaky[each]
            told = [*finding.example.told(), f"replay: {result.replay_command(each)}"]
            return Case(str(each), "error", f"flaky: {finding.example.what}", "\n".join(told))
        case "unknown":
            return Case(str(each), "skipped", result.why_unknown(each))
        case _:
            return Case(str(each), "passed")


def requirements_of_recording(checked: Checked, situations: Situations) -> dict[str, RequirementResult]:
    """Return what a recording says about every requirement."""
    rest = "unknown" if checked.offence or not checked.runs else "holds"
    verdicts: dict[AnyProperty, str] = dict.fromkeys(JUDGED, rest)
    if not checked.whole:
        verdicts |= dict.fromkeys(_OWED, "unknown")
    offences: dict[AnyProperty, AtStake] = {}
    if checked.offence:
        verdicts[checked.offence.property] = "violated"
        offences[checked.offence.property] = _at_stake(situations, checked.offence.what)
    return results(RECORDED, situations.seen, verdicts, offences)


def of_recording(checked: Checked, situations: Situations, name: str) -> Outcome:
    """Return a check of a recording as an outcome."""
    cases: list[Case] = []
    summary = checked.verdict if checked.runs or checked.offence else "unknown: it shows no run"
    for each in JUDGED:
        if checked.offence and each is checked.offence.property:
            summary = f"violated: {each} at line {checked.offence.line}"
            cases.append(Case(str(each), "failed", checked.offence.what, "", name, checked.offence.line))
        elif why := _why_unchecked(checked, each):
            cases.append(Case(str(each), "skipped", why))
        else:
            cases.append(Case(str(each), "passed"))
    if checked.offence and checked.offence.property not in JUDGED:
        broken, line = checked.offence.property, checked.offence.line
        summary = f"violated: {broken} at line {line}"
        cases.append(Case(str(broken), "failed", checked.offence.what, "", name, line))
    requirements = requirements_of_recording(checked, situations)
    return Outcome(name, checked.verdict, summary, 0.0, tuple(cases), requirements)


def _why_unchecked(checked: Checked, each: Property) -> str:
    if each in NEVER_SHOWN:
        return "a recording does not show it"
    if checked.offence:
        return "the recording was judged up to the first violation"
    if not checked.runs:
        return "the recording shows no run"
    return (
        "what is still owed was not checked: no line says end" if each in _OWED and not checked.whole else ""
    )


def requirements_of_intervals(judged: JudgedHistory) -> dict[str, RequirementResult]:
    """Return what a history within intervals says of every requirement: intervals show no one order."""
    verdicts: dict[AnyProperty, str] = dict.fromkeys(JUDGED, "unknown")
    verdicts |= {breach.broken: "violated" for breach in judged.breaches}
    return results(RECORDED, (), verdicts, {})


def of_intervals(judged: JudgedHistory, name: str) -> Outcome:
    """Return a judged history as an outcome: one case for each session that is broken or undecided."""
    cases = [
        Case(f"session {each.session}", "failed", f"{each.broken} at {each.where}: {each.what}")
        for each in judged.breaches
    ]
    cases += [
        Case(f"session {each}", "error", "it has too many possible orders") for each in judged.undecided
    ]
    cases += [Case("not checked", "skipped", each) for each in judged.cannot_show]
    if not judged.whole:
        cases.append(Case("end", "skipped", "what is still owed was not checked: no line says end"))
    broken = ", ".join(dict.fromkeys(str(each.broken) for each in judged.breaches))
    summary = f"{judged.verdict}: {broken}" if broken else str(judged.verdict)
    return Outcome(name, judged.verdict, summary, 0.0, tuple(cases), requirements_of_intervals(judged))
