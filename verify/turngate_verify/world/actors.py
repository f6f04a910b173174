"""Who acts in a closed world besides the callers: a runner and a store that do what they are told."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from turngate import MemoryMessages, Message, Run, Turn, TurnEnded

if TYPE_CHECKING:
    from turngate_verify.world.world import World

Plan: TypeAlias = Literal["now", "slow", "fails"] | BaseException


class StoreDown(Exception):
    """The store could not write."""


class RunnerFailed(Exception):
    """The runner has failed."""


class Player:
    """One call of the runner: waits for a command, carries it out, waits again."""

    def __init__(self, world: World, turn: Turn) -> None:
        self.turn = turn
        self.swallows = 0
        """How many cancellations it will not be stopped by."""
        self.folded: list[Run] = []
        self._world = world
        self._commands: deque[tuple[Any, ...]] = deque()
        self._wake: asyncio.Future[None] | None = None

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
        """Do what is said in one word; ``strike`` cancels its task from outside."""
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
                    self._wake = self._world.loop.create_future()
                    await self._wake
            except asyncio.CancelledError:
                if not self.swallows:
                    raise
                self.swallows -= 1
                continue
            match self._commands.popleft():
                case "write", text:
                    self._world.write(self.turn, text)
                case ("fold",):
                    self.folded += await self.turn.fold()
                case ("leave",):
                    self._world.left.append(LeftOver(self._world, self.turn))
                case "finish", text:
                    return text  # type: ignore[no-any-return]  # nonsense is returned on purpose
                case "fail", error:
                    raise error


class LeftOver:
    """What a runner has left behind and still holds the turn: a task, or a thread beside the loop."""

    def __init__(self, world: World, turn: Turn) -> None:
        self.turn = turn
        self._world = world
        self._wake = world.loop.create_future()
        world.loop.create_task(self._live(), name=f"left over of {turn.run.run_id}")

    @property
    def waits(self) -> bool:
        """Whether it has not done yet what it is there for."""
        return not self._wake.done()

    def act(self) -> None:
        """Have the task write and fold, when it runs next."""
        self._wake.set_result(None)

    def act_as_thread(self) -> None:
        """Write, as a thread does: outside of the loop, between any two of its callbacks."""
        self._world.write_if_allowed(self.turn, "from a thread")

    async def _live(self) -> None:
        try:
            await self._wake
        except asyncio.CancelledError:
            return  # as it may be, with everything else
        self._world.write_if_allowed(self.turn, "left over")
        allowed = self._world.is_running(self.turn)
        try:
            await self.turn.fold()
        except TurnEnded:
            self._world.see_allowed(self.turn, "fold", allowed, went=False)
        else:
            self._world.see_allowed(self.turn, "fold", allowed, went=True)


class Store:
    """A real store behind a door that can be held shut or broken down."""

    def __init__(self, world: World) -> None:
        self.plans: deque[Plan] = deque()
        """What the next writes will be like."""
        self.always: Plan = "now"
        """What a write is like when nothing is planned for it."""
        self.waiting: list[asyncio.Future[None]] = []
        """Writes that wait to be let through."""
        self.doors: dict[str, asyncio.Future[None]] = {}
        """The same, by the lead run of the turn that is written."""
        self.about: dict[asyncio.Future[None], str] = {}
        """Of whose turn they are."""
        self.since: dict[str, float] = {}
        """When the first write of a turn began to wait, by its lead run."""
        self.calls = 0
        self._world = world
        self._inner = MemoryMessages()

    async def put(self, messages: Sequence[Message]) -> None:
        """Write as planned, and let the monitor know what came of it."""
        self.calls += 1
        reason: Any = "unwritten"
        given, messages = messages, tuple(messages)
        if isinstance(given, list):
            given.clear()  # a store may do with a list what it likes
        try:
            plan = self.plans.popleft() if self.plans else self.always
            if plan == "slow":
                door = self.doors[messages[-1].run_id] = self._world.loop.create_future()
                self.waiting.append(door)
                self.since.setdefault(messages[-1].run_id, self._world.loop.time())
                self.about[door] = messages[-1].run_id
                try:
                    await door
                finally:
                    self.waiting.remove(door)
                    del self.about[door]
            elif plan == "fails":
                raise StoreDown("the disk is full")
            elif isinstance(plan, BaseException):
                raise plan
            await self._inner.put(messages)
            reason = messages[-1].finish_reason
        finally:
            self._world.saw_write(messages, reason)

    async def list(self, session_id: str) -> list[Message]:
        """Return what is written."""
        return await self._inner.list(session_id)
