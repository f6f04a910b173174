"""Checks the agents of examples/conformance/peers/acp offline, and writes their section of GALLERY.md.

Usage: python tools/gallery_agents.py [--only NAME ...] [--page]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gallery_page import WHY, WORDS, history_section, page
from gallery_peers import FOLDER, peers, read_history, read_results
from turngate_verify.conform import JUDGED

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "GALLERY.md"
AGENTS = f"{FOLDER}/acp"
RESULTS = ROOT / AGENTS / "results.json"
PATIENCE = 1800
"""Seconds after which a check will never end; the kit itself gives up much earlier."""

INTRODUCTION = f"""\
## Agents of the Agent Client Protocol

Coding agents that speak version 1 of the [Agent Client Protocol](https://agentclientprotocol.com) are checked
without an adapter: `turngate conform --acp` is their client and, as a stub on loopback, their model. None of
them was changed, none had a key or reached a network, and their only settings are in
[{AGENTS}/]({AGENTS}/). The protocol asks that a prompt which is cancelled be
answered `cancelled`; the other properties are ours. What is found comes back when it is replayed, three times
at least. `make agentgallery` installs these versions in a temporary folder, checks them, and writes this
section.
"""


class Agent(NamedTuple):
    """One agent in one version."""

    key: str
    name: str
    package: str
    version: str
    command: tuple[str, ...]
    home: str
    remarks: dict[str, str]
    """What its tracker says about a finding, by property."""
    beside: tuple[str, ...]
    """Packages that are installed beside it."""


def told() -> dict[str, Any]:
    return tomllib.loads((ROOT / AGENTS / "agents.toml").read_text(encoding="utf-8"))


def agents() -> list[Agent]:
    """Return the agents in the order of the page."""
    return [
        Agent(
            each["key"],
            each["name"],
            each["package"],
            each["version"],
            tuple(each["command"]),
            each["home"],
            each.get("remarks", {}),
            tuple(each.get("with", ())),
        )
        for each in told()["agent"]
    ]


def read_agent_results() -> dict[str, dict[str, Any]]:
    """Return what the kit said of each agent when it was checked last."""
    results: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return results


def checked(agent: Agent) -> dict[str, Any]:
    """Install an agent in a temporary folder, and have the kit check it; or say why it could not."""
    with tempfile.TemporaryDirectory(prefix="turngate-gallery-") as folder:
        packages = [f"{agent.package}@{agent.version}", *agent.beside]
        quiet = ["--silent", "--no-audit", "--no-fund", "--no-package-lock"]
        installing = subprocess.run(
            ["npm", "install", "--prefix", folder, *quiet, *packages],
            capture_output=True,
            text=True,
            check=False,
        )
        if installing.returncode:
            return {"missing": "npm could not install it"}
        bin_ = Path(folder) / "node_modules" / ".bin"
        environ = os.environ | {"PATH": f"{bin_}{os.pathsep}{os.environ['PATH']}"}
        kit = [sys.executable, "-m", "turngate", "conform", "--acp", "--json", *told()["effort"]]
        home = ["--home", str(ROOT / AGENTS / agent.home)]
        done = subprocess.run(
            [*kit, *home, "--", *agent.command],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    try:
        return kept_of_agent(json.loads(done.stdout))
    except ValueError:
        return {"missing": (done.stderr.strip().splitlines() or ["it said nothing"])[-1]}


def kept_of_agent(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return of what the kit says what the page needs."""
    keys = ("verdict", "why", "counterexample", "expected", "program", "checks")
    properties = {
        each: {key: said[key] for key in keys if key in said} for each, said in result["properties"].items()
    }
    return {key: result[key] for key in ("depths", "problems", "notes")} | {"properties": properties}


def section(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the section about agents."""
    listed = agents()
    lines = [INTRODUCTION]
    lines.append("| property | " + " | ".join(f"{each.package} {each.version}" for each in listed) + " |")
    lines.append("| --- |" + " --- |" * len(listed))
    for judged in JUDGED:
        verdicts = [_verdict(found[each.key], judged) for each in listed]
        if {*verdicts} != {"unknown"}:
            lines.append(f"| {judged} | " + " | ".join(WORDS[verdict] for verdict in verdicts) + " |")
    for each in listed:
        lines += ["", *_about(each, found[each.key])]
    return "\n".join(lines) + "\n"


def _verdict(result: Mapping[str, Any], judged: str) -> str:
    return str(result.get("properties", {}).get(judged, {}).get("verdict", "unknown"))


def _about(agent: Agent, result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about one agent."""
    yield f"### {agent.name}"
    yield ""
    yield f"{agent.package} {agent.version}, as `{' '.join(agent.command)}`."
    if missing := result.get("missing"):
        yield f"Open: it could not be checked here ({missing})."
        return
    yield ""
    scenarios = result["properties"]["EXACTLY_ONE_COMPLETE"]["checks"].get("wire", {}).get("scenarios", 0)
    problems = "".join(f" It did not come to its end: {each}." for each in result["problems"])
    yield f"{scenarios} scenarios on the wire, and programs after them.{problems}"
    for judged in JUDGED:
        said = result["properties"].get(judged, {})
        if said.get("verdict") not in ("violated", "flaky"):
            continue
        once = " (flaky: it did not come back often enough)" if said["verdict"] == "flaky" else ""
        yield ""
        yield f"**{judged}**{once}: {judged.sentence}"
        yield ""
        yield from (f"{number}. {step}" for number, step in enumerate(said["counterexample"], 1))
        yield ""
        remark = agent.remarks.get(judged)
        yield f"But {said['expected']}. To replay it: `{said['program']}`.{f' {remark}' if remark else ''}"
    yield ""
    yield from (f"* Noted: {note}." for note in result["notes"])
    reasons: dict[str, list[str]] = {}
    for judged in JUDGED:
        if _verdict(result, judged) == "unknown":
            why: str = result["properties"].get(judged, {}).get("why", "the kit does not judge it")
            reasons.setdefault(WHY.get(why, why), []).append(judged)
    yield from (f"* Not tested: {', '.join(alike)} ({why})." for why, alike in reasons.items())


def whole_page() -> str:
    """Return the text of GALLERY.md: the peers behind adapters, the recorded one, and the agents."""
    parts = (page(peers(), read_results()), history_section(read_history()), section(read_agent_results()))
    return "\n".join(parts)


def main() -> int:
    """Check the agents and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", metavar="NAME", help="check these, and keep what is known of others"
    )
    parser.add_argument("--page", action="store_true", help="check nothing, and write what is known")
    asked = parser.parse_args()
    results = read_agent_results() if RESULTS.exists() else {}
    for agent in agents():
        if not asked.page and (asked.only is None or agent.key in asked.only):
            print(f"checking {agent.name}", flush=True)
            results[agent.key] = {"version": agent.version} | checked(agent)
            RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    GALLERY.write_text(whole_page(), encoding="utf-8")
    print(f"wrote {GALLERY.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
