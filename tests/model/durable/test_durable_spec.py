"""Section 13 of SPEC.md: its tables say what the model says."""

from __future__ import annotations

from explored import all_durable_refuted
from surroundings import ROOT
from turngate_model import DURABLE_DESIGNS
from turngate_model.checker.counts import DURABLE_COUNTS
from turngate_model.properties import DurableProperty

SECTION = (ROOT / "SPEC.md").read_text(encoding="utf-8").partition("\n## 13. Processes that die\n")[2]


def rows(begins: str) -> list[list[str]]:
    """Return the rows of the table whose head begins so."""
    table = SECTION.partition(f"\n| {begins} |")[2].split("\n\n")[0]
    return [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]


def test_the_properties_are_those_of_the_model() -> None:
    assert rows("id") == [[f"**{each}**", each.sentence] for each in DurableProperty]


def test_the_counts_are_those_that_are_pinned() -> None:
    bounds = ("processes", "prompts", "cancels", "crashes", "expiries", "losses", "loads", "on_death")
    assert rows("processes") == [
        [*(str(getattr(count.bounds, name)) for name in bounds), f"{count.states:,}", str(count.depth)]
        for count in DURABLE_COUNTS
    ]


def test_the_refutations_are_those_that_are_found() -> None:
    expected = []
    for name, result in all_durable_refuted().items():
        example = result.counterexample
        assert example is not None
        flaw = DURABLE_DESIGNS[name].flaw
        expected.append([f"`{name}`", flaw, str(example.property), str(len(example.steps))])
    assert rows("design") == expected
