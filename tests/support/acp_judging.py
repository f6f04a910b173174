"""Judging the agents of tests by scenarios of the wire driver, or by programs, in this process."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from surroundings import ROOT
from turngate_verify.acp.probing import Policy, probe
from turngate_verify.acp.rig import Rig, Setting
from turngate_verify.acp.scenarios import parsed_scenario
from turngate_verify.acp.subject import AcpSubject
from turngate_verify.acp.wire import WireDriver
from turngate_verify.conform import Conformance, Effort, RealtimeSubject, parsed, replay

FLAWED = ROOT / "tests" / "support" / "flawed_agent.py"
SDK_AGENT = ROOT / "tests" / "support" / "sdk_agent.py"
MODEL_AGENT = ROOT / "tests" / "support" / "model_runner.py"


def flawed(flaw: str = "") -> tuple[str, ...]:
    """Return the command of the agent with this flaw; without one, of a sound agent."""
    return (sys.executable, str(FLAWED), flaw)


def ours(*options: str) -> tuple[str, ...]:
    """Return the command of our own server, with a runner that asks the model."""
    return (sys.executable, "-m", "turngate", "serve", "--acp", *options, f"{MODEL_AGENT}:agent")


def sdk() -> tuple[str, ...]:
    """Return the command of an agent on the official Python SDK."""
    return (sys.executable, str(SDK_AGENT))


def wired(command: Sequence[str], scenarios: Sequence[str], *, grace: float = 20.0) -> WireDriver:
    """Play scenarios, and replay what they find."""

    async def work() -> WireDriver:
        rig = Rig(Setting(tuple(command), grace=grace))
        try:
            await rig.start()
            await probe(rig, has_policy=False)
            driver = WireDriver(rig, 1.0)
            for each in scenarios:
                await driver.play(parsed_scenario(each))
            await driver.confirm()
            return driver
        finally:
            await rig.stop()

    return asyncio.run(work())


def programmed(command: Sequence[str], policy: Policy, program: str, *, grace: float = 20.0) -> Conformance:
    """Play one program."""
    rig = Rig(Setting(tuple(command), grace=grace))
    loop = RealtimeSubject.loop()

    async def begin() -> None:
        await rig.start()
        await probe(rig, has_policy=False)

    asyncio.run_coroutine_threadsafe(begin(), loop).result()
    try:
        make = functools.partial(AcpSubject, rig, policy)
        return replay(make, "agent", parsed(program), effort=Effort())
    finally:
        asyncio.run_coroutine_threadsafe(rig.stop(), loop).result()


def processes_in(folder: Path) -> list[str]:
    """Return the command lines of the processes whose working folder or arguments name a folder."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                said = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(folder) in said:
                found.append(said)
    return found
