"""The eight known-bad designs for processes that die, put into the real code. Each must be found.

`no-version`            a step is saved even if the session has changed since it was loaded
`no-fence`              a turn that was given up may still finish
`start-before-commit`   the runner is called before the step that made its run active is saved
`reused-worker`         a process that comes back under its old name believes that it still holds its turns
`answer-lost-retried`   the answer is lost although the step was saved, and the step is done again
`notify-only-cancel`    a cancel reaches the turn by a notification alone, and the finish does not look again
`orphaned-accept`       runs that a dead process had accepted and not entered wait for that process
`reap-without-handoff`  the turn of a dead process is completed, but its queue does not move
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from turngate._core import Queue
from turngate.durable import DurableDispatcher
from turngate.durable._ledger import Orphans
from turngate.durable._records import Ask, Decision, Loaded
from turngate.durable._step import Fenced, Step
from turngate.durable._swap import LostSends
from turngate_verify.drivers.ledger_schedules import Explored, Scenario, explore
from turngate_verify.world.memory_ledger import MemoryLedger, Tables

_A_KILL = Scenario("two submits and a kill", ((0, "submit", "a"), (1, "submit", "b")), ("kill",))
_A_LEASE = Scenario("a submit and a lost lease", ((0, "submit", "a"),), ("lease",))
_TWO_AND_A_LEASE = Scenario(
    "two submits and a lost lease", ((0, "submit", "a"), (1, "submit", "b")), ("lease",), looks=1
)
_A_CANCEL = Scenario("a submit and a cancel", ((0, "submit", "a"), (1, "cancel", "")))
_ANSWER_OF_CANCEL = Scenario(
    "a submit, a submit and a cancel whose answer may be lost",
    ((1, "submit", "a"), (1, "submit", "b"), (0, "cancel", "")),
    ("lose",),
)
_AN_ACCEPT = Scenario("an accept and a kill", ((0, "accept", "a"),), ("kill",))


class _Hasty(DurableDispatcher):
    """Calls the runner before the step is saved."""

    def __init__(self, runner: Any, ledger: Any, **options: Any) -> None:
        super().__init__(runner, ledger, **options)
        step_of = ledger.step

        async def step(ask: Ask, decide: Any) -> Decision:
            def hasty(loaded: Loaded, step_id: str) -> Decision:
                decision: Decision = decide(loaded, step_id)
                decided, _ = decision.result
                if decided.started is not None:
                    self._turns.start(decided, 0)
                    decided.started = None
                return decision

            saved: Decision = await step_of(ask, hasty)
            return saved

        ledger.step = step


def _any_fence(self: Step, fence: int) -> Any:
    if self.core.turn is None:
        raise Fenced("there is no turn")
    return self.core.turn


def _blind_finish(self: Step, fence: int, text: str, error: str | None, kept: str | None, *_: object) -> None:
    turn = self._turn(fence)
    turn.covered = False
    self._settle(turn, text, error, kept)


async def _same_name(self: MemoryLedger, lease: float) -> int:
    self.tables.workers.add(self.process + 1)
    return self.process + 1


def _reap_without_handoff(reap: Callable[..., Any]) -> Callable[..., Any]:
    def reaping(self: Step, *, retry: bool) -> Any:
        queue, self.core.queue = self.core.queue, Queue()
        try:
            return reap(self, retry=retry)
        finally:
            self.core.queue = queue

    return reaping


def _forget_accepted(debts: Callable[..., Any]) -> Callable[..., Any]:
    async def owing(self: MemoryLedger, enter_timeout: float) -> Orphans:
        found: Orphans = await debts(self, enter_timeout)
        return found._replace(unentered=[])

    return owing


Patches = tuple[tuple[Any, str, Any], ...]

#: Lets a dead worker save all the same. This is not a bad design, because the fence alone must suffice.
NO_LEASE: Patches = ((Tables, "may_save", lambda *_: True),)
SABOTAGE: dict[str, tuple[Patches, Scenario]] = {
    "no-version": (((Tables, "is_at", lambda *_: True),), _A_CANCEL),
    "no-fence": (((Step, "_turn", _any_fence), *NO_LEASE), _TWO_AND_A_LEASE),
    "reused-worker": (((MemoryLedger, "register", _same_name),), _A_LEASE),
    "answer-lost-retried": (((LostSends, "saved", lambda *_, **__: None),), _ANSWER_OF_CANCEL),
    "notify-only-cancel": (((Step, "finish", _blind_finish),), _A_CANCEL),
    "orphaned-accept": (((MemoryLedger, "orphans", _forget_accepted(MemoryLedger.orphans)),), _AN_ACCEPT),
    "reap-without-handoff": (((Step, "reap", _reap_without_handoff(Step.reap)),), _A_KILL),
    "start-before-commit": ((), _A_CANCEL),
}
"""For each design, the code that it replaces, and a scenario that shows it."""


@contextmanager
def patched(patches: Patches) -> Iterator[None]:
    """Replace some of the real code."""
    with ExitStack() as stack:
        for owner, name, instead in patches:
            stack.enter_context(patch.object(owner, name, instead))
        yield


@contextmanager
def sabotaged(design: str) -> Iterator[tuple[Any, Scenario]]:
    """Put a bad design into the real code; yield a maker of dispatchers, and a scenario that shows it."""
    patches, scenario = SABOTAGE[design]
    with patched(patches):
        yield (_Hasty if design == "start-before-commit" else DurableDispatcher), scenario


def find_ledger_sabotage(design: str) -> Explored:
    """Put a bad design into the real code, and try every schedule of its scenario until one shows it."""
    with sabotaged(design) as (make, scenario):
        return explore(scenario, make=make)
