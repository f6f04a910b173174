"""Both drivers in one check: the wire first, then programs."""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from turngate_model.properties import AnyProperty, Property
from turngate_verify.acp.probing import IN_WORDS, Policy, Probed, Unusable, probe
from turngate_verify.acp.rig import Rig, Setting
from turngate_verify.acp.scenarios import Scenario, is_scenario, parsed_scenario
from turngate_verify.acp.subject import AcpSubject
from turngate_verify.acp.wire import WireDriver
from turngate_verify.conform.judge import BY_FOLDS
from turngate_verify.conform.port import Features, SubjectFactory, SubjectFailed
from turngate_verify.conform.programs import Program, parsed
from turngate_verify.conform.realtime_subject import RealtimeSubject
from turngate_verify.conform.result import Conformance, Effort
from turngate_verify.conform.suites import check, replay

T = TypeVar("T")
_ERROR = re.compile(r"(\w+[.:]+)*\w*(Error|Exception|panic)\b.*:")
_WIRE_SHARE = 0.4
"""The wire driver may take this much of the time."""
_SERIAL = "behind a busy session a prompt {}, so the client waits for the response before it sends the next"


class BadAgent(ValueError):
    """A command that cannot be judged from the start: it does not exist, or is no agent."""


def _on_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop of all real-time subjects, and return what it returns."""
    return asyncio.run_coroutine_threadsafe(work, RealtimeSubject.loop()).result()


def check_agent(
    setting: Setting, name: str, *, effort: Effort, options: tuple[str, ...] = (), program: str | None = None
) -> Conformance:
    """Check an agent by both drivers; with a program or a scenario, play that alone.

    ``options`` are those that a command needs to play something again. Raises
    BadAgent if there is nothing to judge, and BadProgram.
    """
    began = time.monotonic()
    asked: Scenario | Program | None = None
    if program is not None:
        asked = parsed_scenario(program) if is_scenario(program) else parsed(program)
    rig = Rig(setting)
    try:
        plays_programs = asked is None and bool(effort.programs or effort.examples)
        plays_programs |= asked is not None and not isinstance(asked, Scenario)
        probed = _on_loop(_begin(rig, plays_programs=setting.has_stub and plays_programs))
        result = _checked(rig, probed, name, effort, asked)
    finally:
        _on_loop(rig.stop())
    result.is_command = True
    result.options = ("--acp", *options)
    result.seconds = time.monotonic() - began
    return result


async def _begin(rig: Rig, *, plays_programs: bool) -> Probed:
    try:
        await rig.start()
        return await probe(rig, has_policy=plays_programs)
    except SubjectFailed as failed:
        complaint = _complaint(rig.agent.complaints())
        last = f" (it complains: {complaint[:300]})" if complaint else ""
        what = failed.what if isinstance(failed, Unusable) else f"{failed.what}{last}"
        raise BadAgent(what) from None
    except FileNotFoundError:
        raise BadAgent(f"there is no command {rig.setting.command[0]}") from None
    except OSError as wrong:
        if rig.setting.has_stub and not rig.stub.port:
            port = rig.setting.stub_port
            raise BadAgent(f"port {port} is already in use; choose another with --stub-port") from None
        raise BadAgent(f"{rig.setting.command[0]} cannot be run: {wrong.strerror or wrong}") from None


def _complaint(lines: list[str]) -> str:
    """Return the line that says most: the last one that names an error, or else the last one."""
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if _ERROR.match(line)]
    return (errors or said or [""])[-1]


def _checked(
    rig: Rig, probed: Probed, name: str, effort: Effort, asked: Scenario | Program | None
) -> Conformance:
    wire = WireDriver(rig, effort.seconds * _WIRE_SHARE)
    result = Conformance(name, seed=effort.seed, require_races=effort.require_races)
    result.features = Features(bursts=True, real_time=True, unordered=True)
    try:
        if asked is None:
            _on_loop(wire.run())
        elif isinstance(asked, Scenario):
            _on_loop(_play(wire, asked))
            assert wire.last is not None
            result.told = [str(step) for step in wire.last.steps]
        if rig.setting.has_stub and not isinstance(asked, Scenario):
            left = effort._replace(seconds=max(1.0, float(round(effort.seconds - wire.spent))), workers=1)
            make: SubjectFactory = functools.partial(AcpSubject, rig, probed.policy or "unknown")
            result = replay(make, name, asked, effort=left) if asked else check(make, name, effort=left)
    except SubjectFailed as failed:
        result.failed = failed
    _merge(result, wire)
    result.hidden |= _hidden(rig, probed.policy)
    # Where prompts join turns, these cannot be shown, whatever the probe has met.
    result.hidden |= {each: why for each, why in result.unjudged.items() if each in BY_FOLDS}
    result.notes = [*probed.notes, *wire.skipped]
    if rig.agent.stray:
        result.notes.append(f"a response to what was never asked: {rig.agent.stray[0]}")
    return result


async def _play(wire: WireDriver, scenario: Scenario) -> None:
    await wire.play(scenario)
    await wire.confirm()


def _merge(result: Conformance, wire: WireDriver) -> None:
    """Add what the wire driver has found. The report shows what was seen on the wire, not a program."""
    result.wire.update(wire.checked)
    result.raced += wire.rounds
    for broken, finding in wire.found.items():
        result.counterexamples[broken] = finding.example
        result.replays[broken] = str(finding.scenario)
        result.flaky.pop(broken, None)
    for broken, flaky in wire.flaky.items():
        if broken not in result.counterexamples:
            result.flaky[broken] = flaky


def _hidden(rig: Rig, policy: Policy | None) -> dict[AnyProperty, str]:
    """Return the properties that cannot be shown here, and why."""
    if not rig.setting.has_stub:
        why = "without the stub model, the kit does not decide what the model answers"
        shown = (
            Property.NEVER_POISONED,
            Property.EXACTLY_ONE_COMPLETE,
            Property.FULL_COVERAGE,
            Property.IDLE_CANCEL,
            Property.LAST_WORD,
            Property.ISOLATION,
        )
        return dict.fromkeys([each for each in Property if each not in shown], why)
    if policy in ("queue", "fold", None):
        return {}
    return {Property.FIFO: _SERIAL.format(IN_WORDS[policy])}
