"""Faults: every scenario spoiled once at every point, and dispatchers that do not stand it."""

from __future__ import annotations

import gc
import json
from collections import Counter

import pytest

import broken_dispatchers
from turngate import Dispatcher
from turngate_model import Property
from turngate_verify.cli import run
from turngate_verify.drivers.faults import KINDS, SPOILED, inject_faults, replay_fault


@pytest.fixture(autouse=True)
def _collected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what is older than a test frozen, so that not every replay has the collector look at all of it."""
    gc.collect()
    gc.freeze()
    monkeypatch.setattr(gc, "unfreeze", lambda: None)


def test_the_dispatcher_stands_every_fault() -> None:
    found = inject_faults()
    assert found.failure is None, "\n".join(found.failure.told())
    assert dict(found.injections) == {
        "cancel": 314,
        "store": 78,
        "callback": 79,
        "logging": 6,
        "factory": 133,
        "interrupt": 456,
        "shutdown": 143,
        "dropped": 143,
    }
    assert set(found.injections) == set(KINDS)
    assert found.awaits == 67
    assert found.timed_out == 13, "a write that takes too long, which is one of six faults of each write"


BROKEN = {
    "Unwatched": ("cancel", Property.EXACTLY_ONE_COMPLETE),
    "Unguarded": ("dropped", Property.EXACTLY_ONE_COMPLETE),
    "Deaf": ("interrupt", None),
    "GivesUpWriting": ("cancel", Property.ON_RECORD),
    "LeavesTasks": ("none", None),
    "ForgetsToAwait": ("cancel", None),
    "ForgetsToLook": ("none", None),
    "LogsUnguarded": ("logging", None),
    "StopsTheClock": ("store", None),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_dispatcher_that_does_not_stand_a_fault_is_found(name: str) -> None:
    make: type[Dispatcher] = getattr(broken_dispatchers, name)
    failure = inject_faults(make=make).failure
    assert failure is not None
    assert (failure.kind, failure.broken) == BROKEN[name], failure.told()
    assert failure.scenario in SPOILED


def test_a_fault_is_described() -> None:
    failure = inject_faults(make=broken_dispatchers.Unwatched).failure
    assert failure is not None
    assert failure.told() == [
        "EXACTLY_ONE_COMPLETE: a has ended without a RunComplete",
        "in the scenario 'handed-off', with the task of the turn of a cancelled after 4 steps",
        "again: turngate faults --scenario handed-off --replay 5 --dispatcher broken_dispatchers:Unwatched",
    ]


@pytest.mark.parametrize("name", ["Unwatched", "Deaf", "ForgetsToAwait"])
def test_a_fault_that_is_not_stood_is_not_stood_again_100_times_out_of_100(name: str) -> None:
    make: type[Dispatcher] = getattr(broken_dispatchers, name)
    failure = inject_faults(make=make).failure
    assert failure is not None
    for _ in range(100):
        assert replay_fault(failure.scenario, failure.number, make=make).failure == failure


CLOSED = 169
"""How many injections that scenario has, those that spoil nothing included."""


def test_a_replay_makes_the_one_injection_that_is_wanted() -> None:
    found = inject_faults(["closed"])
    made = [replay_fault("closed", number).injections for number in range(1, CLOSED + 1)]
    assert max(each.total() for each in made) == 1
    assert sum(made, Counter()) == found.injections
    with pytest.raises(ValueError, match=f"closed has the injections 1 to {CLOSED}, and no {CLOSED + 1}"):
        replay_fault("closed", CLOSED + 1)


def test_the_printed_command_makes_the_injection_again(capsys: pytest.CaptureFixture[str]) -> None:
    failure = inject_faults(make=broken_dispatchers.GivesUpWriting).failure
    assert failure is not None
    command = failure.replay.split()[1:]
    assert run(command) == 1
    out = capsys.readouterr().out
    assert all(line in out for line in failure.told())
    assert run([*command, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["property"]) == ("violated", "ON_RECORD")
    assert (told["where"], told["replay"]) == (failure.where, failure.replay)
    assert run(command[:-2]) == 0
    assert capsys.readouterr().out.endswith("verdict: holds\n")


def test_the_command_injects_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["faults", "--scenario", "closed"]) == 0
    assert "  a task cancelled at an await\n" in capsys.readouterr().out
    assert run(["faults", "--scenario", "list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(SPOILED)


BAD_INPUT = {
    "an unknown scenario": (["--scenario", "nope"], "there is no scenario 'nope'"),
    "a number that is none": (["--scenario", "closed", "--replay", "x"], "'x' is not a valid integer"),
    "an injection there is not": (
        ["--scenario", "closed", "--replay", "9999"],
        "closed has the injections 1 to ",
    ),
    "a replay of nothing in particular": (["--replay", "1"], "--replay needs --scenario"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_of_faults_gets_one_clear_line(capsys: pytest.CaptureFixture[str], name: str) -> None:
    arguments, message = BAD_INPUT[name]
    assert run(["faults", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("turngate: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
