"""The dispatcher inside other people's stacks, as they are installed from the index."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import stacks_apart
from stack_scenarios import SCENARIOS
from stacking import Scenario, Stack, live
from stacks import APART, STACKS
from stacks_apart import OF_THEIR_OWN

QUIET = {  # ddtrace sends nothing: no agent, no telemetry, no configuration from afar
    "DD_CRASHTRACKING_ENABLED": "false",
    "DD_INSTRUMENTATION_TELEMETRY_ENABLED": "false",
    "DD_REMOTE_CONFIGURATION_ENABLED": "false",
    "DD_TRACE_AGENT_URL": "unix:///dev/null",
    "DD_TRACE_STARTUP_LOGS": "false",
}


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
@pytest.mark.parametrize("stack", STACKS, ids=str)
def test_a_session_lives_in_the_stack(stack: Stack, scenario: Scenario) -> None:
    if stack.missing:
        pytest.skip(stack.missing)
    live(stack, scenario)


@pytest.mark.parametrize("stack", APART, ids=str)
def test_a_session_lives_in_a_stack_that_changes_the_whole_process(stack: Stack) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", stacks_apart.__file__, stack.name],
        env=os.environ | QUIET | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    came = json.loads(done.stdout)
    assert came == dict.fromkeys(SCENARIOS | OF_THEIR_OWN[stack.name], "held"), "\n".join(came.values())
