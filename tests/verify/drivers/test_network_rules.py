"""Clients over a network that loses things, and a server that is restarted: the rules have teeth."""

from __future__ import annotations

import pytest

pytest.importorskip("httpx2")  # the other Pythons of make matrix do not have the client

from turngate.client import Client
from turngate_model import LIMB_DESIGNS
from turngate_verify.drivers.network_found import Program
from turngate_verify.drivers.network_rules import play, run_network_rules
from turngate_verify.drivers.network_sabotage import (
    NETWORK_SABOTAGES,
    find_network_sabotage,
    play_sabotage,
)
from turngate_verify.world.network import FAULTS
from turngate_verify.world.network_world import NetworkWorld

OF_FILES = {"path-identity"}
"""Designs that no caller of a server can see."""
WITH_AND_WITHOUT_LEDGER = pytest.mark.parametrize("has_ledger", [False, True], ids=["memory", "ledger"])


@WITH_AND_WITHOUT_LEDGER
def test_what_callers_see_is_right_and_everything_is_reached(has_ledger: bool) -> None:
    found = run_network_rules(80, has_ledger=has_ledger)
    assert (found.wrong, found.program) == ([], [])
    assert found.missed == frozenset()


@pytest.mark.deep
@WITH_AND_WITHOUT_LEDGER
@pytest.mark.parametrize("seed", range(1, 4))
def test_other_programs_are_right_too(has_ledger: bool, seed: int) -> None:
    found = run_network_rules(600, has_ledger=has_ledger, seed=seed)
    assert (found.wrong, found.program) == ([], [])


def test_every_design_that_callers_can_see_is_built_in() -> None:
    assert list(NETWORK_SABOTAGES) == [name for name in LIMB_DESIGNS if name not in OF_FILES]


@pytest.mark.parametrize("design", NETWORK_SABOTAGES)
def test_a_program_finds_the_design_and_accuses_nothing_else(design: str) -> None:
    without, within = play_sabotage(design)
    assert without == []
    assert within


@pytest.mark.deep
@pytest.mark.parametrize("design", NETWORK_SABOTAGES)
def test_the_rules_find_the_design(design: str) -> None:
    assert find_network_sabotage(design).wrong


@WITH_AND_WITHOUT_LEDGER
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_at_every_call_of_a_conversation_breaks_nothing(fault: str, has_ledger: bool) -> None:
    struck = 0
    for at in (0, 1, 60, 200):
        program: Program = [
            (("look", 0, "s"), True),
            (("submit", 0, "s", "queue"), True),
            (("fault", fault, at), True),
            (("cancel", 1, "s", True), True),
            (("submit", 1, "s", "queue"), True),
            (("repeat", 1, 0), True),
            (("late", 0), True),
            (("time", 12.0), True),
        ]
        wrong, reached = play(program, has_ledger=has_ledger)
        assert wrong == []
        struck += f"fault: {fault}" in reached
    assert struck == 4


RIGHT: dict[str, Program] = {
    "a fold that is saved, and of which the runner never hears": [
        (("stream", 0, "s"), True),
        (("submit", 1, "s", "fold"), True),
        (("ledger", "odd", 2), False),
        (("order", 2, "fold"), True),
    ],
    "two turns that start at once in two sessions, and one that folds": [
        (("submit", 1, "s", "queue"), False),
        (("submit", 0, "t", "fold"), True),
        (("order", 0, "end"), True),
        (("together", 0, "t"), True),
    ],
    "a turn that was taken over, and whose process is killed": [
        (("stream", 1, "s"), True),
        (("submit", 1, "s", "queue"), True),
        (("stream", 0, "s"), True),
        (("restart", "kill"), True),
        (("order", 2, "end"), True),
        (("restart", "kill"), True),
    ],
    "a stop that covers a turn, which another process completes": [
        (("submit", 1, "t", "queue"), True),
        (("submit", 1, "s", "interrupt"), True),
        (("together", 0, "s"), False),
        (("restart", "stop"), True),
        (("fault", "request doubled", 101), True),
        (("fault", "request lost", 27), True),
        (("submit", 0, "t", "fold"), False),
        (("cancel", 0, "s", True), True),
        (("ledger", "odd", 4), True),
        (("restart", "stop"), True),
        (("repeat", 0, 4), False),
    ],
}
"""What happens now and then on a ledger, and is right."""


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_not_accused(name: str) -> None:
    assert play(RIGHT[name], has_ledger=True)[0] == []


def test_a_caller_that_hangs_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NetworkWorld, "_ended", lambda *_: None)

    async def never(self: NetworkWorld, client: int, session: str) -> None:
        await self.loop.create_future()

    monkeypatch.setattr(NetworkWorld, "look", never)
    wrong, _ = play([(("look", 0, "s"), True)], has_ledger=False)
    assert "a caller hangs" in wrong[0]


def test_a_client_that_stays_open_is_residue(monkeypatch: pytest.MonkeyPatch) -> None:
    async def stays(self: Client) -> None:
        pass

    monkeypatch.setattr(Client, "aclose", stays)
    wrong, _ = play([(("read", 0, "s"), True)], has_ledger=False)
    assert wrong[0].startswith("NO_RESIDUE")
