"""Agents with one flaw are accused of their own property and of nothing else; sound ones of nothing."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

import turngate_verify.acp.wire as wire_module
from acp_judging import flawed, ours, programmed, sdk, wired
from dispatching import in_loop
from surroundings import insist_on_package
from turngate_model.properties import Property
from turngate_verify.acp.agent import Agent
from turngate_verify.acp.scenarios import sweep
from turngate_verify.conform.rest import goes_on
from turngate_verify.conform.timing import Timing

CANCELS = ("wire cancel asked", "wire cancel streaming", "wire cancel at-once warm")
EACH_KIND = (
    "wire prompt",
    "wire cancel at-once",
    "wire cancel 5ms warm",
    "wire cancel asked",
    "wire cancel streaming",
    "wire cancel tool",
    "wire cancel after-tool",
    "wire cancel end",
    "wire cancel-twice asked",
    "wire idle-cancel at-once warm",
    "wire two-sessions",
    "wire behind warm",
    "wire fail",
    "wire fail-beside",
)
FLAWS: dict[str, tuple[Property, tuple[str, ...]]] = {
    "end-turn-to-a-cancel": (Property.FULL_COVERAGE, CANCELS),
    "error-to-a-cancel": (Property.FULL_COVERAGE, CANCELS),
    "poisons-the-next-prompt": (Property.NEVER_POISONED, CANCELS),
    "remembers-an-idle-cancel": (Property.NEVER_POISONED, ("wire idle-cancel at-once", *CANCELS)),
    "answers-twice": (Property.EXACTLY_ONE_COMPLETE, CANCELS),
    "update-after-response": (Property.LAST_WORD, ("wire prompt",)),
    "cancels-other-sessions": (Property.ISOLATION, ("wire two-sessions", *CANCELS)),
    "shows-in-another-session": (Property.ISOLATION, ("wire two-sessions",)),
    "stuck-after-failure": (Property.NO_STRAND, ("wire fail", *CANCELS)),
    "leaves-model-calls-open": (Property.ONE_TURN, ("wire cancel asked", "wire two-sessions")),
}
WAITING: dict[str, tuple[Property, tuple[str, ...]]] = {
    "never-answers-a-cancel": (Property.EXACTLY_ONE_COMPLETE, ("wire cancel asked",)),
    "loses-what-waits": (Property.NO_STRAND, ("wire behind",)),
    "ignores-cancels": (Property.FULL_COVERAGE, ("wire cancel asked",)),
    "stuck-after-failure": (Property.NO_STRAND, ("wire fail",)),
    "leaves-model-calls-open": (Property.ONE_TURN, ("wire cancel asked",)),
}
"""Flaws that show in what does not happen: so much time passes for nothing."""


@pytest.mark.parametrize("flaw", [each for each in FLAWS if each not in WAITING])
def test_a_flaw_is_found_on_the_wire_and_nothing_else(flaw: str) -> None:
    broken, scenarios = FLAWS[flaw]
    driver = wired(flawed(flaw), scenarios)
    assert (set(driver.found), driver.flaky) == ({broken}, {})


@pytest.mark.parametrize("flaw", WAITING)
def test_what_does_not_happen_is_found_as_well(flaw: str) -> None:
    broken, scenarios = WAITING[flaw]
    driver = wired(flawed(flaw), scenarios, grace=1.0)
    assert (set(driver.found), driver.flaky) == ({broken}, {})


def test_an_agent_that_is_slow_does_not_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is owed and does not come is waited for as long as the agent is seen to be at work."""

    async def look(_: Agent) -> bool:
        await asyncio.sleep(0.05)
        return True

    monkeypatch.setattr(Agent, "is_computing", look)
    monkeypatch.setattr(wire_module, "PATIENCE", 10_000)
    driver = wired(flawed("slow"), ["wire cancel asked"], grace=0.01)
    assert (driver.found, driver.flaky, list(driver.skipped)) == ({}, {}, [])


@in_loop
async def test_what_computes_is_told_from_what_waits(tmp_path: Path) -> None:
    for does, is_computing in (("while True: pass", True), ("import time; time.sleep(3600)", False)):
        program = f'print(\'{{"id": 1, "result": {{"protocolVersion": 1}}}}\', flush=True); input()\n{does}'
        agent = Agent([sys.executable, "-c", f"{program}"], os.environ, tmp_path)
        await agent.start(60.0)
        try:
            while await agent.is_computing() is not is_computing:
                pass  # the program that waits may still be on its way to where it waits
        finally:
            await agent.stop()
        assert not await agent.is_computing()


def test_what_a_subject_owes_is_waited_for_while_it_computes() -> None:
    class Subject:
        asked = 0

        def is_computing(self) -> bool:
            self.asked += 1
            return True

    timing, subject = Timing(grace=1.0, longest=10.0), Subject()
    assert [goes_on(subject, waited, timing) for waited in (1.0, 2.9, 3.0)] == [True, True, False]
    assert not goes_on(subject, 1.0, Timing(grace=1.0, longest=2.0))
    assert not goes_on(object(), 1.0, timing)
    assert subject.asked == 2


@pytest.mark.parametrize(
    ("flaw", "program", "broken"),
    [
        ("newest-first", "accept a, accept b, accept c, finish a", Property.FIFO),
        ("cancel-leaves-the-queue", "accept a, accept b, cancel", Property.FULL_COVERAGE),
        ("cancels-other-sessions", "accept a, accept b @2, cancel @2", Property.ISOLATION),
        ("end-turn-to-a-cancel", "accept a, cancel", Property.FULL_COVERAGE),
        ("poisons-the-next-prompt", "accept a, cancel, accept b", Property.NEVER_POISONED),
    ],
)
def test_a_flaw_is_found_by_a_program_and_nothing_else(flaw: str, program: str, broken: Property) -> None:
    result = programmed(flawed(flaw), "queue", program, grace=1.0)
    assert (set(result.counterexamples), result.flaky, result.failed) == ({broken}, {}, None)
    assert "a is active" in result.counterexamples[broken].told()[0]


def test_what_does_not_come_back_is_flaky_and_no_violation() -> None:
    driver = wired(flawed("end-turn-to-the-first-cancel"), CANCELS)
    assert (driver.found, set(driver.flaky)) == ({}, {Property.FULL_COVERAGE})
    finding = driver.flaky[Property.FULL_COVERAGE]
    assert "cancel: RunComplete of a: finished" in finding.example.told()
    assert "cancel: RunComplete of a: cancelled" in finding.again


@pytest.mark.parametrize("habit", ["", "asks-aside"])
def test_a_sound_agent_holds_at_every_moment(habit: str) -> None:
    """What it asks its model beside a turn, or after it, is no part of the turn."""
    driver = wired(flawed(habit), EACH_KIND)
    assert (driver.found, driver.flaky, list(driver.skipped)) == ({}, {}, [])
    shown = {broken for broken, _ in FLAWS.values()} | {Property.IDLE_CANCEL}
    assert set(driver.checked) >= shown


@pytest.mark.parametrize(
    "busy", ["queue", "interrupt", "refuse", "fold", "join", "late-refuse", "late-interrupt"]
)
def test_whatever_becomes_of_a_prompt_behind_another_it_is_answered(
    busy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSY", busy)
    driver = wired(flawed(), ("wire behind", "wire behind warm"))
    assert (driver.found, driver.flaky, driver.skipped) == ({}, {}, {})
    assert driver.checked[Property.EXACTLY_ONE_COMPLETE] == 2


def test_our_own_server_holds() -> None:
    driver = wired(ours(), [each for each in EACH_KIND if "tool" not in each])
    assert (driver.found, driver.flaky, list(driver.skipped)) == ({}, {}, [])
    program = "accept a, accept b, accept c @2, cancel, accept d, finish c @2, finish d"
    result = programmed(ours("--when-busy", "queue"), "queue", program)
    assert (result.counterexamples, result.flaky, result.failed) == ({}, {}, None)


@pytest.mark.needs
def test_an_agent_on_the_official_sdk_holds() -> None:
    insist_on_package("acp")
    driver = wired(sdk(), [each for each in EACH_KIND if "tool" not in each])
    assert (driver.found, driver.flaky, list(driver.skipped)) == ({}, {}, [])


def test_every_scenario_of_a_round_can_be_written_and_read() -> None:
    from turngate_verify.acp.scenarios import parsed_scenario  # noqa: PLC0415 - used here alone

    for has_stub in (False, True):
        for each in sweep(has_stub=has_stub):
            assert parsed_scenario(str(each)) == each
