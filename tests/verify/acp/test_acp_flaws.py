"""Agents with one flaw are accused of their own property and of nothing else; sound ones of nothing."""

from __future__ import annotations

import pytest

from acp_judging import flawed, ours, programmed, sdk, wired
from surroundings import insist_on_package
from turngate_model.properties import Property
from turngate_verify.acp.scenarios import sweep

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


def test_a_sound_agent_holds_at_every_moment() -> None:
    driver = wired(flawed(), EACH_KIND)
    assert (driver.found, driver.flaky, list(driver.skipped)) == ({}, {}, [])
    shown = {broken for broken, _ in FLAWS.values()} | {Property.IDLE_CANCEL}
    assert set(driver.checked) >= shown


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
