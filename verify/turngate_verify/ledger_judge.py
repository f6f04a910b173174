"""Judges what a ledger holds at the end: by its history, its completions and its messages.

It demands that every accept which was acknowledged to a caller has exactly one RunComplete, that nothing is
in flight, that the history, in the order of the commits, keeps every promise, and that the messages agree
with the outcomes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from turngate import RunComplete
from turngate.durable import Ledger
from turngate_model.properties import AnyProperty, DurableProperty, Property
from turngate_verify.trace import check
from turngate_verify.trace_lines import BadRecording

_PAGE = 1000
_FIRST = (-1, -1)


def property_named(problem: str) -> AnyProperty | None:
    """Return the property that a problem begins with, or None."""
    name = problem.partition(":")[0]
    return next((each for each in (*Property, *DurableProperty) if each == name), None)


async def completions(ledger: Ledger) -> list[RunComplete]:
    """Return every completion that the ledger keeps, in order."""
    found: list[RunComplete] = []
    after = _FIRST
    while page := (await ledger.completions_after(after, _PAGE))[2]:
        found += [each.complete for each in page]
        after = page[-1].position, page[-1].ordinal
    return found


async def history(ledger: Ledger) -> list[str]:
    """Return every decision that the ledger keeps, in order, as lines of a recorded history."""
    lines: list[str] = []
    after = _FIRST
    while told := (await ledger.history_after(after, _PAGE))[2]:
        lines += [json.dumps(entry) for step in told for entry in step.entries]
        after = told[-1].position, told[-1].ordinal
    return lines


async def problems(ledger: Ledger, acknowledged: Iterable[str], *, over: bool = True) -> list[str]:
    """Return the problems, most of them after the property that they break.

    `over` says that nothing should be in flight any more.
    """
    found: list[str] = []
    if over:
        found += [f"ADOPTED: session {each.session_id!r} is in flight" for each in await ledger.view(None)]
    complete = await completions(ledger)
    counted = Counter(each.run_id for each in complete)
    found += [
        f"EXACTLY_ONE_COMPLETE: run {run_id} has {number} completions"
        for run_id, number in counted.items()
        if number > 1
    ]
    if over:
        found += [
            f"DURABLE: run {run_id} has no completion" for run_id in acknowledged if run_id not in counted
        ]
    found += await _by_history(ledger, counted, over=over)
    for each in complete:
        found += await _by_messages(ledger, each)
    return found


async def _by_history(ledger: Ledger, counted: Counter[str], *, over: bool) -> list[str]:
    lines = await history(ledger)
    if over:
        lines.append('{"event": "end"}')
    try:
        checked = check(lines)
    except BadRecording as bad:
        return [f"the history cannot be read: {bad}"]
    if checked.offence is not None:
        broken = checked.offence
        return [f"{broken.property}: line {broken.line} of the history: {broken.what}"]
    told = Counter(entry["run"] for entry in map(json.loads, lines) if entry["event"] == "complete")
    different = "EXACTLY_ONE_COMPLETE: the history and the completions tell of different runs"
    return [] if told == counted else [different]


async def _by_messages(ledger: Ledger, complete: RunComplete) -> list[str]:
    """Expect a user message for each run that had a turn, one answer per turn, and no other message."""
    messages = await ledger.messages_of(complete.run_id)
    mine = [each.role for each in messages if each.run_id == complete.run_id]
    if complete.message_id is None:
        return [f"ON_RECORD: run {complete.run_id} never had a turn and left {mine}"] if mine else []
    if mine != (["user"] if complete.folded_into else ["user", "assistant"]):
        return [f"ON_RECORD: run {complete.run_id} left {mine}"]
    reply = messages[-1]
    reason = "canceled" if complete.cancelled else "error" if complete.error else "end_turn"
    agrees = (reply.id, reply.text, reply.finish_reason) == (complete.message_id, complete.text, reason)
    return [] if agrees else [f"ON_RECORD: run {complete.run_id} is {complete}, and its answer {reply}"]
