"""The README: its example runs as pasted and prints what it says, and its table is that of the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from surroundings import ROOT
from turngate_model import Property, model_only

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs_as_pasted(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    (tmp_path / "agent.py").write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "agent.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "impl")},
    )
    assert (done.stderr, done.returncode) == ("", 0)
    expected = re.findall(r"print\(.*# (.+)", example)
    assert done.stdout.splitlines() == expected
    assert len(example.splitlines()) <= 25


def test_the_table_names_every_promise() -> None:
    of_the_model = {Property.DECLARED_MOVE, Property.REFINES, *model_only.PROPERTIES}
    promises = [str(each) for each in Property if each not in of_the_model]
    assert re.findall(r"^\| ([A-Z_]+) \|", README, re.MULTILINE) == promises


def test_the_lifecycle_is_near_the_top_and_a_counterexample_further_down() -> None:
    pictures = re.findall(r"^!\[[^]]+\]\(diagrams/(.+)\.svg\)$", README, re.MULTILINE)
    assert pictures == ["lifecycle", "designs/pending-flag"]
    assert "lifecycle.svg" in README[:1500]


def test_no_link_leads_to_a_heading_of_its_own() -> None:
    """A package index gives headings no names, or other ones."""
    assert "](#" not in README
