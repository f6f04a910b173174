"""What became of prompts behind a busy session: whatever a probe has seen, no other policy is a violation."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Sequence

import pytest

from acp_judging import flawed, ours, programmed
from turngate_model.properties import Property
from turngate_verify.acp import Setting, check_agent
from turngate_verify.acp.agent import Agent
from turngate_verify.acp.fates import Fates
from turngate_verify.acp.probing import Policy
from turngate_verify.acp.rig import Prompt
from turngate_verify.acp.stub import ModelCall
from turngate_verify.conform import Conformance, Effort
from turngate_verify.conform.rest import Awake

PROGRAMS = (
    "accept a, accept b, accept c, finish a, finish b, finish c",
    "accept a + accept b, finish a, accept c, finish c",
    "accept a, accept b, accept c, cancel, accept d, finish d",
    "accept a, accept b, finish a + cancel, accept c, accept d, fail c",
    "accept a, accept b, accept c @2, accept d @2, finish a, finish c @2",
    "accept a, accept b, accept c, accept d, fail a, cancel + accept e, finish e",
)
MIXES = (
    "queue",
    "queue,fold",
    "fold,queue",
    "queue,join",
    "queue,refuse",
    "queue,interrupt",
    "queue,late-refuse",
    "queue,late-interrupt",
    "refuse,fold,queue,interrupt",
)


def accused(result: Conformance) -> object:
    """Return what an agent is accused of, for certain or not."""
    return result.counterexamples or result.flaky or result.failed


def test_our_server_may_fold_before_the_call_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the probe sends when the model was asked has to wait; what comes before that is folded."""
    monkeypatch.setenv("BEFORE", "0.3")
    result = programmed(ours(), "queue", "accept a + accept b, finish a")
    assert not accused(result)
    assert "b is answered end_turn" in result.unjudged[Property.DECLARED_MOVE]  # it was folded indeed
    assert result.verdict_of(Property.DECLARED_MOVE) == "unknown"


@pytest.mark.parametrize(
    ("mix", "program", "seems"),
    [
        ("fold", PROGRAMS[1], Property.DECLARED_MOVE),
        ("interrupt", "accept a, accept b, finish b", Property.NEVER_POISONED),
    ],
)
def test_an_agent_that_was_taken_to_queue_may_do_something_else(
    mix: str, program: str, seems: Property, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSY", mix)
    result = programmed(flawed(), "queue", program)
    assert not accused(result)
    assert "behind a busy session a prompt may wait, join" in result.unjudged[seems]


@pytest.mark.parametrize(
    ("flaw", "program", "broken"),
    [
        ("newest-first", "accept a, accept b, accept c, finish a", Property.FIFO),
        ("cancel-leaves-the-queue", "accept a, accept b, cancel", Property.FULL_COVERAGE),
    ],
)
def test_what_no_policy_explains_is_still_found(flaw: str, program: str, broken: Property) -> None:
    result = programmed(flawed(flaw), "queue", program, grace=1.0)
    assert (set(result.counterexamples), result.unjudged) == ({broken}, {})


@pytest.mark.deep
@pytest.mark.parametrize("taken_for", ["queue", "fold"])
@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("program", PROGRAMS)
def test_no_mix_of_policies_is_an_offence(
    mix: str, program: str, taken_for: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUSY", mix)
    result = programmed(flawed(), taken_for, program, grace=5.0)
    assert not accused(result)
    assert mix != "queue" or not result.unjudged


class Session:
    """Prompts of one session, as the program driver sees them."""

    def __init__(self) -> None:
        self.fates = Fates()
        self.in_flight: list[Prompt] = []

    def send(self, name: str) -> Prompt:
        self.fates.sent(name, [each.name for each in self.in_flight])
        prompt = Prompt(name, ord(name), "s")
        self.in_flight.append(prompt)
        return prompt

    def call(self, prompt: Prompt) -> ModelCall:
        call = ModelCall(None, None)  # type: ignore[arg-type]  # only whether it is open is asked for
        prompt.calls.append(call)
        self.fates.called(prompt.name, self._at_work())
        return call

    def cancel(self) -> None:
        self.fates.cancelled(each.name for each in self.in_flight)

    def answer(self, prompt: Prompt, got: str, order: str = "finish") -> None:
        self.in_flight.remove(prompt)
        self.fates.answered(prompt, got, order, self._at_work())

    def _at_work(self) -> Sequence[Prompt]:
        return [each for each in self.in_flight if each.calls]


@pytest.mark.parametrize("call_comes_first", [False, True])
def test_two_turns_one_after_the_other_are_no_reason_for_doubt(call_comes_first: bool) -> None:
    """A response and a call of the model come on two wires: either may be heard first."""
    session = Session()
    a, b = session.send("a"), session.send("b")
    session.call(a).end("answered")
    if call_comes_first:
        session.call(b)
    session.answer(a, "end_turn")
    if not call_comes_first:
        session.call(b)
    session.answer(b, "end_turn")
    assert session.fates.doubt == ""


def test_prompts_that_a_cancel_covers_are_no_reason_for_doubt() -> None:
    session = Session()
    a, b = session.send("a"), session.send("b")
    session.call(a).end("hung up")
    session.cancel()
    session.answer(a, "cancelled", "")
    session.answer(b, "cancelled", "")
    assert session.fates.doubt == ""


@pytest.mark.parametrize("got", ["end_turn", "error -32600: busy", "cancelled"])
def test_a_prompt_that_is_answered_without_a_turn_is(got: str) -> None:
    session = Session()
    a, b = session.send("a"), session.send("b")
    session.call(a)
    session.answer(b, got, "")
    assert session.fates.doubt.startswith(f"but b is answered {got}, and is not known to have had a turn")


def test_a_prompt_whose_call_keeps_an_earlier_turn_open_is() -> None:
    session = Session()
    a, b = session.send("a"), session.send("b")
    session.call(a).end("answered")
    session.call(b).end("answered")
    session.answer(a, "end_turn")
    session.answer(b, "end_turn")
    assert session.fates.doubt.startswith("but b is answered end_turn")


def test_a_turn_that_ends_by_itself_when_another_prompt_has_come_is() -> None:
    session = Session()
    a, b = session.send("a"), session.send("b")
    session.call(a)
    session.call(b)
    session.answer(a, "cancelled", "")
    assert session.fates.doubt.startswith("but a is answered cancelled with another prompt behind it")


def test_a_turn_that_ends_by_itself_with_nothing_behind_it_is_not() -> None:
    session = Session()
    a = session.send("a")
    session.call(a)
    session.answer(a, "cancelled", "")
    assert session.fates.doubt == ""


# Time.


def test_the_sleep_of_the_kit_is_not_taken_for_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = iter([100.0, 100.5, 160.5, 161.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(reads))
    clock = Awake()
    assert [clock.now() for _ in range(3)] == [0.5, 2.5, 3.0]


def test_an_agent_that_was_stopped_does_not_hang() -> None:
    async def work() -> None:
        agent = Agent((), {}, None)  # type: ignore[arg-type]  # nothing is sent to it
        process, _ = await asyncio.get_running_loop().subprocess_exec(
            asyncio.SubprocessProtocol,
            *(sys.executable, "-c", "import time; time.sleep(3600)"),
            start_new_session=True,
        )
        agent._process = process
        try:
            while await agent.is_computing():  # until it has started
                pass
            process.send_signal(signal.SIGSTOP)
            while not await agent.is_computing():  # until it has stopped
                pass
        finally:
            process.kill()
            process.close()

    asyncio.run(work())


@pytest.mark.deep
@pytest.mark.parametrize("nth", range(3))
def test_the_sound_agent_is_not_accused_when_it_stops_for_seconds(
    nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole agent stands still again and again, longer than what is owed may take."""
    stopper = (
        "import os, signal, subprocess, sys, threading, time\n"
        "agent = subprocess.Popen(sys.argv[1:])\n"
        "def stop():\n"
        "    while True:\n"
        f"        time.sleep({0.7 + nth / 10})\n"
        "        agent.send_signal(signal.SIGSTOP)\n"
        "        time.sleep(4)\n"
        "        agent.send_signal(signal.SIGCONT)\n"
        "threading.Thread(target=stop, daemon=True).start()\n"
        "code = agent.wait()\n"
        "os._exit(code)\n"
    )
    effort = Effort(programs=30, examples=1, seed=nth, seconds=60.0)
    result = check_agent(
        Setting((sys.executable, "-c", stopper, *flawed()), grace=2.0), "agent", effort=effort
    )
    assert not accused(result)
