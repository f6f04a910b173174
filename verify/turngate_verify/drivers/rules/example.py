"""One example of the rules: a world, the calls made on it so far, and what the next rule can choose from.

The modules callers, subscribers, runners, stores and loops each add the rules
of one kind of actor. They write a rule like this:

    @when(lambda self: self.accepted)
    @rule(run=one_of(lambda self: self.accepted))
    def enter(self, run: str) -> None: ...

Hypothesis calls ``enter`` only while there are accepted runs, and draws one of
them for it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from hypothesis import stateful
from hypothesis import strategies as st

from turngate import Dispatcher
from turngate_model import Property
from turngate_model.lifecycle import DeclaredState
from turngate_verify.drivers.rules.program import RuleCall
from turngate_verify.drivers.rules.reached import DeclaredMovesNoted, Tally
from turngate_verify.drivers.rules.readers import Reader
from turngate_verify.drivers.rules.world import RulesWorld
from turngate_verify.world.expecting import Broken
from turngate_verify.world.world import without_log

SETTLE_TIMEOUT = 5.0
QUEUE_LIMIT = 5
COMPLETE_LIMIT = 3
COMPLETIONS_KEPT = 4

SESSIONS = st.sampled_from(("s", "s", "s", "t", "u"))
"""Draws a session. Most prompts go to the same one, or the sessions would hardly ever be busy."""
_STEPS_AFTER = st.sampled_from((0, 0, 1, 1, 2, 5))
"""Draws how many callbacks the loop runs after a rule."""

RULES: list[str] = []
"""The names of all rules. The decorator ``rule`` adds them."""

RuleMethod: TypeAlias = Callable[..., None]


def rule(**arguments: st.SearchStrategy[Any]) -> Callable[[RuleMethod], RuleMethod]:
    """Make a method a rule of Hypothesis, with a strategy for each of its arguments.

    Every rule has one more argument, ``then``: the loop runs this many callbacks
    after the method. The world is checked after the method and after each
    callback, also when the rule is called by hand.
    """

    def decorate(method: RuleMethod) -> RuleMethod:
        @functools.wraps(method)
        def checked(self: Example, then: int = 0, **drawn: Any) -> None:
            self.program.append(RuleCall(method.__name__, {**drawn, "then": then}))
            self._follow(method, drawn)
            for _ in range(then):
                self._judge(self._run_callback)

        RULES.append(method.__name__)
        make_rule: Any = stateful.rule
        decorated: RuleMethod = make_rule(**arguments, then=_STEPS_AFTER)(checked)
        return decorated

    return decorate


def when(there_is: Callable[[Example], object]) -> Callable[[RuleMethod], RuleMethod]:
    """Let Hypothesis choose a rule only while the condition is true of the example."""
    return stateful.precondition(lambda self: bool(there_is(self)))


def one_of(choices: Callable[[Example], Sequence[Any]]) -> st.SearchStrategy[Any]:
    """Draw one of the choices that the example offers at this moment."""
    return st.runner().flatmap(lambda self: st.sampled_from(choices(self)))


class Example(stateful.RuleBasedStateMachine):
    """One example: a world, and the calls made on it."""

    make: ClassVar[type[Dispatcher]] = Dispatcher
    claimed: ClassVar[tuple[Property, ...]] = ()
    """The properties that a known-bad design is said to break. The example ignores what else it breaks."""
    tally: ClassVar[Tally] = Tally()

    def __init__(self) -> None:
        super().__init__()
        self.tally.examples += 1
        self.world = self._new_world(None)
        self.program: list[RuleCall] = []
        """The rules called so far."""
        self.readers: list[Reader] = []
        self.hooks: dict[str, str] = {}
        """What the ``on_complete`` of each run does; the empty string if the run has none."""
        self._callers: list[asyncio.Task[Any]] = []
        self._broken = False

    def _new_world(self, turns_limit: int | None) -> RulesWorld:
        """Return a world in which nothing has happened yet."""
        return RulesWorld(
            self.make,
            claimed=self.claimed,
            declared=DeclaredMovesNoted(self.tally.reached),
            turns_limit=turns_limit,
            settle_timeout=SETTLE_TIMEOUT,
            queue_limit=QUEUE_LIMIT,
            delta_limit=1,
            complete_limit=COMPLETE_LIMIT,
            completions_kept=COMPLETIONS_KEPT,
        )

    # What a rule can choose from.

    @property
    def runs(self) -> list[str]:
        """Every run there ever was."""
        return [*self.world.runs]

    @property
    def known(self) -> list[str]:
        """The runs that the dispatcher knows: those in flight, and those whose completions it keeps."""
        return [run for run in self.runs if self.world.knows(run)]

    @property
    def forgotten(self) -> list[str]:
        """The runs whose completions the dispatcher no longer keeps."""
        return [run for run in self.runs if not self.world.knows(run)]

    @property
    def accepted(self) -> list[str]:
        """The runs that have not entered."""
        return [
            run
            for session in self.world.monitor.sessions.values()
            for run in session.in_state(DeclaredState.ACCEPTED)
            if run in self.world.runs
        ]

    @property
    def uncovered(self) -> list[str]:
        """The runs in flight that no cancel covers yet."""
        return [
            run
            for session in self.world.monitor.sessions.values()
            for run in session.in_flight
            if run not in session.covered
        ]

    @property
    def queued(self) -> list[str]:
        """The runs that wait in a queue."""
        return [run for session in self.world.monitor.sessions.values() for run in session.queue]

    @property
    def in_line(self) -> list[str]:
        """The runs that wait, and then some others, which must be refused."""
        waiting = [run for session in self.world.monitor.sessions.values() for run in session.line]
        return [*waiting, *waiting, *self.runs, "no such run"]

    @property
    def held(self) -> list[str]:
        """The runs that are held."""
        return [
            run for session in self.world.monitor.sessions.values() for run in session.line
            if run in session.held
        ]  # fmt: skip

    @property
    def behind_another(self) -> list[str]:
        """The runs that wait in a session in which another one waits too."""
        lines = [session.line for session in self.world.monitor.sessions.values()]
        return [run for line in lines if len(line) > 1 for run in line]

    @property
    def settling_and_held(self) -> list[str]:
        """The sessions whose turn is being written while something is held."""
        sessions = self.world.monitor.sessions.items()
        return [name for name, each in sessions if each.turn and not each.running and each.held]

    @property
    def turns(self) -> list[str | None]:
        """The turns that a caller may mean: any, most of the time."""
        return [None, None, *self.players, *self.runs[-1:]]

    @property
    def players(self) -> list[str]:
        """The lead runs of the turns whose runner has not returned."""
        return [*self.world.runner.players]

    @property
    def cleaning(self) -> list[str]:
        """The lead runs of the turns whose runner is cleaning up."""
        return [run for run, player in self.world.runner.players.items() if player.cleans_up]

    @property
    def followed(self) -> list[str]:
        """The players whose session has a queue."""
        sessions = self.world.monitor.sessions
        return [run for run in self.players if sessions[self.world.runs[run].session_id].queue]

    @property
    def slow_writes(self) -> range:
        """The positions of the slow writes that still wait."""
        return range(sum(not door.done() for door in self.world.store.waiting))

    @property
    def callers(self) -> list[asyncio.Task[Any]]:
        """The tasks of callers and readers who wait for something."""
        self._callers = [task for task in self._callers if not task.done()]
        return self._callers

    def sessions_of(self, runs: list[str]) -> list[str]:
        """Return the session of each run, then every session once more: the more runs, the likelier."""
        return [*(self.world.runs[run].session_id for run in runs), *"stu"]

    # How the example follows a rule.

    def _follow(self, method: RuleMethod, drawn: dict[str, Any]) -> None:
        """Call the method of a rule, and check the world after it."""
        self.tally.steps += 1
        self.tally.reached.add(f"rule: {method.__name__}")
        self._judge(lambda: method(self, **drawn))
        self._judge(self.world.check)

    def _run_callback(self, choice: int = 0) -> None:
        """Run one ready callback, if there is any, and check the world after it."""
        ready = self.world.loop.ready
        if ready:
            self.world.loop.step(choice % len(ready))
            self.world.check()

    def _judge(self, act: Callable[[], None]) -> None:
        """Act; note and raise what goes wrong.

        With ``claimed``, ignore everything but a broken property: the world
        raises Broken for the claimed ones only.
        """
        try:
            with without_log():
                act()
        except Exception as exc:
            if isinstance(exc, Broken) or not self.claimed:
                self._broken = True
                self.tally.note(exc, tuple(self.program))
                raise
