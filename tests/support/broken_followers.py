"""Dispatchers with a mistake in what servers need: places, streams, completions, pages, clean-up and more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar
from unittest import mock

from turngate import Covered, Dispatcher, Message, Run, Turn, _effects
from turngate._completions import Completions
from turngate._core import STARTING, WAITING, Decided, RunRecord, TurnRecord
from turngate._effects import MemoryHome, Sessions
from turngate._log import guard
from turngate._messages import ListOfMessages
from turngate._places import Places
from turngate_verify.drivers.sabotage import Core, PublishesAgain, Sabotaged

T = TypeVar("T")


class WithPlaces(Sabotaged):
    """Has places of another kind."""

    kind: type[Places] = Places

    def __init__(self, *args: Any, turns_limit: int | None = None, **options: Any) -> None:
        super().__init__(*args, turns_limit=turns_limit, **options)
        if turns_limit is not None:
            self._effects.turns._places = self.places(turns_limit)

    def places(self, limit: int) -> Places:
        return self.kind(limit)


class CallsOneTooMany(WithPlaces):
    class kind(Places):
        def __init__(self, limit: int) -> None:
            super().__init__(limit + 1)


class CallsTheLastInLine(WithPlaces):
    class kind(Places):
        def give_back(self, turn: Turn) -> Turn | None:
            self.line = dict(reversed(self.line.items()))
            return super().give_back(turn)


class StarvesOthers(WithPlaces):
    """A busy session keeps its place from turn to turn, and no other session ever gets it."""

    class Keeping(Places):
        def __init__(self, limit: int, sessions: Sessions) -> None:
            super().__init__(limit)
            self._sessions = sessions
            self._keeping: set[str] = set()

        def give_back(self, turn: Turn) -> Turn | None:
            session = turn.run.session_id
            if not self._sessions.cores[session].queue:
                return super().give_back(turn)
            self._keeping.add(session)
            self.holders.remove(turn)
            return None

        def take(self, turn: Turn) -> bool:
            if turn.run.session_id in self._keeping:
                self._keeping.remove(turn.run.session_id)
                self.holders.add(turn)
            return super().take(turn)

    def places(self, limit: int) -> Places:
        return self.Keeping(limit, self._sessions)


class KeepsThePlaceWhileItSettles(WithPlaces):
    class kind(Places):
        def give_back(self, turn: Turn) -> Turn | None:
            return None

    class effects_class(PublishesAgain):
        def _has_ended(self, turn: Turn, decided: Decided) -> None:
            super()._has_ended(turn, decided)
            places = self.turns._places
            if places is not None and places.has(turn):
                following = Places.give_back(places, turn)
                if following is not None:
                    self.turns.start(following)


class LosesThePlaceOfTheCancelled(WithPlaces):
    class kind(Places):
        def give_back(self, turn: Turn) -> Turn | None:
            return None if turn.covered else super().give_back(turn)


class CallsTheCancelled(Sabotaged):
    class core(Core):
        def begin(self, turn: TurnRecord) -> bool:
            covered, turn.covered = turn.covered, turn in self.settling.values()
            try:
                return super().begin(turn)
            finally:
                turn.covered = covered


class TakesBackTheCalled(Dispatcher):
    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        return await super().cancel_run(run_id, key=key)


class TakesBackNoneInLine(Dispatcher):
    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        run = self.find(run_id)
        turn = run and run.turn
        if waiting_only and turn and turn.record.phase in (WAITING, STARTING):
            return Covered([])
        return await super().cancel_run(run_id, waiting_only=waiting_only, key=key)


class KnowsEverybody(Dispatcher):
    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        covered = await super().cancel_run(run_id, waiting_only=waiting_only, key=key)
        return Covered(covered.runs)


class LetsReadersSleep(Sabotaged):
    class turn_class(Turn):
        __slots__ = ()

        def _send(self) -> None:
            lead, self.run = self.run, Run(self.home, self.run.record)
            folded, self.folded = self.folded, ()
            super()._send()
            self.run, self.folded = lead, folded


class LetsFoldedReadersSleep(Sabotaged):
    class turn_class(Turn):
        __slots__ = ()

        def _send(self) -> None:
            folded, self.folded = self.folded, ()
            super()._send()
            self.folded = folded


class LetsFollowersSleep(Dispatcher):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._completions.__class__ = _Silent


class _Silent(Completions):
    def wake(self) -> None:
        pass


class TellsWhatIsLeft(Dispatcher):
    """Says nothing of the completions that it has forgotten."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._completions.__class__ = _Forgiving


class _Forgiving(Completions):
    def after(self, number: int) -> Any:
        return None if number < self._forgotten else super().after(number)


class ClosesAStepLater(Dispatcher):
    def begin_close(self, *, finish: float = 0.0) -> None:
        self._loop.check_loop().call_soon(lambda: super(ClosesAStepLater, self).begin_close(finish=finish))


class CutsCleanUpShort(Sabotaged):
    class turn_class(Turn):
        __slots__ = ()

        async def clean_up(self, awaitable: Awaitable[T], within: float = 5.0) -> T:
            async with asyncio.timeout(within):
                return await awaitable


class ShowsNobodyWaiting(Sabotaged):
    class home_class(MemoryHome):
        def foldable(self, turn: Turn) -> list[Run]:
            return []


class Pages:
    """A store in front of another one, whose pages may be wrong."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def put(self, messages: Sequence[Message]) -> None:
        await self._store.put(messages)

    async def list(self, session_id: str, **of_page: Any) -> ListOfMessages:
        return [*await self._store.list(session_id, **of_page)]

    async def of_run(self, run_id: str) -> ListOfMessages:
        return [*await self._store.of_run(run_id)]


class WithPages(Dispatcher):
    """Has a store in front of its store."""

    pages: type[Pages] = Pages

    def __init__(self, *args: Any, messages: Any, **options: Any) -> None:
        super().__init__(*args, messages=self.pages(messages), **options)


class SkipsBetweenPages(WithPages):
    class pages(Pages):
        async def list(self, session_id: str, **of_page: Any) -> ListOfMessages:
            page = await super().list(session_id, **{**of_page, "limit": None})
            return page[bool(of_page.get("after")) :][: of_page.get("limit")]


class FindsNoneThatWasFolded(WithPages):
    class pages(Pages):
        async def of_run(self, run_id: str) -> ListOfMessages:
            turn = await super().of_run(run_id)
            return turn if turn and turn[-1].run_id == run_id else []


class WakesUnguarded(Sabotaged):
    """What is raised by waking those who follow the completions stops the rest."""

    class effects_class(PublishesAgain):
        def _publish(self, record: RunRecord) -> None:
            def guard_others(about: str, call: Any, *args: Any) -> object:
                return call(*args) if call == self._completions.wake else guard(about, call, *args)

            with mock.patch.object(_effects, "guard", guard_others):
                super()._publish(record)
