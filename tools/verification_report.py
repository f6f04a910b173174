"""Writes the result of `turngate verify` into the verification report: date, commit, machine, figures.

python tools/verification_report.py                  run it, which takes minutes
python tools/verification_report.py --from FILE      take what `turngate verify --json` has printed
python tools/verification_report.py --chaos FILE...  write what `make chaos JSON=FILE` has counted
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
CHAOS_BEGIN, CHAOS_END = "<!-- begin chaos runs -->\n", "<!-- end chaos runs -->"
ENGINES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
CHAOS = {
    "processes stopped for a while": ("stop",),
    "callers and onlookers killed or stopped": ("kill a client", "stop a client"),
    "transactions held by strangers": ("hold a transaction",),
    "connections terminated": ("connections terminated",),
    "restarts of the server": ("restart the server",),
    "times that the disk was full": ("fill the disk", "times that the disk was full"),
    "restores": ("restore",),
    "purges": ("purges",),
    "calls answered": ("calls answered",),
    "calls of unknown outcome": ("calls unknown",),
    "turns": ("turns",),
    "runs": ("runs",),
    "RunCompletes received by onlookers": ("onlookers: RunCompletes heard",),
    "reconnections of onlookers with a cursor": ("onlookers: reconnections with a cursor",),
    "onlookers told to begin again": ("onlookers: begun again after a purge or a restore",),
}
"""The rows about chaos, and the counts that each adds up."""


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


def figures_of_chaos(runs: list[dict[str, Any]]) -> str:
    """Return the figures of chaos on each engine as Markdown."""
    lines = [
        f"{ENGINES[run['ledger']]}: {run['when']}, commit `{run['commit']}`, {run['machine']}, "
        f"{run['seconds']:,.0f} seconds: **{'bad' if run['wrong'] else 'good'}**."
        for run in runs
    ]
    lines = [
        *"\n\n".join(lines).split("\n"),
        "",
        f"| | {' | '.join(ENGINES[run['ledger']] for run in runs)} |",
    ]
    lines.append("| --- |" + " --- |" * len(runs))
    killed = [f"{run['done']['kill']}; {run['done']['kill all']} times" for run in runs]
    lines.append(f"| processes killed one by one; all at once | {' | '.join(killed)} |")
    for row, counts in CHAOS.items():
        numbers = [sum(run["done"].get(each, 0) for each in counts) for run in runs]
        lines.append(f"| {row} | {' | '.join(f'{number:,}' if number else '' for number in numbers)} |")
    calls = [
        {name: number for name, number in run["done"].items() if name.startswith("calls: ")} for run in runs
    ]
    for name in sorted({name for each in calls for name in each}):
        lines.append(f"| calls of `{name[7:]}` | {' | '.join(f'{each.get(name, 0):,}' for each in calls)} |")
    lines.append(f"| problems | {' | '.join(str(len(run['wrong'])) for run in runs)} |")
    return "\n".join(lines) + "\n"


def here() -> dict[str, str]:
    """Return the date, the commit and the machine."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    system = f"{platform.system()} {platform.machine()}"
    return {
        "when": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit,
        "machine": f"Python {platform.python_version()} on {system}, {os.cpu_count()} cores",
    }


def write(begin: str, part: str, end: str) -> None:
    """Put a part between its marks on the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    PAGE.write_text(before + begin + part + end + rest.partition(end)[2], encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--from", dest="file", type=Path)
    parser.add_argument("--chaos", nargs="+", type=Path)
    options = parser.parse_args()
    if options.chaos:
        runs = [json.loads(each.read_text(encoding="utf-8")) for each in options.chaos]
        write(CHAOS_BEGIN, figures_of_chaos(runs), CHAOS_END)
        return 0
    file = options.file
    if file is None:
        command = [sys.executable, "-m", "turngate", "verify", "--json"]
        text = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout
    else:
        text = file.read_text(encoding="utf-8")
    write(BEGIN, figures(json.loads(text), **here()), END)
    return 0


if __name__ == "__main__":
    sys.exit(main())
