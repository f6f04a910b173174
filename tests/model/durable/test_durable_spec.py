"""What SPEC.md and the verification report say of processes that die is what the model says."""

from __future__ import annotations

from explored import all_durable_refuted
from surroundings import ROOT
from turngate_model import DURABLE_DESIGNS
from turngate_model.checker.counts import DURABLE_COUNTS, DURABLE_LINE_COUNTS
from turngate_model.properties import DurableProperty


def section(page: str, heading: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


SPECIFIED = section("SPEC.md", "8. Processes that die")
REPORTED = section("docs/explanation/verification.md", "Processes that die")


def rows(text: str, begins: str) -> list[list[str]]:
    """Return the rows of the table whose head begins so."""
    table = text.partition(f"\n| {begins} |")[2].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_the_properties_are_those_of_the_model() -> None:
    assert rows(SPECIFIED, "id") == [[f"**{each}**", each.sentence] for each in DurableProperty]


def test_the_counts_are_those_that_are_pinned() -> None:
    bounds = ("processes", "prompts", "cancels", "crashes", "expiries", "losses", "loads", "on_death")
    assert rows(REPORTED, "processes") == [
        [*(str(getattr(count.bounds, name)) for name in bounds), f"{count.states:,}", str(count.depth)]
        for count in DURABLE_COUNTS
    ]
    for count in DURABLE_LINE_COUNTS:
        assert f"there are {count.states:,} states, depth {count.depth}." in REPORTED


def test_the_refutations_are_those_that_are_found() -> None:
    expected = []
    for name, result in all_durable_refuted().items():
        example = result.counterexample
        assert example is not None
        flaw = DURABLE_DESIGNS[name].flaw
        expected.append([f"`{name}`", flaw, str(example.property), str(len(example.steps))])
    assert rows(REPORTED, "design") == expected
