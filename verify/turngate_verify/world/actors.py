"""The actors in a closed world besides the callers: a scripted runner and a scripted store."""

from __future__ import annotations

import asyncio
import types
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

from turngate import MemoryMessages, Message, Run, Turn, TurnEnded
from turngate._messages import ListOfMessages
from turngate_model import Property
from turngate_verify.world.failures import RunnerFailed, StoreDown
from turngate_verify.world.monitor import Monitor
from turngate_verify.world.virtual_loop import VirtualLoop

Plan: TypeAlias = Literal["now", "slow", "stuck", "fails"] | BaseException
"""How a write will go. A slow write waits for an answer; a stuck write waits forever."""

CLEAN_UP = 4.0
"""The seconds that a runner has to clean up."""

_ACCEPTED_AS: ContextVar[str] = ContextVar("accepted as")
"""The run that was accepted in this context. Its turn must run in a copy of the context."""


@contextmanager
def accepted_as(run_id: str) -> Iterator[None]:
    """Mark the context as the one in which a run is accepted."""
    token = _ACCEPTED_AS.set(run_id)
    try:
        yield
    finally:
        _ACCEPTED_AS.reset(token)


class ScriptedRunner:
    """The runner of a closed world. Each call of it is a Player, which follows commands."""

    def __init__(self, loop: VirtualLoop, monitor: Monitor) -> None:
        self.loop = loop
        self.players: dict[str, Player] = {}
        """The calls in progress, by lead run."""
        self.left: list[LeftOver] = []
        """The tasks and threads that calls have left behind."""
        self.parts: dict[str, list[str]] = {}
        """The text that was written in each turn, by lead run."""
        self._monitor = monitor

    async def run(self, turn: Turn) -> str | None:
        """Act as the runner that the dispatcher calls."""
        session, lead = turn.run.session_id, turn.run.run_id
        self._expect_right_call(session, lead)
        self._monitor.saw_runner_called(turn.run)
        self.parts[lead] = []
        player = self.players[lead] = Player(self, turn)
        text = None
        try:
            text = await player.play()
            return text
        finally:
            del self.players[lead]
            written = "".join(self.parts[lead])
            kept = len(self.parts[lead]) or None
            produced = text if isinstance(text, str) else written
            self._monitor.saw_runner_end(turn.run, produced, written, kept)

    def _expect_right_call(self, session: str, lead: str) -> None:
        """Expect no other call in the session, and the context of the accept."""
        others = [player for player in self.players.values() if player.turn.run.session_id == session]
        if others:
            two = f"the runner is called for {lead} while its call for {others[0].turn.run.run_id} goes on"
            self._monitor.violate(Property.ONE_TURN, f"{two}: it should wait")
        if _ACCEPTED_AS.get("") != lead:
            elsewhere = f"the runner is called for {lead} in the context of {_ACCEPTED_AS.get('nobody')!r}"
            self._monitor.errors.append(AssertionError(f"{elsewhere}: it should be that of its accept"))

    def complain(self, what: str) -> None:
        """Have the monitor raise this at the next check."""
        self._monitor.errors.append(AssertionError(what))

    def is_running(self, turn: Turn) -> bool:
        """Return whether the call for this turn is still in progress."""
        player = self.players.get(turn.run.run_id)
        return player is not None and player.turn is turn

    def write(self, turn: Turn, text: str) -> None:
        """Write to a turn, remember the text, emit a note about it, and keep its length as data."""
        turn.write(text)
        parts = self.parts[turn.run.run_id]
        parts.append(text)
        turn.emit("written", text)
        turn.keep(len(parts))

    def write_if_allowed(self, turn: Turn, text: str) -> None:
        """Write to a turn that may be over; the dispatcher must refuse it exactly if it is."""
        allowed = self.is_running(turn)
        try:
            self.write(turn, text)
        except TurnEnded:
            self._expect_allowed(turn, "write", allowed, went=False)
        else:
            self._expect_allowed(turn, "write", allowed, went=True)

    async def fold_if_allowed(self, turn: Turn) -> None:
        """Fold into a turn that may be over; the dispatcher must refuse it exactly if it is."""
        allowed = self.is_running(turn)
        try:
            await turn.fold()
        except TurnEnded:
            self._expect_allowed(turn, "fold", allowed, went=False)
        else:
            self._expect_allowed(turn, "fold", allowed, went=True)

    def _expect_allowed(self, turn: Turn, what: str, allowed: bool, *, went: bool) -> None:
        if went and not allowed:
            late = f"the turn of {turn.run.run_id} takes a {what} when its runner has ended: it should refuse"
            self._monitor.violate(Property.LAST_WORD, late)
        elif allowed and not went:
            early = f"the turn of {turn.run.run_id} refuses a {what} while its runner is called"
            self._monitor.errors.append(AssertionError(early))


class Player:
    """One call of the runner: it waits for a command, carries it out, and waits again."""

    def __init__(self, runner: ScriptedRunner, turn: Turn) -> None:
        self.turn = turn
        self.swallows = 0
        """How many cancellations will not stop it."""
        self.tidy = False
        """Whether it cleans up when a cancellation stops it."""
        self.folded: list[Run] = []
        self._runner = runner
        self._commands: deque[tuple[Any, ...]] = deque()
        self._wake: asyncio.Future[None] | None = None
        self._cleaning: asyncio.Future[None] | None = None

    @property
    def cleans_up(self) -> bool:
        """Whether it is cleaning up, and waits for the clean-up to end."""
        return self._cleaning is not None and not self._cleaning.done()

    def cleaned_up(self) -> None:
        """End the clean-up when its task runs next."""
        assert self._cleaning is not None
        self._cleaning.set_result(None)

    @property
    def listens(self) -> bool:
        """Whether it waits for a command, and no cancel has reached it."""
        return self._wake is not None and not self._wake.done()

    def tell(self, *command: Any) -> None:
        """Have the runner write, fold, finish, fail or return nonsense, when its task runs next."""
        self._commands.append(command)
        if self._wake and not self._wake.done():
            self._wake.set_result(None)

    def obey(self, command: str) -> None:
        """Carry out a one-word command; ``strike`` cancels the task of the turn from outside."""
        match command:
            case "write" | "finish":
                self.tell(command, "text")
            case "fold" | "leave":
                self.tell(command)
            case "fail":
                self.tell("fail", RunnerFailed("the runner failed"))
            case "nonsense":
                self.tell("finish", 42)
            case "swallow":
                self.swallows += 1
            case "tidy":
                self.tidy = True
            case "strike":
                assert self.turn.task is not None
                self.turn.task.cancel()
            case _:
                raise ValueError(command)

    async def play(self) -> str | None:
        """Carry out commands until one of them ends the turn."""
        while True:
            try:
                if not self._commands:
                    self._wake = self._runner.loop.create_future()
                    await self._wake
            except asyncio.CancelledError:
                if self.swallows:
                    self.swallows -= 1
                    continue
                if self.tidy:
                    until = self._runner.loop.time() + CLEAN_UP
                    with suppress(TimeoutError):
                        await self.turn.clean_up(self._clean_up(until), within=CLEAN_UP)
                raise
            match self._commands.popleft():
                case "write", text:
                    self._runner.write(self.turn, text)
                case ("fold",):
                    await self._fold()
                case ("leave",):
                    self._runner.left.append(LeftOver(self._runner, self.turn))
                case "finish", text:
                    return text  # type: ignore[no-any-return]  # nonsense is returned on purpose
                case "fail", error:
                    raise error

    async def _fold(self) -> None:
        """Fold, and expect to get the follow-ups that were announced."""
        waiting = self.turn.waiting()
        folded = await self.turn.fold()
        self.folded += folded
        if folded != waiting:
            self._runner.complain(f"a fold takes {folded}, but {waiting} was said to be waiting")

    @types.coroutine
    def _clean_up(self, until: float) -> Generator[Any, Any, None]:
        """Clean up to the end. Nothing may cut it short before its time is up.

        This is a generator, because it may be dropped before it has begun, as a coroutine may not: drivers
        drop many worlds.
        """
        loop = self._runner.loop
        self._cleaning = loop.create_future()
        try:
            yield from self._cleaning
        except asyncio.CancelledError:
            if loop.time() < until:
                lead = self.turn.run.run_id
                self._runner.complain(f"the clean-up of the runner of {lead} is cut short")
            raise


class LeftOver:
    """A task, or a thread, that a runner has left behind and that still holds the turn."""

    def __init__(self, runner: ScriptedRunner, turn: Turn) -> None:
        self.turn = turn
        self._runner = runner
        self._wake = runner.loop.create_future()
        runner.loop.create_task(self._live(), name=f"left over of {turn.run.run_id}")

    @property
    def waits(self) -> bool:
        """Whether the task has not acted yet."""
        return not self._wake.done()

    def act(self) -> None:
        """Have the task write and fold, when it runs next."""
        self._wake.set_result(None)

    def act_as_thread(self) -> None:
        """Write like a thread: not on the loop, and between any two of its callbacks."""
        self._runner.write_if_allowed(self.turn, "from a thread")

    async def _live(self) -> None:
        try:
            await self._wake
        except asyncio.CancelledError:
            return  # some drivers cancel every task
        self._runner.write_if_allowed(self.turn, "left over")
        await self._runner.fold_if_allowed(self.turn)


class Store:
    """A store whose writes wait, get stuck or fail as planned, and otherwise reach a real store in memory."""

    def __init__(self, loop: VirtualLoop, monitor: Monitor) -> None:
        self.plans: deque[Plan] = deque()
        """How the next writes will go."""
        self.always: Plan = "now"
        """How a write goes if nothing is planned for it."""
        self.waiting: list[asyncio.Future[None]] = []
        """The doors of the writes that wait. Setting the result of a door opens it."""
        self.stuck: set[asyncio.Future[None]] = set()
        """The doors that are never opened."""
        self.doors: dict[str, asyncio.Future[None]] = {}
        """The door of the last write that waited, by the lead run of the turn."""
        self.about: dict[asyncio.Future[None], str] = {}
        """The lead run of the turn, by the door."""
        self.since: dict[str, float] = {}
        """When the first write of a turn began to wait, by its lead run."""
        self.calls = 0
        self.given_up = 0
        """How many stuck writes the dispatcher has cancelled."""
        self._loop = loop
        self._monitor = monitor
        self._inner = MemoryMessages()

    async def put(self, messages: Sequence[Message]) -> None:
        """Write as planned, and tell the monitor the result."""
        self.calls += 1
        reason: Any = "unwritten"
        given, messages = messages, tuple(messages)
        if isinstance(given, list):
            given.clear()  # a store may change the list that it was given
        self._monitor.saw_settling(messages[-1].run_id)
        try:
            plan = self.plans.popleft() if self.plans else self.always
            if plan in ("slow", "stuck"):
                await self._wait(messages[-1].run_id, stuck=plan == "stuck")
            elif plan == "fails":
                raise StoreDown("the disk is full")
            elif isinstance(plan, BaseException):
                raise plan
            await self._inner.put(messages)
            reason = messages[-1].finish_reason
        finally:
            self._monitor.saw_write(messages, reason)

    async def _wait(self, lead: str, *, stuck: bool) -> None:
        door = self.doors[lead] = self._loop.create_future()
        self.waiting.append(door)
        self.about[door] = lead
        self.since.setdefault(lead, self._loop.time())
        if stuck:
            self.stuck.add(door)
        try:
            await door
        except asyncio.CancelledError:
            self.given_up += stuck
            raise
        finally:
            self.waiting.remove(door)
            self.stuck.discard(door)
            del self.about[door]

    async def list(
        self, session_id: str, *, after: str | None = None, limit: int | None = None
    ) -> ListOfMessages:
        """Return messages of a session."""
        return await self._inner.list(session_id, after=after, limit=limit)

    async def of_run(self, run_id: str) -> ListOfMessages:
        """Return the messages of the turn that a run was part of."""
        return await self._inner.of_run(run_id)

    def overdue(self, within: float) -> Iterator[str]:
        """Yield a sentence for each turn whose writes together have waited for too long."""
        for door, lead in self.about.items():
            waited = self._loop.time() - self.since.get(lead, self._loop.time())
            if not door.done() and waited >= within:
                yield f"the writes of the turn of {lead} wait for {waited:g} s"
