"""What led to a violation in a recording: the right session, from the right beginning, up to the line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from turngate_model.history import Cancel, Complete, Enter
from turngate_model.lifecycle import DeclaredState
from turngate_verify.cli import run
from turngate_verify.trace_history import history_before, latest


def accept(name: str, session: str = "s") -> dict[str, Any]:
    return {"event": "accept", "session": session, "run": name}


def enter(name: str, state: str = "active") -> dict[str, Any]:
    return {"event": "enter", "run": name, "state": state}


def complete(name: str, cancelled: bool = False) -> dict[str, Any]:
    return {"event": "complete", "run": name, "cancelled": cancelled}


def words(records: list[dict[str, Any]], last: int | None = None) -> list[str]:
    lines = [json.dumps(each) + "\n" for each in records]
    return [each.words for each in history_before(lines, last or len(lines))]


DONE = [accept("a"), enter("a"), complete("a")]


def test_other_sessions_are_left_out() -> None:
    records = [accept("a"), accept("x", "t"), enter("x"), {"event": "cancel", "session": "t"}, enter("a")]
    assert words(records) == ["accept a", "enter a"]
    assert words(records, 4) == ["accept x", "enter x", "cancel"]


def test_it_begins_where_the_session_was_last_quiet() -> None:
    assert words([*DONE, accept("b"), accept("c"), enter("c")]) == ["accept b", "accept c", "enter c"]


def test_it_begins_earlier_if_the_line_is_about_an_earlier_run() -> None:
    records = [*DONE, *[accept("b"), complete("b")], accept("c"), complete("a")]
    assert words(records)[0] == "accept a"
    assert words(records)[-2:] == ["accept c", "RunComplete of a"]


def test_at_the_end_it_is_about_the_session_that_owes() -> None:
    records = [*DONE, accept("x", "t"), accept("b", "u"), {"event": "end"}]
    assert words(records) == ["accept x", "the end of the recording"]


def test_lines_keep_their_numbers_and_become_events() -> None:
    lines = [
        b"\xef\xbb\xbf" + json.dumps(accept("a\x1b")).encode(),
        b"\n",
        json.dumps(enter("a\x1b", "queued")).encode(),
        json.dumps({"event": "cancel", "session": "s", "runs": ["a\x1b"]}).encode(),
        json.dumps({**complete("a\x1b", True), "error": "\x07"}).encode(),
    ]
    history = history_before(lines, 5)
    assert [each.line for each in history] == [1, 3, 4, 5]
    assert [each.actor for each in history] == ["caller", "caller", "caller", "session"]
    assert [each.events[0] for each in history[1:]] == [
        Enter("a\\x1b", DeclaredState.QUEUED),
        Cancel(frozenset({"a\\x1b"})),
        Complete("a\\x1b", True, "\\x07"),
    ]


def test_operations_on_waiting_runs_are_shown() -> None:
    records: list[dict[str, Any]] = [
        accept("a"),
        {"event": "accept", "session": "s", "run": "b", "into": "a"},
        {"event": "hold", "session": "s"},
        {"event": "resume", "runs": ["a", "b"]},
        {"event": "move", "run": "b", "before": "a"},
        {"event": "move", "run": "b", "before": None},
        {"event": "edit", "run": "b"},
        {"event": "clear", "session": "s", "runs": ["b"]},
    ]
    assert words(records) == [
        "accept a",
        "accept b into a",
        "hold the session",
        "resume a b",
        "move b before a",
        "move b behind all",
        "edit b",
        "clear the queue",
    ]


def test_of_a_long_history_the_last_is_kept_and_what_it_is_about() -> None:
    busy = [accept("a"), enter("a"), accept("b"), {"event": "cancel", "session": "s"}, enter("b", "queued")]
    for nth in range(40):
        busy += [accept(f"r{nth}"), complete(f"r{nth}")]
    lines = [json.dumps(each) for each in [*busy, complete("a"), {"event": "handoff", "run": "b"}]]
    kept = latest(history_before(lines, len(lines)), 4)
    told = ["accept a", "enter a", "accept b", "cancel", "enter b", "accept r39", "RunComplete of r39"]
    assert [each.words for each in kept] == [*told, "RunComplete of a", "handoff b"]
    assert latest(kept, 20) == kept


def test_a_long_recording_has_a_page(tmp_path: Path) -> None:
    records = [accept("first"), enter("first"), accept("second"), enter("second", "queued")]
    for nth in range(50):
        records += [accept(f"r{nth}"), complete(f"r{nth}")]
    records += [accept("third"), enter("third", "queued"), complete("first")]
    records.append({"event": "handoff", "run": "third"})
    path = tmp_path / "long.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    assert run(["trace", str(path), "--report", str(tmp_path)]) == 1
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "FIFO: third becomes active ahead of second" in page
    assert "Instead: second is active; third is queued." in page
    assert "about complete runs: not shown" in page


def test_the_rest_is_shown_too() -> None:
    records = [
        accept("a"),
        enter("a"),
        accept("b"),
        enter("b", "queued"),
        {"event": "fold", "run": "b", "into": "a"},
        {"event": "handoff", "run": "b"},
        {"event": "clear", "session": "s"},
    ]
    assert words(records)[-3:] == ["fold b into a", "handoff b", "clear the queue"]
