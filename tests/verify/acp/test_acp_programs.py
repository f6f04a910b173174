"""An agent as a subject of the kit: what is probed, what has no order, and the traps of a client."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from acp_judging import flawed, ours, programmed, sdk
from surroundings import insist_on_package
from turngate_model.history import Complete, Enter
from turngate_model.lifecycle import DeclaredState
from turngate_model.properties import Property
from turngate_verify.acp import Setting, check_agent
from turngate_verify.acp.probing import Policy, probe
from turngate_verify.acp.rig import Rig
from turngate_verify.conform import Conformance, Effort, Features, RealtimeSubject, parsed
from turngate_verify.conform.sessions import Sessions
from turngate_verify.conform.stepping import Waiting
from turngate_verify.conform.windows import Judged, Window, judged, unstepped


@pytest.mark.parametrize(
    ("does", "busy"), [*((each, each) for each in ("queue", "interrupt", "refuse", "fold")), ("join", "fold")]
)
def test_what_becomes_of_a_prompt_behind_a_busy_session(
    does: str, busy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found out, and never judged: whichever it is, the same programs hold."""
    monkeypatch.setenv("BUSY", does)

    async def probed() -> Policy | None:
        rig = Rig(Setting(flawed(), grace=20.0))
        try:
            await rig.start()
            return (await probe(rig)).policy
        finally:
            await rig.stop()

    assert asyncio.run(probed()) == busy
    result = programmed(flawed(), busy, "accept a, accept b, accept c @2, finish a, finish b, fail c @2")
    assert (result.counterexamples, result.flaky, result.failed) == ({}, {}, None)
    unknown = {each for each in (Property.DECLARED_MOVE, Property.LAST_WORD) if each in result.not_shown}
    assert unknown == ({Property.DECLARED_MOVE, Property.LAST_WORD} if busy == "fold" else set())


@pytest.mark.parametrize("last", ["finish a", "fail a", "cancel"])
def test_prompts_that_join_a_turn_one_after_the_other_overtake_none(
    last: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of the model is about every prompt that its conversation holds, not about the last one alone."""
    monkeypatch.setenv("BUSY", "join")
    program = f"accept a, accept b, accept c, accept d, accept e, {last}, accept f, finish f"
    result = programmed(flawed(), "fold", program)
    assert (result.counterexamples, result.flaky, result.failed) == ({}, {}, None)
    assert result.programs[Property.EXACTLY_ONE_COMPLETE]


@pytest.mark.parametrize(
    "program",
    [
        "accept a + accept b, finish a, finish b",  # the session is opened once
        "accept a + cancel, accept b, finish b",  # the cancel is about the session that is being opened
        "cancel, accept a, finish a",  # the same, with nothing to cancel
        "accept a, finish a + cancel, accept b + cancel, accept c, finish c",
    ],
)
@pytest.mark.parametrize("busy", ["queue", "interrupt"])
def test_the_traps_of_a_client(program: str, busy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUSY", busy)
    result = programmed(flawed(), busy, program)
    assert (result.counterexamples, result.flaky, result.failed) == ({}, {}, None)
    assert result.programs[Property.EXACTLY_ONE_COMPLETE]


def in_window(program: str, shown: Sequence[object], *, unordered: bool, at_work: str = "") -> Judged:
    """Judge the last operation of a program; the ones before it were shown as they should be."""
    *before, last = parsed(program)
    sessions = Sessions(Features(real_time=True, unordered=unordered))
    place_of = {op.run: op.place for op in (*before, last) if op.run}
    for op in before:
        sessions.take(op, ())
        if op.run == "a":
            sessions.judge(op.place, Enter("a", DeclaredState.ACTIVE))
        else:
            sessions.count_as_queued(op.place, op.run)
    rows = unstepped((last,), shown)  # type: ignore[arg-type]
    return judged(
        [sessions], Window((last,), tuple(rows), frozenset(), tuple(at_work), not unordered), place_of
    )


def test_a_program_leaves_nothing_that_waits_for_an_answer() -> None:
    """Not even if the answer never comes."""

    async def waiting() -> list[str]:
        tasks = [repr(each.get_coro()) for each in asyncio.all_tasks()]
        return [each for each in tasks if "Event.wait" in each]

    programmed(flawed("never-answers-a-cancel"), "queue", "accept a, cancel", grace=0.5)
    assert asyncio.run_coroutine_threadsafe(waiting(), RealtimeSubject.loop()).result() == []


def test_a_response_and_a_call_of_the_model_have_no_common_order() -> None:
    program = "accept a, accept b, finish a"
    shown = [Enter("b", DeclaredState.ACTIVE), Complete("a", False, None)]
    assert in_window(program, shown, unordered=True, at_work="b").verdict == "holds"
    assert in_window(program, shown, unordered=False, at_work="b").verdict == "violated"
    assert in_window(program, shown[::-1], unordered=False, at_work="b").verdict == "holds"


def test_what_one_operation_brings_about_comes_after_it() -> None:
    """The agent was at rest until then: a turn that ends after its cancel has not ended before it."""
    found = in_window("accept a, cancel", [Complete("a", False, None)], unordered=True)
    assert (found.verdict, found.possible) == ("violated", (Property.FULL_COVERAGE,))


def test_a_run_waits_after_it_was_accepted() -> None:
    """However two accepts in one moment were taken in, both wait in the end, so FIFO asks for their turns."""
    sessions = Sessions(Features(real_time=True, bursts=True))
    (first,) = parsed("accept a")
    sessions.take(first, ())
    sessions.judge(0, Enter("a", DeclaredState.ACTIVE))
    both = parsed("accept b + accept c")
    rows = unstepped(both, [Waiting("b"), Waiting("c")])
    found = judged([sessions], Window(both, tuple(rows), frozenset(), ("a",)), {"a": 0, "b": 0, "c": 0})
    assert found.verdict == "holds"
    assert {tuple(sorted(each.at(0).queue)) for each in found.states} == {("b", "c")}


@pytest.fixture
def busy_machine() -> Iterator[None]:
    """Keep every core busy with two loops beside the test."""
    loops = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))
    ]
    yield
    for each in loops:
        each.kill()
        each.wait()


def whole(command: tuple[str, ...], nth: int) -> Conformance:
    """Check an agent by both drivers, as the command does."""
    effort = Effort(programs=30, examples=1, seed=nth, seconds=40.0)
    return check_agent(Setting(command), "agent", effort=effort)


@pytest.mark.deep
@pytest.mark.parametrize("which", ["sound", "ours", "sdk"])
@pytest.mark.parametrize("nth", range(20))
def test_the_right_agents_are_not_accused_on_a_busy_machine(which: str, nth: int, busy_machine: None) -> None:
    if which == "sdk":
        insist_on_package("acp")
    command = {"sound": flawed(), "ours": ours("--when-busy", "queue"), "sdk": sdk()}[which]
    result = whole(command, nth)
    assert (result.counterexamples, result.flaky, result.failed) == ({}, {}, None)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("flaw", "broken"),
    [
        ("end-turn-to-a-cancel", Property.FULL_COVERAGE),
        ("error-to-a-cancel", Property.FULL_COVERAGE),
        ("ignores-cancels", Property.FULL_COVERAGE),
        ("cancel-leaves-the-queue", Property.FULL_COVERAGE),
        ("never-answers-a-cancel", Property.EXACTLY_ONE_COMPLETE),
        ("answers-twice", Property.EXACTLY_ONE_COMPLETE),
        ("poisons-the-next-prompt", Property.NEVER_POISONED),
        ("remembers-an-idle-cancel", Property.NEVER_POISONED),
        ("update-after-response", Property.LAST_WORD),
        ("cancels-other-sessions", Property.ISOLATION),
        ("shows-in-another-session", Property.ISOLATION),
        ("stuck-after-failure", Property.NO_STRAND),
        ("leaves-model-calls-open", Property.ONE_TURN),
        ("newest-first", Property.FIFO),
    ],
)
def test_both_drivers_together_accuse_a_flaw_of_its_own_property(flaw: str, broken: Property) -> None:
    effort = Effort(programs=60, examples=2, seconds=240.0)
    result = check_agent(Setting(flawed(flaw), grace=2.0), "agent", effort=effort)
    assert (set(result.counterexamples), result.flaky, result.failed) == ({broken}, {}, None)
