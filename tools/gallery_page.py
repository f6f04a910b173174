"""Writes the page of the gallery from what the conformance kit said of each peer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gallery_peers import FOLDER, HISTORY_OF, Peer
from turngate_model import Property
from turngate_verify.conform import JUDGED
from turngate_verify.conform.result import UNTESTED
from turngate_verify.words import counted

WORDS = {"holds": "holds", "violated": "**violated**", "flaky": "flaky", "unknown": ""}
WHY = {UNTESTED: "every program that got that far had already broken something else"}
_SAID_BELOW = (Property.NO_RESIDUE, Property.ON_RECORD)

INTRODUCTION = f"""\
# Gallery

Software that people use to serialise the work of a session, held to the properties of [SPEC.md](SPEC.md),
section 4, by the [conformance kit](docs/guides/adapter.md). None of it promises these properties, and most of
it was made for something else. So a finding says what was done, what was seen and what the property requires;
it does not say that the software is broken. Each peer is used as its own documentation says; read its
adapter in [{FOLDER}/]({FOLDER}/) to check that. The versions are pinned. This page is generated:
`make gallery` checks the peers again and writes it, so that a change is a diff.

**holds**: no program that was played breaks it; that is evidence, not proof. **violated**: the program
below breaks it each time it is played. **flaky**: a program broke it once, but not when it was played
again. An empty cell: not tested, for the reason given below. Races were not tried
where bursts are left out: the kit waited for each operation before it called the next. How deep the kit looks
depends on the speed of the machine, so that number may change when nothing else does.
"""

RECORDED = """\
## Recorded over HTTP

`turngate trace --intervals` judges what callers and runners log themselves
([guide](docs/guides/intervals.md)); `make galleryhistory` records it and writes this section. One process
serves {peer} {version}, in memory, and its graph records when each turn starts and ends. Two other processes
send prompts with the strategy enqueue to the same threads, cancel them, and record each call. There is no
cancel of a thread: to cancel one, the caller asks for its pending runs, then for its running ones, and
cancels these. A proxy delays some requests and answers.
"""

NEVER = """\
## What was not tested

NO_RESIDUE and ON_RECORD: no adapter shows what its peer holds in memory, or what it writes down. Speed,
durability, several machines, failing networks, retries, time limits, and other ways to use these peers were
not tested. Several processes are tested in the next section only. If a peer has no operation for something,
it was left out, and its section lists that.
"""


def kept(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return of what the kit says what the page needs, and nothing that another run would say otherwise."""
    if "missing" in result:
        return {"missing": result["missing"]}
    told = ("verdict", "why", "counterexample", "expected")
    properties = {
        each: {key: said[key] for key in told if key in said} for each, said in result["properties"].items()
    }
    return {key: result[key] for key in ("depths", "problems", "left_out")} | {"properties": properties}


def page(peers: Sequence[Peer], results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of GALLERY.md."""
    parts = [INTRODUCTION, "\n".join(_table(peers, results)) + "\n"]
    parts += ["\n".join(_section(peer, results[peer.key])) + "\n" for peer in peers]
    return "\n".join([*parts, NEVER])


def _table(peers: Sequence[Peer], results: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table: a line for each property that some peer has shown, a column for each peer."""
    heads = [f"[{peer.name}](#{_anchor(peer.name)}) {peer.version}" for peer in peers]
    yield "| property | " + " | ".join(heads) + " |"
    yield "| --- |" + " --- |" * len(peers)
    for each in JUDGED:
        verdicts = [_verdict(peer, results[peer.key], each) for peer in peers]
        if {*verdicts} != {"unknown"}:
            yield f"| {each} | " + " | ".join(WORDS[verdict] for verdict in verdicts) + " |"


def _anchor(heading: str) -> str:
    return re.sub("[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")


def _verdict(peer: Peer, result: Mapping[str, Any], each: Property) -> str:
    """Return the verdict on one property of one peer; unknown if it cannot be judged through its adapter."""
    if each in peer.not_judged or "missing" in result:
        return "unknown"
    return str(result["properties"].get(each, {}).get("verdict", "unknown"))


def _section(peer: Peer, result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines about one peer."""
    yield f"## {peer.name}"
    yield ""
    links = ", ".join(f"[{text}]({address})" for text, address in peer.documentation.items())
    version = f"{peer.package.removesuffix('-9')} {peer.version}"
    yield f"{version}. {peer.driven} Its documentation: {links}; its [adapter]({peer.adapter})."
    yield ""
    if missing := result.get("missing"):
        yield f"Open: it could not be checked here ({missing})."
        return
    yield _depth(result)
    for each in JUDGED:
        if _verdict(peer, result, each) in ("violated", "flaky"):
            yield ""
            yield from _finding(peer, each, result["properties"][each])
    yield ""
    yield from _not_shown(peer, result)


def _depth(result: Mapping[str, Any]) -> str:
    """Say how deep the kit has looked."""
    extents = {"1": "in one session", "2": "in two"}
    depths = [f"{depth} operations {extents[sessions]}" for sessions, depth in result["depths"].items()]
    played = f"Every program of up to {', of up to '.join(depths)}; " if depths else ""
    problems = "".join(f" It did not come to its end: {problem}." for problem in result["problems"])
    return f"{played}some long ones, and random ones.{problems}"


def _finding(peer: Peer, each: Property, said: Mapping[str, Any]) -> Iterator[str]:
    """Yield the shortest counterexample in words."""
    once = " (flaky: it did not come back)" if said["verdict"] == "flaky" else ""
    yield f"**{each}**{once}: {each.sentence}"
    yield ""
    yield from (f"{number}. {step}" for number, step in enumerate(said["counterexample"], 1))
    yield ""
    remark = peer.remarks.get(each)
    yield f"But {said['expected']}.{f' {remark}' if remark else ''}"


def _not_shown(peer: Peer, result: Mapping[str, Any]) -> Iterator[str]:
    """Yield what was not tested, and why."""
    reasons: dict[str, str] = dict(peer.not_judged)
    for each in JUDGED:
        if each not in reasons and _verdict(peer, result, each) == "unknown" and each not in _SAID_BELOW:
            reasons[each] = result["properties"].get(each, {}).get("why", "the kit does not judge it")
    for why in dict.fromkeys(reasons.values()):
        alike = ", ".join(each for each in reasons if reasons[each] == why)
        yield f"* Not tested: {alike} ({WHY.get(why, why)})."
    left_out = [words.split(":")[0] for words in result["left_out"]]
    yield f"* Left out: {', '.join(left_out)}."


def history_section(results: Mapping[str, Any]) -> str:
    """Return the section about recorded histories."""
    plain, swallowed = results["recorded"], results["swallowed"]
    return "\n".join(
        [
            RECORDED.format(peer=HISTORY_OF, version=results["version"]),
            told_of_history(plain),
            "",
            "To see that the judge can find something in such a recording, the proxy then answered every "
            f"request to cancel by itself. {told_of_history(swallowed)}",
            "",
            "If a history holds, some order within the intervals explains it. Another history may still "
            "break something.",
            "",
        ]
    )


def told_of_history(found: Mapping[str, Any]) -> str:
    """Say what was recorded, and what the judge says of it."""
    said = (
        f"{counted(found['runs'], 'run')} in {counted(found['sessions'], 'session')}, "
        f"{counted(found['cancels'], 'cancel')}, {counted(found['cancelled'], 'run')} cancelled, "
        f"{counted(found['events'], 'event')}: **{found['verdict']}**."
    )
    for each, sessions in found["breaches"].items():
        said += f" {each} in {counted(sessions, 'session')}."
    if found["undecided"]:
        said += f" {counted(found['undecided'], 'session')} had too many orders to be judged."
    if found["cannot_show"]:
        said += (
            f" In {counted(found['cannot_show'], 'session')} a cancel overlaps the end of a run, "
            "and whether it was ignored or came too late cannot be seen."
        )
    return said
