"""The judge of histories with intervals: right ones hold, wrong ones are found, shortcuts change nothing."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

import line_histories
from turngate_model import Property
from turngate_verify.intervals import BadHistory, Item, JudgedHistory, judge_files, read, search
from turngate_verify.intervals.judge import decided, plainly, segments
from wide_histories import WRONG, Lines, played, widened

WHOLE = {"event": "end"}


def judged(*files: Iterable[dict[str, Any]], limit: int = 20_000, shrink: bool = True) -> JudgedHistory:
    named = [("", [json.dumps(line) for line in file]) for file in files]
    return judge_files(named, limit=limit, shrink=shrink)


def random_history(seed: int) -> tuple[str, Lines]:
    """Return a history of a few runs, right or wrong in a way that is named."""
    chance = random.Random(seed)
    cancels, folds = chance.choice((0.0, 0.1, 0.3)), chance.choice((0.0, 0.2, 0.5))
    lines = played(chance, chance.randint(1, 6), cancels=cancels, folds=folds)
    kind = chance.choice(["right", *WRONG])
    if kind != "right":
        wrong = WRONG[kind](lines, chance)
        kind, lines = ("right", lines) if wrong is None else (kind, wrong)
    return kind, widened(lines, chance.choice((0.0, 0.5, 1.0, 2.0, 4.0)), chance)


@pytest.mark.parametrize("seeds", [range(2_000), pytest.param(range(2_000, 40_000), marks=pytest.mark.deep)])
def test_every_shortcut_says_what_the_plain_search_says(seeds: range) -> None:
    verdicts = Counter[tuple[str, str]]()
    for seed in seeds:
        kind, lines = random_history(seed)
        history = read([("", [json.dumps(line) for line in (*lines, WHOLE)])])
        for items in history.sessions.values():
            quick = decided(items, frozenset(), whole=True, limit=20_000).verdict
            plain = plainly(items, frozenset(), whole=True, limit=20_000).verdict
            assert {quick, plain} != {"holds", "violated"}, seed
            if kind == "right":
                assert quick == "holds", seed
            # A cut at a quiet moment changes nothing either.
            parts = [decided(part, frozenset(), whole=True, limit=20_000).verdict for part in segments(items)]
            if kind not in ("doubled", "overtaking"):  # these may be about a run of an earlier part
                assert (set(parts) == {"holds"}) == (quick == "holds"), seed
            verdicts[kind, quick] += 1
    for kind in WRONG:
        assert verdicts[kind, "violated"] > 10, verdicts


class _Stack:
    """A state that accepts pushes and pops of a stack of two."""

    def __init__(self, held: tuple[int, ...] = ()) -> None:
        self.held = held

    def copy(self) -> _Stack:
        return _Stack(self.held)

    def key(self) -> tuple[int, ...]:
        return self.held

    def take(self, what: int) -> list[Any]:
        if what > 0 and len(self.held) < 2:
            self.held += (what,)
            return []
        if what < 0 and self.held[-1:] == (-what,):
            self.held = self.held[:-1]
            return []
        return ["no"]


def test_the_search_says_what_trying_every_order_says() -> None:
    chance = random.Random(5)
    verdicts = Counter[str]()
    for _ in range(1_500):
        items = []
        for what in [value for nth in range(1, chance.randint(2, 4)) for value in (nth, -nth)]:
            lo = chance.randint(0, 6)
            items.append(Item(lo, lo + chance.randint(0, 4), what, optional=chance.random() < 0.2))
        items.sort(key=lambda item: item.lo)
        found = search(items, [_Stack()])
        possible = any(_fits(items, order) for order in _orders(items))
        assert (found.verdict == "holds") == possible
        verdicts[found.verdict] += 1
    assert min(verdicts["holds"], verdicts["violated"]) > 100


def _orders(items: list[Item]) -> Iterable[tuple[Item, ...]]:
    optional = [item for item in items if item.optional]
    for count in range(len(optional) + 1):
        for left_out in itertools.combinations(optional, count):
            yield from itertools.permutations(
                [item for item in items if not any(item is each for each in left_out)]
            )


def _fits(items: list[Item], order: tuple[Item, ...]) -> bool:
    state, latest = _Stack(), -1.0
    for item in order:
        latest = max(latest, item.lo)
        if latest > item.hi or state.take(item.what):
            return False
    return True


@pytest.mark.parametrize("width", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_history_is_found_as_long_as_its_intervals_are_narrow(kind: str, width: float) -> None:
    chance, found, tried = random.Random(7), 0, 0
    while tried < 30:
        wrong = WRONG[kind](played(chance, 8), chance)
        if wrong is None:
            continue
        tried += 1
        found += judged([*widened(wrong, width, chance), WHOLE], shrink=False).verdict == "violated"
    least = {0.0: 25, 1.0: 8, 2.0: 2}[width]
    assert found >= least


def test_a_breach_is_shown_in_its_smallest_part_with_every_possible_property() -> None:
    chance = random.Random(3)
    lines = played(chance, 12, cancels=0.0, clears=0.0, folds=0.0)
    first = next(line for line in lines if line["event"] == "complete")
    wrong = [*lines, {**first, "at": first["at"] + 0.5}]
    (breach,) = judged([*widened(wrong, 0.2, chance), WHOLE]).breaches
    assert breach.broken is Property.EXACTLY_ONE_COMPLETE
    assert breach.possible == (Property.EXACTLY_ONE_COMPLETE,)
    assert {item.what.run for item in breach.history} == {first["run"]}
    assert breach.what == f"{first['run']} gets a second RunComplete"


ACCEPT = {"event": "accept", "session": "s", "run": "a", "call": 0, "return": 1}
START = {"event": "start", "run": "a", "at": 2}
ENDED = {"event": "ended", "run": "a", "at": 5}
COMPLETE = {"event": "complete", "run": "a", "cancelled": False, "call": 2, "return": 6}


def test_lines_come_from_several_files_in_any_order() -> None:
    result = judged([COMPLETE, ENDED], [START], [ACCEPT, WHOLE])
    assert (result.verdict, result.events, result.runs, result.whole) == ("holds", 4, 1, True)
    assert judged([ACCEPT, START]).verdict == "holds"  # without an end nothing is owed
    assert judged([ACCEPT, START, ENDED, WHOLE]).verdict == "violated"


def test_what_never_returned_may_never_have_happened() -> None:
    cancel = {"event": "cancel", "session": "s", "call": 3}
    assert judged([ACCEPT, START, cancel, ENDED, COMPLETE, WHOLE]).verdict == "holds"
    cancelled = {**COMPLETE, "cancelled": True}
    assert judged([ACCEPT, START, cancel, ENDED, cancelled, WHOLE]).verdict == "holds"
    assert judged([ACCEPT, START, ENDED, cancelled, WHOLE]).verdict == "violated"
    unknown = {"event": "accept", "session": "s", "run": "b", "call": 3}
    assert judged([ACCEPT, START, unknown, ENDED, COMPLETE, WHOLE]).verdict == "holds"
    returned = {**unknown, "return": 4}
    assert judged([ACCEPT, START, returned, ENDED, COMPLETE, WHOLE]).verdict == "violated"


def test_a_clock_that_is_off_widens_the_times_of_its_file() -> None:
    other = {"event": "accept", "session": "s", "run": "b", "call": 1.5, "return": 1.8}
    rest = [
        {"event": "start", "run": "b", "at": 4.9},
        {"event": "ended", "run": "b", "at": 7},
        {"event": "complete", "run": "b", "cancelled": False, "call": 7, "return": 8},
    ]
    lines = [ACCEPT, START, {**COMPLETE, "call": 5}, other]
    assert judged([*lines, ENDED], [*rest, WHOLE]).verdict == "violated"
    result = judged([*lines, ENDED], [{"clock_error": 0.5}, *rest, WHOLE])
    assert result.verdict == "holds"


def test_two_runners_at_work_are_two_turns_even_if_the_first_run_is_complete() -> None:
    cancel = {"event": "cancel", "session": "s", "call": 2.5, "return": 2.6}
    done = {**COMPLETE, "cancelled": True, "call": 2.7, "return": 2.8}
    other = {"event": "accept", "session": "s", "run": "b", "call": 3, "return": 3.1}
    start = {"event": "start", "run": "b", "at": 4}
    (breach,) = judged([ACCEPT, START, cancel, done, other, start, ENDED]).breaches
    assert breach.broken is Property.ONE_TURN
    assert judged([ACCEPT, START, cancel, done, other, start, {**ENDED, "at": 3.5}]).verdict == "holds"


def test_what_wide_intervals_cannot_show_is_said() -> None:
    cancel = {"event": "cancel", "session": "s", "call": 3, "return": 7}
    result = judged([ACCEPT, START, cancel, ENDED, COMPLETE, WHOLE])
    assert result.verdict == "holds"
    assert "1 cancel overlaps the end of a run" in result.cannot_show[0]
    assert judged([ACCEPT, START, ENDED, COMPLETE, WHOLE]).cannot_show == []


def test_the_limit_leaves_a_history_unknown() -> None:
    chance = random.Random(1)
    lines = [*widened(played(chance, 12, cancels=0.3), 40.0, chance), WHOLE]
    assert judged(lines, limit=5).verdict == "unknown"


BAD = {
    "not JSON": ("{", "line 1: not JSON"),
    "no object": ("[]", "line 1: not a JSON object"),
    "no such event": ('{"event": "jump", "at": 1}', "line 1: unknown event 'jump'"),
    "no time": ('{"event": "accept", "session": "s", "run": "a"}', "line 1: accept needs call: a number"),
    "no run": ('{"event": "start", "at": 1}', "line 1: start needs run"),
    "never accepted": (
        '{"event": "start", "run": "a", "at": 1}',
        "line 1: start of run 'a', which was never",
    ),
    "backwards": ('{"event": "cancel", "session": "s", "call": 2, "return": 1}', "ends before it begins"),
    "a state that is no string": (
        '{"event": "enter", "run": "a", "state": {}, "call": 1}',
        "line 1: enter needs a state",
    ),
    "a number that is too large": (
        f'{{"event": "cancel", "session": "s", "call": {10**400}}}',
        "line 1: call must be a number",
    ),
    "a hold of nothing": ('{"event": "hold", "call": 1}', "line 1: hold needs session"),
    "a hold of an unknown run": ('{"event": "hold", "runs": ["a"], "call": 1}', "hold of run 'a', which was"),
    "a move before an unknown run": (
        '{"event": "accept", "session": "s", "run": "a", "call": 1}\n'
        '{"event": "move", "run": "a", "before": "b", "call": 1}',
        "line 2: move of run 'b', which was never accepted",
    ),
    "not a number": ('{"event": "cancel", "session": "s", "call": "2"}', "call must be a number"),
    "a late clock": (
        '\n{"event": "end"}\n{"clock_error": 1}',
        "line 3: clock_error is not on the first line",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_is_no_event_is_refused_with_its_number(name: str) -> None:
    text, message = BAD[name]
    with pytest.raises(BadHistory) as refused:
        judge_files([("", text.splitlines())])
    assert message in str(refused.value)
    with pytest.raises(BadHistory, match=r"log\.jsonl:"):
        judge_files([("log.jsonl", text.splitlines())])


def test_what_was_accepted_while_a_cancelled_runner_worked_on_cannot_finish_without_a_start() -> None:
    lines: Lines = [
        {"event": "accept", "session": "s", "run": "a", "call": 0, "return": 0.5},
        {"event": "start", "run": "a", "at": 1},
        {"event": "cancel", "session": "s", "call": 2, "return": 3},
        {"event": "complete", "run": "a", "cancelled": True, "call": 2, "return": 4},
        {"event": "accept", "session": "s", "run": "b", "call": 4.5, "return": 5},
        {"event": "ended", "run": "a", "at": 6},
        {"event": "accept", "session": "s", "run": "c", "call": 7, "return": 7.5},
        {"event": "start", "run": "b", "at": 7.6},
        {"event": "ended", "run": "b", "at": 7.7},
        {"event": "complete", "run": "b", "cancelled": False, "call": 5, "return": 8},
        {"event": "start", "run": "c", "at": 8.2},
        {"event": "ended", "run": "c", "at": 9},
        {"event": "complete", "run": "c", "cancelled": False, "call": 8, "return": 10},
        WHOLE,
    ]
    assert judged(lines).verdict == "holds"
    of_b = [line for line in lines if line.get("run") == "b" and line["event"] in ("start", "ended")]
    found = judged([line for line in lines if line not in of_b])
    assert (found.verdict, found.breaches[0].what) == ("violated", "b completes as finished, and never ran")


@pytest.mark.parametrize("seeds", [range(600), pytest.param(range(600, 6_000), marks=pytest.mark.deep)])
def test_what_callers_do_to_the_line_is_judged_like_by_the_plain_search(seeds: range) -> None:
    verdicts, events = Counter[tuple[str, str]](), Counter[str]()
    for seed in seeds:
        chance = random.Random(seed)
        exact = line_histories.recorded(seed)
        events.update(line["event"] for line in exact)
        for kind, spoil in {"right": lambda lines, _: lines, **line_histories.WRONG}.items():
            lines = spoil(exact, chance)
            if lines is None:
                continue
            texts = [json.dumps(line) for line in widened(lines, chance.choice((0.0, 0.5, 1.5)), chance)]
            for items in read([("", [*texts, json.dumps(WHOLE)])]).sessions.values():
                quick = decided(items, frozenset(), whole=True, limit=20_000).verdict
                plain = plainly(items, frozenset(), whole=True, limit=20_000).verdict
                assert {quick, plain} != {"holds", "violated"}, (seed, kind)
                assert (kind, quick) != ("right", "violated"), seed
                verdicts[kind, quick] += 1
    assert min(events[each] for each in ("hold", "resume", "move", "edit")) > 50, events
    for kind in ("right", *line_histories.WRONG):
        assert verdicts[kind, "holds" if kind == "right" else "violated"] > 10, verdicts


def test_a_held_run_must_not_start_and_a_prompt_for_one_turn_is_cleared_with_it() -> None:
    def at(nth: float, event: str, **more: Any) -> dict[str, Any]:
        return {"event": event, **more, "call": nth, "return": nth + 0.5}

    begin = [at(0, "accept", session="s", run="a"), {"event": "start", "run": "a", "at": 0.6}]
    waits = at(1, "accept", session="s", run="b")
    done = [at(3, "complete", run="a", cancelled=False), {"event": "start", "run": "b", "at": 4}]
    for hold in (at(2, "hold", session="s"), at(2, "hold", runs=["b"])):
        (breach,) = judged([*begin, waits, hold, *done, WHOLE]).breaches
        assert Property.HELD in (breach.broken, *breach.possible)
        resume = {**hold, "event": "resume", "call": 2.6, "return": 3.5}
        last = at(5, "complete", run="b", cancelled=False)
        assert judged([*begin, waits, hold, resume, *done, last, WHOLE]).verdict == "holds"
    never = {key: value for key, value in at(2, "hold", session="s").items() if key != "return"}
    assert judged([*begin, waits, never, *done]).verdict == "holds"
    bound = at(1, "accept", session="s", run="b", into="a")
    cleared = at(3, "complete", run="b", cancelled=False, error="cleared")
    assert judged([*begin, bound, done[0], cleared, WHOLE]).verdict == "holds"
    assert judged([*begin, bound, *done]).verdict == "violated"


@pytest.mark.parametrize(
    ("late", "broken"),
    [({"event": "edit"}, Property.AS_EDITED), ({"event": "move", "before": None}, Property.DECLARED_MOVE)],
)
def test_what_changes_a_complete_run_should_have_been_refused(late: dict[str, Any], broken: Property) -> None:
    (breach,) = judged(
        [
            {"event": "accept", "session": "s", "run": "a", "call": 1, "return": 2},
            {"event": "start", "run": "a", "at": 3},
            {"event": "ended", "run": "a", "at": 4},
            {"event": "complete", "run": "a", "cancelled": False, "call": 4, "return": 5},
            {**late, "run": "a", "call": 6, "return": 7},
            WHOLE,
        ]
    ).breaches
    assert breach.broken is broken
    assert f"{late['event']} of a" in breach.what
