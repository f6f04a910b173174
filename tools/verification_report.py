"""Writes the result of `turngate verify` into the verification report: date, commit, machine, figures.

python tools/verification_report.py                  run it, which takes minutes
python tools/verification_report.py --from FILE      take what `turngate verify --json` has printed
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "verification.md"
BEGIN, END = "<!-- begin verify run -->\n", "<!-- end verify run -->"


def figures(result: dict[str, Any], when: str, commit: str, machine: str) -> str:
    """Return the figures of a run as Markdown."""
    lines = [
        f"{when}, commit `{commit}`, {machine}, {result['seconds']:,.0f} seconds: **{result['verdict']}**.",
        "",
        "| properties | verdict | checks |",
        "| --- | --- | --- |",
    ]
    rows: dict[tuple[str, str], list[str]] = {}
    for name, each in result["properties"].items():
        rows.setdefault((each["verdict"], _checks(each["checks"])), []).append(name)
    for name, verdict in result["model"].items():
        rows.setdefault((verdict, "model"), []).append(name)
    lines += [f"| {', '.join(names)} | {verdict} | {checks} |" for (verdict, checks), names in rows.items()]
    designs = result["designs"].values()
    refuted, found = (sum(bool(each[what]) for each in designs) for what in ("refuted", "real"))
    lines += [
        "",
        f"Known-bad designs refuted in the model: {refuted} of {len(designs)}; found in the code: {found}.",
    ]
    lines += [f"Not checked in this run: {each.partition(':')[0]}." for each in result["unchecked"]]
    return "\n".join(lines) + "\n"


def _checks(checks: dict[str, dict[str, int]]) -> str:
    return ", ".join(
        f"{name}: {number:,} {unit.removesuffix('s') if number == 1 else unit}"
        for name, counts in checks.items()
        for unit, number in counts.items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="file", type=Path)
    file = parser.parse_args().file
    if file is None:
        command = [sys.executable, "-m", "turngate", "verify", "--json"]
        text = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout
    else:
        text = file.read_text(encoding="utf-8")
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    system = f"{platform.system()} {platform.machine()}"
    machine = f"Python {platform.python_version()} on {system}, {os.cpu_count()} cores"
    when = datetime.datetime.now(datetime.UTC).date().isoformat()
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    part = figures(json.loads(text), when, commit, machine)
    PAGE.write_text(before + BEGIN + part + END + rest.partition(END)[2], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
