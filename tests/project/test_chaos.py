"""The judgement of `make chaos` finds what is wrong, on a ledger and onlookers that are made up."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chaos_judge import (
    Call,
    Line,
    Order,
    Parts,
    Window,
    judge_counts,
    judge_life,
    judge_onlooker,
    overlaps,
    parts_of,
)
from chaos_ledger import Completed, Life
from chaos_sabotage import SABOTAGES
from surroundings import ROOT
from turngate import Message, RunComplete
from turngate.durable._ledger import HistoryStep


def complete(run: str, session: str = "s") -> RunComplete:
    return RunComplete(session, run, int(run[1:]), "text", None, False, f"m{run}", None, "finished")


def life(*runs: str, purged: tuple[str, ...] = (), edits: tuple[str, ...] = ()) -> Life:
    """Return a ledger that had these runs, one after the other, at position 10, 20 and so on."""
    made = Life()
    for number, run in enumerate(runs, 1):
        told = complete(run)
        made.completed.append(Completed((number * 10, 0), told, 50.0 if run in purged else None))
        given = {"session": "s", "run": run}
        entries: list[Line] = [
            {"event": "accept", **given},
            *[{"event": "enter", **given, "state": "active"}],
            {"event": "complete", **given, "cancelled": False},
        ]
        made.steps += [
            HistoryStep(number * 10 - 2 + nth, 0, "s", [each], 100.0 + number)
            for nth, each in enumerate(entries)
        ]
        made.messages[f"m{run}"] = [
            Message(f"p{run}", "s", run, "user", f"about {run}", None, None),
            Message(f"m{run}", "s", run, "assistant", "text", "end_turn", None),
        ]
    return made


def cursor(position: int) -> str:
    return f"log:1:epoch.{position}.0"


def snapshot(*in_flight: str, reset: bool = False, at: int = 0, wall: float = 100.0) -> Line:
    return {
        "kind": "snapshot",
        "reset": reset,
        "in_flight": {"s": [*in_flight]},
        "cursor": cursor(at),
        "wall": wall,
    }


def heard(run: str, **more: Any) -> Line:
    told = complete(run)._replace(**more)
    return {"kind": "complete", "complete": list(told), "cursor": cursor(int(run[1:]) * 10), "wall": 100.0}


def event(run: str) -> Line:
    return {"kind": "event", "run": run, "what": "enter", "cursor": cursor(int(run[1:]) * 10), "wall": 100.0}


ANEW: Line = {"kind": "anew"}
GAP: Line = {"kind": "gap", "cursor": None}
LIFE: Line = {"kind": "life"}
DONE: Line = {"kind": "done"}


def back_to(lines: int) -> Line:
    return {"kind": "from", "lines": lines}


def judged(*lines: Line, lives: tuple[Life, ...] = (), session: str | None = None) -> list[str]:
    known = lives or (life("r1", "r2", "r3"),)
    return judge_onlooker(lines, session, [Order(each) for each in known]).wrong


ALL = (heard("r1"), heard("r2"), heard("r3"))
RIGHT = {
    "everything": (ANEW, snapshot(), *ALL, DONE),
    "from the middle": (ANEW, snapshot("r2", wall=102.5), *ALL[1:], DONE),
    "over a connection": (ANEW, snapshot(), ALL[0], back_to(3), *ALL[1:], DONE),
    "from further back": (ANEW, snapshot(), *ALL[:2], back_to(3), *ALL[1:], DONE),
    "over a gap": (ANEW, snapshot(), ALL[0], GAP, ALL[1], snapshot("r3"), ALL[2], DONE),
    "of one session": (ANEW, snapshot(), *ALL, DONE),
}


@pytest.mark.parametrize("name", RIGHT)
def test_an_onlooker_that_hears_each_run_once_is_right(name: str) -> None:
    assert judged(*RIGHT[name], session="s" if name == "of one session" else None) == []


WRONG = {
    "are missing": (ANEW, snapshot(), ALL[0], ALL[2], DONE),
    "comes twice": (ANEW, snapshot(), ALL[0], *ALL, DONE),
    "the RunCompletes of ['r1'] are missing": (ANEW, snapshot("r1"), *ALL[1:], DONE),
    "the RunCompletes of ['r1', 'r2'] are missing": (ANEW, snapshot(wall=100.0), ALL[2], DONE),
    "and the ledger has": (ANEW, snapshot(), heard("r1", text="other"), *ALL[1:], DONE),
    "LAST_WORD": (ANEW, snapshot(), *ALL, event("r2"), DONE),
    "in flight again": (ANEW, snapshot(), ALL[0], GAP, snapshot("r1"), *ALL[1:], DONE),
    "before a snapshot": (ANEW, *ALL, DONE),
    "never came to the end": (ANEW, snapshot(), *ALL),
    "no purge has passed it": (ANEW, snapshot(), ALL[0], GAP, snapshot(reset=True), *ALL[1:], DONE),
    "there was no cursor": (ANEW, snapshot(reset=True), *ALL, DONE),
}


@pytest.mark.parametrize("found", WRONG)
def test_what_is_wrong_with_an_onlooker_is_found(found: str) -> None:
    assert any(found in each for each in judged(*WRONG[found]))


def test_a_purge_that_has_passed_a_reader_justifies_that_it_begins_again() -> None:
    purged = life("r1", "r2", "r3", purged=("r1", "r2"))
    lines = (ANEW, snapshot(), ALL[0], back_to(3), snapshot(reset=True, wall=103.0), ALL[2], DONE)
    assert judged(*lines, lives=(purged,)) == []
    up_to_date = (ANEW, snapshot(), *ALL[:2], back_to(4), snapshot(reset=True, wall=103.0), ALL[2], DONE)
    assert any("no purge has passed it" in each for each in judged(*up_to_date, lives=(purged,)))


def test_after_a_restore_a_reader_of_the_lost_life_begins_again_and_another_goes_on() -> None:
    first, second = life("r1", "r2"), life("r1", "r3")
    begun_again = snapshot(reset=True, wall=101.5)
    lost = (ANEW, snapshot(), *ALL[:2], LIFE, back_to(4))
    assert judged(*lost, GAP, begun_again, ALL[2], DONE, lives=(first, second)) == []
    assert any("the ledger has None" in each for each in judged(*lost, ALL[2], DONE, lives=(first, second)))
    kept = (ANEW, snapshot(), ALL[0], LIFE, back_to(3), ALL[2], DONE)
    assert judged(*kept, lives=(first, second)) == []
    # Back to a place of the lost life, later.
    later = (*lost, GAP, begun_again, back_to(4), GAP, begun_again, ALL[2], DONE)
    assert judged(*later, lives=(first, second)) == []


def call(op: str, began: float, ended: float, result: str = "answered", **more: Any) -> Call:
    return Call(
        op, {"op": op, **more}, began, ended, result, {"runs": ["r1"], "held": [], **more.pop("answer", {})}
    )


def test_a_call_is_part_of_a_life_for_certain_only_if_it_was_answered_in_it_or_before_its_backup() -> None:
    early, late, lost = call("hold", 1, 2), call("hold", 6, 7), call("hold", 1, float("inf"), "unknown")
    second, refused = call("hold", 11, 12), call("hold", 1, 2, "refused")
    windows = [Window(0, 10, 4, 5), Window(10, 20, 13, 14), Window(20)]
    parts = parts_of([early, late, lost, second, refused], windows)
    assert [part.certain for part in parts] == [[early, late], [early, second], [early, second]]
    assert [part.possible for part in parts] == [[lost], [lost], [lost]]


def history(*events: str) -> list[Line]:
    return [{"event": each, "session": "s", "run": "r1"} for each in events]


@pytest.mark.parametrize(
    ("op", "events"),
    [("hold", ["hold"]), ("resume", ["resume"]), ("edit", ["edit"]), ("clear_queue", ["clear"])],
)
def test_an_acknowledged_operation_is_in_the_history_once(op: str, events: list[str]) -> None:
    done = [call(op, 1, 2, about="r1" if op == "edit" else "s")]
    assert judge_counts(history(*events), Parts(done, [])) == []
    assert judge_counts(history(), Parts(done, []))
    assert judge_counts(history(*events, *events), Parts(done, []))
    assert judge_counts(history(*events, *events), Parts(done, done)) == []
    assert judge_counts(history(), Parts([], done)) == []


def sent(run: str) -> Call:
    return call("submit", 0, 1, run=run, session="s", prompt=f"about {run}", about=run)


def problems_of(made: Life, *certain: Call, possible: tuple[Call, ...] = ()) -> list[str]:
    return asyncio.run(judge_life(made, Parts([*certain], [*possible]), is_last=True))


def test_a_life_without_faults_is_right() -> None:
    assert problems_of(life("r1", "r2"), sent("r1"), sent("r2")) == []


def lose_a_run(made: Life) -> None:
    del made.completed[0], made.steps[:3]


def complete_twice(made: Life) -> None:
    made.completed.append(made.completed[0]._replace(place=(99, 0)))


def answer_otherwise(made: Life) -> None:
    made.messages["mr1"][1] = made.messages["mr1"][1]._replace(text="other")


def lose_an_edit(made: Life) -> None:
    made.messages["mr1"][0] = made.messages["mr1"][0]._replace(text="something else")


def leave_in_flight(made: Life) -> None:
    made.in_flight["r9"] = "s"


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lose_a_run, "DURABLE"),
        (complete_twice, "EXACTLY_ONE_COMPLETE"),
        (answer_otherwise, "ON_RECORD"),
        (lose_an_edit, "AS_EDITED"),
        (leave_in_flight, "ADOPTED"),
    ],
)
def test_what_is_wrong_with_a_life_is_found(spoil: Callable[[Life], None], found: str) -> None:
    made = life("r1", "r2")
    spoil(made)
    assert any(each.startswith(found) for each in problems_of(made, sent("r1"), sent("r2")))


def test_answers_that_the_ledger_does_not_confirm_are_found() -> None:
    told = call("wait", 2, 3, run="r1", about="r1")
    told.answer["complete"] = list(complete("r1")._replace(outcome="failed"))
    assert any("a caller was told" in each for each in problems_of(life("r1"), sent("r1"), told))
    covered = call("cancel", 2, 3, about="s")
    assert any(
        "FULL_COVERAGE" in each for each in problems_of(life("r1"), sent("r1"), covered, possible=(covered,))
    )


def test_the_last_acknowledged_edit_counts_and_an_unknown_one_may() -> None:
    made = life("r1")
    edit = call("edit", 2, 3, about="r1", prompt="about r1")
    later = call("edit", 4, 5, about="r1", prompt="later")
    unknown = call("edit", 4, float("inf"), "unknown", about="r1", prompt="later")
    made.steps.insert(1, HistoryStep(9, 0, "s", [{"event": "edit", "session": "s", "run": "r1"}], 100.0))
    assert problems_of(made, sent("r1"), edit) == []
    assert problems_of(made, sent("r1"), edit, possible=(unknown,)) == []
    assert any("AS_EDITED" in each for each in problems_of(made, sent("r1"), edit, later))


def test_turns_that_overlap_are_found_unless_their_process_was_stopped() -> None:
    def turn(pid: int, start: int, stop: int) -> list[Line]:
        about = {"pid": pid, "session": "s", "fence": pid}
        return [{"event": "start", "at": start, **about}, {"event": "stop", "at": stop, **about}]

    log = [*turn(1, 0, 10), *turn(2, 5, 15)]
    assert overlaps(log, {}, frozenset())[1]
    assert overlaps(log, {}, frozenset({1})) == (2, [])
    assert overlaps([*log[:1], *turn(2, 5, 15)], {1: 4}, frozenset()) == (2, [])


@pytest.mark.deep
@pytest.mark.parametrize("name", SABOTAGES)
def test_what_is_wrong_on_purpose_is_found_in_real_processes(name: str, tmp_path: Path) -> None:
    told: list[str] = []
    for seed in range(1, 4):  # what happens by chance may not happen at once
        command = [sys.executable, str(ROOT / "tools" / "chaos.py"), "--seconds", "15", "--ledger", "sqlite"]
        command += ["--seed", str(seed), "--sabotage", name, "--json", str(tmp_path / "figures.json")]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        told = json.loads((tmp_path / "figures.json").read_text())["wrong"]
        assert done.returncode == bool(told)
        if any(words in each for each in told for words in SABOTAGES[name].found):
            return
    pytest.fail(f"{name} was not found: {told[:5]}")
