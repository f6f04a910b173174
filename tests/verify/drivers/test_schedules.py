"""Schedules: every order of small scenarios on the real dispatcher, and what must be found in them."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from dataclasses import replace

import pytest

import broken_dispatchers
from turngate import AlreadyEntered, Dispatcher
from turngate_model import Property
from turngate_verify.cli import run
from turngate_verify.drivers.fingerprint import fingerprint
from turngate_verify.drivers.schedules import (
    MODES,
    SCENARIOS,
    Scenario,
    explore_in_turn,
    explore_schedules,
    replay_schedule,
)
from turngate_verify.world.stage import LoopMode, Option, Stage
from turngate_verify.world.world import World

SMALL = [name for name in SCENARIOS if not name.startswith("three")]

COUNTED = {  # schedules in any order, and in stock order
    "one": (22, 22),
    "released": (27, 27),
    "hooked": (354, 305),
    "waited-for": (741, 244),
    "two": (382, 334),
    "folded": (849, 749),
    "own-turn": (663, 663),
    "cleared": (3808, 3356),
    "cancel-run": (2598, 2112),
    "interrupt": (69, 62),
    "reject": (225, 201),
    "stubborn": (2205, 1758),
    "slow-store": (139362, 8562),
    "slow-twice": (9203, 629),
    "closed-gently": (24947, 2726),
    "left-over": (11650, 1782),
    "slow-handoff": (2576, 1828),
    "closed": (2212, 686),
    "closed-slowly": (384, 143),
    "sessions": (1890, 815),
    "submitted": (2654, 930),
    "one-place": (4867, 2636),
    "in-line": (4950, 4950),
    "fair-line": (4950, 4950),
    "taken-back": (3334, 2506),
    "streamed": (1597, 459),
    "streamed-late": (15665, 3136),
    "followed": (32756, 4296),
    "paged": (4338, 1310),
    "tidied": (1144, 182),
}


@pytest.mark.parametrize("name", SMALL)
def test_everything_holds_in_every_order(name: str) -> None:
    found = {mode: explore_schedules(name, mode) for mode in MODES}
    for result in found.values():
        assert result.failure is None, "\n".join(result.failure.told())
        assert result.complete
        assert result.outcomes
    assert (found["any"].schedules, found["stock"].schedules) == COUNTED[name]
    assert found["stock"].outcomes <= found["any"].outcomes


def test_three_prompts_in_stock_order() -> None:
    result = explore_schedules("three", "stock")
    assert result.failure is None
    assert (result.complete, result.schedules) == (True, 54_732)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        pytest.param(name, mode, marks=pytest.mark.deep if (name, mode) == ("slow-store", "any") else ())
        for name in ("one", "two", "folded", "slow-store", "waited-for", "taken-back", "streamed", "tidied")
        for mode in MODES
    ],
)
def test_the_reduction_changes_neither_the_outcomes_nor_the_number_of_schedules(
    name: str, mode: LoopMode
) -> None:
    reduced, full = (explore_schedules(name, mode, reduce=reduce) for reduce in (True, False))
    assert reduced.outcomes == full.outcomes
    assert reduced.schedules == full.schedules == full.executed
    assert reduced.executed <= full.executed


@pytest.mark.parametrize("reduce", [True, False])
def test_every_step_is_checked_when_it_is_first_taken(reduce: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    way: dict[World, tuple[Option, ...]] = {}
    unchecked: set[tuple[Option, ...]] = set()
    checked: set[tuple[Option, ...]] = set()
    take, check = Stage.take, World.check

    def watched_take(stage: Stage, option: Option) -> None:
        way[stage.world] = (*way.get(stage.world, ()), option)
        assert way[stage.world][:-1] not in unchecked, "it goes on from a step that was not checked"
        unchecked.update({way[stage.world]} - checked)
        take(stage, option)

    def watched_check(world: World) -> None:
        checked.add(way[world])
        unchecked.discard(way[world])
        check(world)

    monkeypatch.setattr(Stage, "take", watched_take)
    monkeypatch.setattr(World, "check", watched_check)
    result = explore_schedules("two", "any", reduce=reduce)
    assert not unchecked
    assert len(checked) == result.steps


BROKEN = {
    "SplitEntry": ("two", Property.ONE_TURN),
    "HesitantEntry": ("interrupt", Property.ONE_TURN),
    "NoSecondLook": ("slow-store", Property.ON_RECORD),
    "LeavesTasks": ("one", None),
    "StartsTheClockAnew": ("slow-twice", None),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_dispatcher_is_found_with_and_without_reduction(name: str, mode: LoopMode) -> None:
    make: type[Dispatcher] = getattr(broken_dispatchers, name)
    scenario, broken = BROKEN[name]
    found = [
        explore_schedules(scenario, mode, make=make, reduce=reduce, stop=False) for reduce in (True, False)
    ]
    assert found[0].outcomes == found[1].outcomes
    assert found[0].schedules == found[1].schedules
    first = [explore_schedules(scenario, mode, make=make, reduce=reduce).failure for reduce in (True, False)]
    for failure in first:
        assert failure is not None
        assert failure.broken is broken
        assert len(failure.deviations) == len(first[0].deviations if first[0] else [])


@pytest.mark.parametrize("mode", MODES)
def test_what_a_runner_leaves_behind_finds_a_turn_that_takes_late_writes(mode: LoopMode) -> None:
    failure = explore_schedules("left-over", mode, make=broken_dispatchers.TakesLateWrites).failure
    assert failure is not None
    assert failure.broken is Property.LAST_WORD


@pytest.mark.parametrize("name", BROKEN)
def test_a_failing_schedule_fails_again_100_times_out_of_100(name: str) -> None:
    make: type[Dispatcher] = getattr(broken_dispatchers, name)
    failure = explore_schedules(BROKEN[name][0], "stock", make=make).failure
    assert failure is not None
    for _ in range(100):
        again = replay_schedule(failure.scenario, failure.mode, failure.choices, make=make)
        assert again is not None
        assert (again.broken, again.steps, again.choices) == (
            failure.broken,
            failure.steps,
            failure.choices,
        )


def test_a_failing_schedule_shows_where_it_departs_from_plain_order() -> None:
    failure = explore_schedules("two", "stock", make=broken_dispatchers.SplitEntry).failure
    assert failure is not None
    assert failure.told() == [
        "ONE_TURN: b becomes active while the turn of a still runs: it should wait",
        "in plain order, except that",
        "  accept b, before enter a goes on",
        "  enter b, before enter a goes on",
        "step by step:",
        "   1   accept a",
        "   2   enter a",
        "   3 * accept b",
        "   4 * enter b",
        "   5   enter a goes on: a is active",
        "   6   enter b goes on: b is active",
        "again: turngate schedules --scenario two --mode stock --replay 0,0,1,1 "
        "--dispatcher broken_dispatchers:SplitEntry",
    ]


def test_the_printed_command_replays_the_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    failure = explore_schedules("slow-store", "any", make=broken_dispatchers.NoSecondLook).failure
    assert failure is not None
    assert run(failure.replay.split()[1:]) == 1
    assert "ON_RECORD: " in capsys.readouterr().out
    assert run([*failure.replay.split()[1:], "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["property"]) == ("violated", "ON_RECORD")
    assert told["replay"] == failure.replay
    sound = failure.replay.split(" --dispatcher")[0]
    assert run(sound.split()[1:]) == 0
    assert capsys.readouterr().out == "verdict: holds\n"


def test_a_dispatcher_that_never_comes_to_rest_is_found() -> None:
    said = [
        explore_schedules("one", "stock", make=broken_dispatchers.Spins, reduce=reduce).failure
        for reduce in (True, False)
    ]
    assert all(said)
    assert "2000 steps" in str(said[1] and said[1].what)


def test_two_moments_differ_when_a_task_waits_elsewhere_or_with_something_else() -> None:
    async def waits(_what: str, *, twice: bool = False) -> None:
        if twice:
            await asyncio.sleep(0)
            await stage.world.loop.create_future()
        else:
            await stage.world.loop.create_future()

    met = []
    for what, twice in (("this", False), ("this", False), ("that", False), ("this", True)):
        stage = Stage(SCENARIOS["one"], "any")
        stage.world.loop.create_task(waits(what, twice=twice), name="waits")
        stage.world.loop.settle()
        met.append(fingerprint(stage))
        stage.abandon()
    assert met[0] == met[1]
    assert len({*met}) == 3


def test_a_limit_leaves_the_exploration_incomplete() -> None:
    result = explore_schedules("two", "any", limit=10)
    assert (result.executed, result.complete, result.failure) == (10, False, None)


def test_a_dispatcher_that_refuses_without_reason_is_found() -> None:
    scenario = Scenario("a prompt that is entered twice", (("accept a", "enter a", "enter a"),))
    assert explore_schedules(scenario, "stock").failure is None
    refusing = replace(scenario, callers=(("accept a reject", "enter a"),))

    class Refusing(Dispatcher):
        def _refuse_beyond_limit(self, core: object, when_busy: object) -> None:
            raise AssertionError

        def _enter(self, run: object) -> object:  # type: ignore[override]  # it never returns
            raise AlreadyEntered("no")

    failure = explore_schedules(refusing, "stock", make=Refusing).failure
    assert failure is not None
    assert failure.what == "enter a was refused, and should not: no"


def test_the_command_explores_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schedules", "--scenario", "one", "--mode", "any"]) == 0
    out = capsys.readouterr().out
    assert "one, any order: 22 schedules in 22 executions, 3 outcomes" in out
    rates = r"^22 schedules in \d+\.\d s, [\d,]+ a second; 22 of them executed, [\d,]+ a second"
    assert re.search(rates, out, re.MULTILINE)
    assert out.endswith("verdict: holds\n")
    assert run(["schedules", "--scenario", "two", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "holds"
    for counted in ("executed", "schedules"):
        in_all = sum(each[counted] for each in told["scenarios"])
        assert told[f"{counted}_per_second"] == pytest.approx(in_all / told["seconds"], rel=0.05)
    assert [(each["mode"], each["schedules"]) for each in told["scenarios"]] == [("any", 382), ("stock", 334)]
    assert run(["schedules", "--scenario", "two", "--limit", "3"]) == 3
    assert "not all: the limit was reached" in capsys.readouterr().out
    assert run(["schedules", "--scenario", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SCENARIOS)


def test_the_number_of_workers_changes_nothing_but_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for workers in ("1", "3"):
        code = run(["schedules", "--limit", "10", "--workers", workers])
        said.append((code, re.sub(r"[\d.]+ s\b|[\d,]+ a second", "", capsys.readouterr().out)))
    assert said[0] == said[1]
    assert len(said[0][1].splitlines()) == len(SCENARIOS) * len(MODES) + 2


def test_a_failure_found_by_a_worker_is_reported_like_any_other() -> None:
    asked: list[tuple[str, LoopMode]] = [("one", "stock"), ("two", "stock")]
    make = broken_dispatchers.SplitEntry
    found = [result.failure for result in explore_in_turn(asked, workers=2, make=make)]
    assert found == [explore_schedules(*each, make=make).failure for each in asked]
    assert found[1] is not None


@pytest.mark.parametrize("name", ["two", "folded", "closed", "submitted"])
def test_an_abandoned_world_leaves_nothing_to_collect(name: str) -> None:
    gc.collect()
    gc.freeze()  # what earlier tests leave later is theirs
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        explore_schedules(name, "any", limit=150)
        gc.collect()
        # What libraries and other threads leave is theirs.
        assert [each for each in gc.garbage if type(each).__module__.startswith("turngate")] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.unfreeze()
        gc.enable()


BAD_INPUT = {
    "an unknown scenario": (["--scenario", "nope"], "there is no scenario 'nope'"),
    "a mode that is none": (["--mode", "nope"], "'nope' is not one of 'any', 'stock'"),
    "choices that are no numbers": (
        ["--scenario", "one", "--mode", "any", "--replay", "x"],
        "--replay takes numbers like 0,2,0,1, not 'x'",
    ),
    "a choice there is not": (
        ["--scenario", "one", "--mode", "any", "--replay", "0,9"],
        "there is no option 9 at point 2",
    ),
    "a choice below zero": (
        ["--scenario", "one", "--mode", "any", "--replay", "-1"],
        "there is no option -1",
    ),
    "a choice after the end": (
        ["--scenario", "one", "--mode", "any", "--replay", ",".join("0" * 99)],
        "there is no option 0",
    ),
    "a replay of nothing in particular": (["--replay", "0"], "--replay needs --scenario and --mode"),
    "a module there is not": (["--dispatcher", "nope:Nope"], "there is no dispatcher 'nope:Nope'"),
    "no class": (["--dispatcher", "os:getcwd"], "'os:getcwd' is not a dispatcher class"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_of_schedules_gets_one_clear_line(capsys: pytest.CaptureFixture[str], name: str) -> None:
    arguments, message = BAD_INPUT[name]
    assert run(["schedules", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("turngate: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
