"""The README: its example runs as pasted and prints what it says, and what it names exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from surroundings import ROOT

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


def test_it_is_short_and_begins_with_what_a_newcomer_needs() -> None:
    assert len(README.split()) <= 800
    top = "\n".join(README.splitlines()[:60])
    assert "make verify" in top
    assert "make test" in top
    assert "```python" in top


def test_its_commands_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z]+)\b", README)) <= set(targets)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    named = re.findall(r"pip install '\.\[([a-z,]+)\]'", README)
    assert named
    assert {extra for each in named for extra in each.split(",")} <= set(extras)


def test_no_link_leads_to_a_heading_of_its_own() -> None:
    """A package index gives headings no names, or other ones."""
    assert "](#" not in README
