"""Writes an outcome as JUnit XML, as GitHub annotations, and as Markdown. Everything is escaped."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from turngate_verify.pipeline.outcome import Case, Outcome

_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(outcome: Outcome) -> bytes:
    """Return the outcome as JUnit XML: one suite for the properties, and one for the requirements."""
    root = ElementTree.Element("testsuites", name=_xml(outcome.title))
    _add_suite(root, "properties", (outcome.verdict_case, *outcome.cases), outcome)
    _add_suite(root, "requirements", outcome.requirement_cases, outcome, seconds=0.0)
    ElementTree.indent(root)
    written: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _add_suite(
    root: ElementTree.Element,
    name: str,
    cases: tuple[Case, ...],
    outcome: Outcome,
    *,
    seconds: float | None = None,
) -> None:
    counts = {
        "tests": len(cases),
        "failures": sum(case.status == "failed" for case in cases),
        "errors": sum(case.status == "error" for case in cases),
        "skipped": sum(case.status == "skipped" for case in cases),
    }
    took = outcome.seconds if seconds is None else seconds
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        {"name": f"turngate.{name}", **{key: str(count) for key, count in counts.items()}},
        time=f"{took:.3f}",
    )
    for case in cases:
        element = ElementTree.SubElement(
            suite, "testcase", classname=_xml(f"{outcome.title}.{name}"), name=_xml(case.name), time="0.000"
        )
        if case.status == "passed":
            continue
        kind = {"failed": "failure", "error": "error", "skipped": "skipped"}[case.status]
        said = ElementTree.SubElement(element, kind, message=_xml(case.summary))
        if case.detail:
            said.text = _xml(case.detail)


def _xml(text: str) -> str:
    """Return a text without the characters that no XML can hold; ElementTree escapes the others."""
    return _NOT_IN_XML.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def github_annotations(outcome: Outcome) -> list[str]:
    """Return the lines by which GitHub shows what is wrong beside the change."""
    lines = [_annotation("error", outcome.title, each) for each in outcome.cases if each.status == "failed"]
    lines += [_annotation("warning", outcome.title, each) for each in outcome.cases if each.status == "error"]
    if not lines and outcome.verdict != "holds":
        lines = [_annotation("warning", outcome.title, outcome.verdict_case)]
    return lines


def _annotation(level: str, title: str, case: Case) -> str:
    where = {"file": case.file, "line": str(case.line)} if case.file and case.line else {}
    parameters = {**where, "title": f"{title}: {case.name}"}
    told = ",".join(f"{key}={_parameter(value)}" for key, value in parameters.items())
    return f"::{level} {told}::{_data(chr(10).join(filter(None, (case.summary, case.detail))))}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _parameter(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def markdown(outcome: Outcome) -> str:
    """Return the outcome as a Markdown summary."""
    lines = [f"## {_cell(outcome.title)}: {_cell(outcome.verdict)}", "", _cell(outcome.summary), ""]
    lines += ["| property | result | |", "| --- | --- | --- |"]
    lines += [f"| {_cell(each.name)} | {each.status} | {_cell(each.summary)} |" for each in outcome.cases]
    for each in outcome.cases:
        if each.detail:
            lines += ["", f"### {_cell(each.name)}", "", _fenced(each.detail)]
    lines += ["", "| requirement | result | |", "| --- | --- | --- |"]
    lines += [
        f"| {name} | {said.status} | {_cell(said.why)} |" for name, said in outcome.requirements.items()
    ]
    return "\n".join(lines) + "\n\n"


def _cell(text: str) -> str:
    """Return a text that Markdown and HTML show as it is, in one line."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|&~$@])", _character, " ".join(text.split()))


def _character(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};"


def _fenced(text: str) -> str:
    longest = max((len(ticks) for ticks in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
