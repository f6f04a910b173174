"""The README: its example runs as pasted and prints what it says, and its table is that of the contract."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from surroundings import ROOT
from turngate_model import Property

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_runs_as_pasted(tmp_path: Path) -> None:
    example = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    (tmp_path / "agent.py").write_text(example, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "agent.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    expected = re.findall(r"print\(.*# (.+)", example)
    assert done.stdout.splitlines() == expected
    assert len(example.splitlines()) <= 25


def test_the_table_names_every_promise() -> None:
    promises = [str(each) for each in Property if each not in (Property.DECLARED_MOVE, Property.REFINES)]
    assert re.findall(r"^\| ([A-Z_]+) \|", README, re.MULTILINE) == promises


def test_links_lead_somewhere() -> None:
    for target, anchor in re.findall(r"\]\(([\w.]+\.md)(?:#([\w-]+))?\)", README):
        text = (ROOT / target).read_text(encoding="utf-8")
        headings = {
            re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in text.splitlines()
        }
        assert not anchor or anchor in headings, (target, anchor)
