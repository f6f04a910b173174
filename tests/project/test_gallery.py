"""The gallery: its adapters are short, and its page is about their pinned versions and says what was seen."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gallery_agents import AGENTS, agents, read_agent_results, whole_page
from gallery_page import history_section, kept, page
from gallery_peers import FOLDER, HISTORY_OF, Peer, peers, pinned, read_history, read_results
from surroundings import ROOT
from turngate_model import Property
from turngate_verify.conform import JUDGED

GALLERY = (ROOT / "GALLERY.md").read_text(encoding="utf-8")
NO_ADAPTERS = {"servers.py", "langgraph_recorded.py"}
LONGEST = 60
"""The longest adapter, in lines that are not blank."""


def test_every_adapter_is_of_a_peer_and_has_at_most_sixty_lines() -> None:
    files = {path.name: path for path in (ROOT / FOLDER).iterdir() if path.suffix in (".py", ".mjs")}
    assert files.keys() - NO_ADAPTERS == {Path(peer.adapter).name for peer in peers()}
    for name, path in files.items():
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        assert len(lines) <= LONGEST, name


def test_every_version_is_pinned() -> None:
    for package, version in pinned().items():
        assert version[0].isdigit(), package


def test_the_page_is_what_is_made_of_the_results() -> None:
    assert whole_page() == GALLERY, "run: python tools/gallery_agents.py --page"


def test_every_agent_was_checked_in_the_version_that_is_pinned() -> None:
    checked = {key: result["version"] for key, result in read_agent_results().items()}
    assert checked == {agent.key: agent.version for agent in agents()}, "run: make agentgallery"
    for agent in agents():
        assert set(agent.remarks) <= set(JUDGED)
        assert any(each.is_file() for each in (ROOT / AGENTS / agent.home).rglob("*.json"))


def test_every_peer_was_checked_in_the_version_that_is_pinned() -> None:
    checked = {key: result["version"] for key, result in read_results().items()}
    assert checked == {peer.key: peer.version for peer in peers()}, "run: make gallery"


@pytest.mark.parametrize("peer", peers(), ids=lambda peer: peer.key)
def test_the_page_is_about_the_version_that_is_pinned(peer: Peer) -> None:
    _, section = GALLERY.split(f"\n## {peer.name}\n")
    section = section.split("\n## ")[0]
    assert f" {peer.version}. {peer.driven}" in section
    for address in peer.documentation.values():
        assert address in section
    assert "Open: " in section or "Left out: " in section


def test_the_history_is_of_the_version_that_is_pinned_and_what_was_swallowed_was_found() -> None:
    told = read_history()
    assert told["version"] == pinned()[HISTORY_OF], "run: make galleryhistory"
    assert told["swallowed"]["verdict"] == "violated", "the judge can find nothing there"


def test_the_section_about_a_history_says_what_was_found_and_what_cannot_be_seen() -> None:
    none: dict[str, Any] = {"events": 9, "runs": 1, "sessions": 2, "cancels": 1, "cancelled": 0}
    none |= {"verdict": "holds", "undecided": 0, "breaches": {}, "cannot_show": 0}
    worse = none | {"verdict": "violated", "breaches": {"FIFO": 2}}
    worse |= {"undecided": 1, "cannot_show": 1}
    told = history_section({"version": "1.2", "recorded": none, "swallowed": worse})
    assert "1 run in 2 sessions, 1 cancel, 0 runs cancelled, 9 events: **holds**.\n" in told
    assert (
        "**violated**. FIFO in 2 sessions. 1 session had too many orders to be judged. In 1 session a" in told
    )


def test_what_a_peer_is_said_of_exists() -> None:
    for peer in peers():
        assert {*peer.remarks, *peer.not_judged} <= set(JUDGED)


def test_the_page_names_no_place_of_the_machine_that_made_it() -> None:
    assert re.findall(r"(?<![\w.])/[a-z]+/[^ )]*", GALLERY) == []


def result(**verdicts: str) -> dict[str, Any]:
    told = {
        str(each): {"verdict": verdicts.get(each, "holds"), "checks": {}, "why": "not looked for"}
        for each in JUDGED
    }
    for said in told.values():
        said |= {"counterexample": ["accept a: a is active", "cancel"], "expected": "a is owed"}
    return {"properties": told, "depths": {"1": 4, "2": 3}, "problems": [], "left_out": ["fold: none"]}


def a_peer(**changed: Any) -> Peer:
    return peers()[0]._replace(key="it", name="It (all)", version="1.2", **changed)


def written(told: dict[str, Any], **changed: Any) -> str:
    return page([a_peer(**changed)], {"it": kept(told)})


def test_a_finding_is_described_in_words() -> None:
    told = written(result(FIFO="violated"), remarks={"FIFO": "It says so itself."})
    assert "| property | [It (all)](#it-all) 1.2 |" in told
    assert "| FIFO | **violated** |" in told
    assert "| ONE_TURN | holds |" in told
    told_once = f"**FIFO**: {Property.FIFO.sentence}\n\n1. accept a: a is active\n2. cancel\n\nBut a is owed."
    assert f"{told_once} It says so itself.\n" in told
    assert "Every program of up to 4 operations in one session, of up to 3 operations in two; " in told
    assert "* Left out: fold.\n" in told


def test_what_did_not_come_back_is_flaky() -> None:
    told = written(result(FIFO="flaky"))
    assert "| FIFO | flaky |" in told
    assert "**FIFO** (flaky: it did not come back): " in told


def test_what_cannot_be_judged_is_no_finding_and_says_why() -> None:
    told = written(result(LAST_WORD="violated", FIFO="unknown"), not_judged={"LAST_WORD": "of the wire"})
    assert "| LAST_WORD |" not in told
    assert "**LAST_WORD**" not in told
    assert "LAST_WORD (of the wire)" in told
    assert "FIFO (not looked for)" in told


def test_a_peer_that_cannot_be_had_stays_open() -> None:
    told = written({"missing": "there is no Redis"})
    assert "Open: it could not be checked here (there is no Redis).\n" in told
    assert "holds |" not in told


def test_a_check_that_did_not_come_to_its_end_says_so() -> None:
    assert "It did not come to its end: time ran out." in written(result() | {"problems": ["time ran out"]})
