"""The documentation: its code runs and prints what the pages show, and its tables are those of the code."""

from __future__ import annotations

import ast
import inspect
import json
import re
import typing
from pathlib import Path

import pytest

import reference_pages
import turngate
from paged import blocks, is_like, play
from surroundings import ROOT
from turngate import Dispatcher, Outcome, TurngateError, _errors
from turngate.durable import DurableDispatcher
from turngate.server import Limits
from turngate_model.designs import DESIGNS
from turngate_model.properties import DurableProperty, Property
from turngate_verify.conform import Features
from turngate_verify.conform.drills import drills

DOCS = ROOT / "docs"
PAGES = [DOCS / "tutorial.md", *sorted((DOCS / "guides").glob("*.md"))]
NEEDS = {"adapter.md": ("node",), "intervals.md": ("node", "go"), "watch.md": ("node",)}
"""Programs that a page needs besides a shell and curl."""


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.needs("bash", "curl", "grep", *NEEDS.get(page.name, ())))
        for page in PAGES
    ],
    ids=lambda page: page.name,
)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, tmp_path: Path) -> None:
    assert play(page.read_text(encoding="utf-8"), tmp_path) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_is_run_or_marked_as_an_excerpt(page: Path) -> None:
    found = blocks(page.read_text(encoding="utf-8"))
    assert found
    run = "".join(block.text for block in found if block.language == "sh" and not block.is_excerpt)
    for block in found:
        if block.is_excerpt and block.language == "python":
            compile(block.text, page.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
        elif block.language in ("python", "js", "go"):
            assert Path(block.title).stem in run, f"{page.name}, line {block.line}: nothing runs it"
        else:
            assert block.language in ("sh", "text", "json"), f"{page.name}, line {block.line}"


@pytest.mark.needs("bash")
def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no-such-file"):
        play("```sh\ncat no-such-file\necho fine\n```\n", tmp_path)


def test_what_is_printed_is_compared() -> None:
    assert is_like("one\n...\nlast in ...", "one\ntwo\nthree\nlast in 3 s\n")
    assert not is_like("one\n...\nlast", "one\ntwo\n")
    assert not is_like("one", "one\ntwo")
    assert not is_like("a.b", "axb")


@pytest.mark.parametrize("path", reference_pages.pages(), ids=lambda path: path.name)
def test_a_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == reference_pages.pages()[path], "it is stale: make reference"


def test_every_parameter_of_a_call_has_a_meaning() -> None:
    rows = re.findall(r"^\| `[\w-]+` \| (?:path|query|header) \|.*", read("reference/http.md"), re.MULTILINE)
    assert len(rows) > 20
    assert [row for row in rows if re.search(r"\|\s*\|$", row)] == []


def defaults(heading: str) -> dict[str, str]:
    """Return the names and defaults of a table of limits."""
    section = read("reference/limits.md").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([\w.,]+) \|", section, re.MULTILINE))


def shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def in_signature(made: type[object]) -> dict[str, str]:
    return {
        name: shown(parameter.default)
        for name, parameter in inspect.signature(made).parameters.items()
        if parameter.default is not parameter.empty and not isinstance(parameter.default, str)
    }


def test_the_limits_are_those_of_the_constructors() -> None:
    of_memory = in_signature(Dispatcher)
    assert defaults("Dispatcher") == {
        name: value for name, value in of_memory.items() if name not in ("messages", "record")
    }
    of_ledger = in_signature(DurableDispatcher)
    own = {name: value for name, value in of_ledger.items() if name not in of_memory}
    assert defaults("Durable dispatcher") == own
    assert {
        name: value for name, value in of_ledger.items() if name in of_memory
    }.items() <= of_memory.items()


def test_the_limits_of_the_server_are_those_that_it_has() -> None:
    told = {name: float(value.replace(",", "")) for name, value in defaults("Server").items()}
    assert told == {
        name: float(value.default) for name, value in inspect.signature(Limits).parameters.items()
    }


def test_every_outcome_and_every_exception_is_listed() -> None:
    page = read("reference/outcomes.md")
    outcomes, _, errors = page.partition("\n## Exceptions\n")
    assert set(re.findall(r"^\| `(\w+)` \| (?:true|false) \|", outcomes, re.MULTILINE)) == set(
        typing.get_args(Outcome)
    )
    raised = {
        name
        for name in (*turngate.__all__, "LedgerUnavailable")
        if isinstance(kind := getattr(_errors, name, None), type)
        and issubclass(kind, TurngateError)
        and kind is not TurngateError
    }
    assert set(re.findall(r"^\| `(\w+)` \|", errors, re.MULTILINE)) == raised


def test_every_public_name_is_in_the_reference() -> None:
    pages = read("reference/python.md") + read("reference/outcomes.md")
    aliases = {"Event", "OnComplete", "Outcome", "Runner", "WhenBusy", "TurngateError", "__version__"}
    aliases |= {"UNCHANGED", "Unchanged"}
    assert [
        name for name in turngate.__all__ if name not in aliases and not re.search(rf"\b{name}\b", pages)
    ] == []


README_FIGURES = {
    r"([\d,]+) conditions": r"\*\*Result\.\*\* ([\d,]+) conditions",
    r"(\d+) designs": r"refuted in the model: (\d+) of \1;",
    r"([\d,]+) schedules": r"(?<!ledger )schedules: ([\d,]+) schedules",
    r"([\d,]+) injected faults": r"(?<!ledger )faults: ([\d,]+) examples",
}
"""Where the README gives a figure, and where the report does."""


def test_the_figures_of_the_readme_are_those_of_the_report() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## How it is verified")[2]
    report = read("explanation/verification.md")
    for here, there in README_FIGURES.items():
        (figure,) = re.findall(here, section)
        assert {figure} == set(re.findall(there, report)), here
    (killed,) = re.findall(r"killed one by one; all at once \| (\d+); .* \| (\d+);", report)
    assert f"**Killed:** {sum(map(int, killed)):,} real processes" in section
    assert len(re.findall(r"\d[\d,]+", section)) == len(README_FIGURES) + 2, "a figure that nothing compares"


def test_the_largest_exploration_is_the_one_that_the_readme_names() -> None:
    report = (
        read("explanation/verification.md").partition("generated: line-counts -->")[2].partition("<!--")[0]
    )
    states = [int(row.split(" | ")[7].replace(",", "")) for row in report.strip().splitlines()[2:]]
    assert f"up to {max(states):,} states" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_annex_of_the_port_says_how_long_the_drills_are() -> None:
    few, many = drills(Features()), drills(Features(**dict.fromkeys(Features._fields, True)))
    lengths = [*map(len, many)]
    assert (
        f"The drills add {len(few)} to {len(many)} programs of {min(lengths)} to {max(lengths)} operations."
        in read("spec/port.md")
    )


def test_the_annex_of_the_vectors_counts_the_designs() -> None:
    with (ROOT / "vectors/minimal.jsonl").open(encoding="utf-8") as lines:
        heading = json.loads(next(lines))
    refuted, unshown = DESIGNS.keys() & heading["designs"], DESIGNS.keys() & heading["unshown"]
    annex = " ".join(read("spec/vectors.md").split())
    assert f"refutes {len(refuted)} of the {len(DESIGNS)} known-bad designs" in annex
    assert f"The other {len(unshown)} designs cannot be seen from outside" in annex


def test_numbers_and_nouns_agree() -> None:
    pages = [ROOT / "README.md", ROOT / "SPEC.md", ROOT / "GALLERY.md", *DOCS.rglob("*.md")]
    wrong = re.compile(
        r"(?<![\w,.-])1 (?:conditions|states|examples|schedules|programs|runs|turns|steps|seconds)\b"
    )
    assert [found[0] for page in pages for found in wrong.finditer(page.read_text(encoding="utf-8"))] == []


def test_the_report_names_every_property_and_says_when_and_where_it_was_made() -> None:
    part = (
        read("explanation/verification.md").partition("<!-- begin verify run -->")[2].partition("<!-- end")[0]
    )
    assert re.match(r"\n\d{4}-\d\d-\d\d, commit `[0-9a-f]+`, Python [\d.]+ on ", part)
    ids = {*map(str, Property), *map(str, DurableProperty)}
    assert set(re.findall(r"\b[A-Z_]{4,}\b", part)) == ids
