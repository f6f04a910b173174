"""A process dies, with kill -9, at each chosen point; another one sees to what it has left."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatching import HANG, in_loop
from durable_process import POINTS
from ledgers import KINDS as ALL_KINDS
from ledgers import MakeLedger, ledgers, spec_of
from surroundings import ROOT
from turngate import RunComplete
from turngate.durable import DurableDispatcher, PostgresLedger
from turngate_verify.ledger_judge import completions, problems

KINDS = [kind for kind in ALL_KINDS if kind != "memory"]  # which dies with its process
DRIVER = ROOT / "tests" / "support" / "durable_process.py"
PATH = os.pathsep.join(str(ROOT / each) for each in ("impl", "model", "verify", "tests/support"))


def run_to_death(spec: str, point: str) -> set[str]:
    """Run a process until it kills itself; return what it was answered before."""
    done = subprocess.run(
        [sys.executable, DRIVER, spec, point],
        env={**os.environ, "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return set(done.stdout.split())


async def seen_to(make: MakeLedger, acknowledged: set[str], **options: Any) -> dict[str, RunComplete]:
    """Let a new process see to what is left; judge, and return how the runs ended."""

    async def agent(turn: Any) -> str:
        return f"attempt {turn.attempt}"

    async with DurableDispatcher(agent, make(), poll=0.05, **options) as d:
        if isinstance(
            d._ledger, PostgresLedger
        ):  # no need to wait until the lease of the dead worker has expired
            await d._ledger._working().fetch(
                f"DELETE FROM {d._ledger.schema}.worker WHERE worker <> $1", d._stepper.name
            )
        for run_id in acknowledged - {"cancelled"}:
            await d.wait(run_id)
        while await d.sessions():
            await asyncio.sleep(0.02)
        assert await problems(d._ledger, acknowledged - {"cancelled"}) == []
        return {each.run_id: each for each in await completions(d._ledger)}


@pytest.mark.requirement("DURABLE", "ADOPTED")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_runs_of_a_killed_process_are_recovered(kind: str, point: str, tmp_path: Path) -> None:
    @in_loop
    async def check(make: MakeLedger, acknowledged: set[str]) -> None:
        ended = await seen_to(make, acknowledged)
        if point == "in the runner":
            assert (ended["a"].outcome, ended["a"].text) == ("lost", "half of ")
            assert ended["a"].error
            assert ended["b"].outcome == "finished"
        if point == "between accept and enter":
            assert ended["a"].outcome == "finished"
        if point == "cancelled":
            assert [ended[each].outcome for each in "abc"] == ["finished", "cancelled", "cancelled"]

    with ledgers(kind, tmp_path) as make:
        check(make, run_to_death(spec_of(make()), point))


@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_whose_process_died_runs_again_if_it_may(kind: str, tmp_path: Path) -> None:
    @in_loop
    async def check(make: MakeLedger, acknowledged: set[str]) -> None:
        ended = await seen_to(make, acknowledged, on_death="retry")
        assert (ended["a"].outcome, ended["a"].text) == ("finished", "attempt 2")
        assert ended["b"].text == "attempt 1"

    with ledgers(kind, tmp_path) as make:
        check(make, run_to_death(spec_of(make()), "in the runner"))


LOST = "run 'a' of session 's' is lost"
AGAIN = "run 'a' of session 's' runs again, attempt 2 of 3"
NEXT = "run 'b' of session 's' goes on here"
CANCELLED = "run 'b' of session 's' is cancelled"
ENTERED = "run 'a' of session 's' is active now"


@pytest.mark.parametrize(
    ("point", "on_death", "warned", "informed"),
    [
        (
            "in the runner",
            "fail",
            {LOST},
            {NEXT, "session 's' has 1 more run in"},
        ),
        (
            "in the runner",
            "retry",
            {AGAIN},
            {"session 's' has 2 more runs in"},
        ),
        ("cancelled", "fail", {CANCELLED}, set()),
        ("between accept and enter", "fail", set(), {ENTERED}),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_log_reports_the_recovery_of_a_killed_process(
    kind: str,
    point: str,
    on_death: str,
    warned: set[str],
    informed: set[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    @in_loop
    async def see_to(make: MakeLedger, acknowledged: set[str]) -> None:
        await seen_to(make, acknowledged, on_death=on_death)

    with ledgers(kind, tmp_path) as make, caplog.at_level(logging.INFO, "turngate"):
        see_to(make, run_to_death(spec_of(make()), point))
    said = {
        level: {
            each.getMessage() for each in caplog.records if each.levelno == level and each.name == "turngate"
        }
        for level in (logging.WARNING, logging.INFO)
    }
    assert len(said[logging.WARNING]) == len(warned)
    for level, begins in ((logging.WARNING, warned), (logging.INFO, informed)):
        assert all(any(each.startswith(what) for each in said[level]) for what in begins), said
