"""Dispatchers with a mistake in what servers need: places, streams, completions, pages, clean-up and more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

from turngate import Covered, Dispatcher, Message, Run, Turn
from turngate._completions import Completions
from turngate._lifecycle import STARTING, WAITING
from turngate._messages import ListOfMessages
from turngate._places import Places
from turngate_verify.drivers.sabotage import Core, Sabotaged

T = TypeVar("T")


class WithPlaces(Dispatcher):
    """Has places of another kind."""

    kind: type[Places] = Places

    def __init__(self, *args: Any, turns_limit: int | None = None, **options: Any) -> None:
        super().__init__(*args, turns_limit=turns_limit, **options)
        if turns_limit is not None:
            self._places = self.kind(turns_limit)


class CallsOneTooMany(WithPlaces):
    class kind(Places):
        def __init__(self, limit: int) -> None:
            super().__init__(limit + 1)


class CallsTheLastInLine(WithPlaces):
    class kind(Places):
        def give_back(self, turn: Turn) -> Turn | None:
            self._line = dict(reversed(self._line.items()))
            return super().give_back(turn)


class StarvesOthers(Dispatcher):
    """A busy session keeps its place from turn to turn, and no other session ever gets it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._keeping: set[str] = set()

    def _give_back_place(self, turn: Turn) -> None:
        session = turn.run.session_id
        if self._sessions[session].queue:
            self._keeping.add(session)
        else:
            super()._give_back_place(turn)

    def _start(self, turn: Turn) -> None:
        if turn.run.session_id in self._keeping:
            self._keeping.remove(turn.run.session_id)
            turn.has_place = True
        super()._start(turn)


class KeepsThePlaceWhileItSettles(Dispatcher):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settling: list[Turn] = []

    def _give_back_place(self, turn: Turn) -> None:
        self._settling.append(turn)

    def _publish(self, run: Run) -> None:
        super()._publish(run)
        for turn in [each for each in self._settling if each.run is run]:
            self._settling.remove(turn)
            super()._give_back_place(turn)


class LosesThePlaceOfTheCancelled(Dispatcher):
    def _give_back_place(self, turn: Turn) -> None:
        if not turn.covered:
            super()._give_back_place(turn)


class CallsTheCancelled(Sabotaged):
    class core(Core):
        def begin(self, turn: Turn) -> bool:
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
        turn = run and self._turn_of(run)
        if waiting_only and turn and turn.phase in (WAITING, STARTING):
            return Covered([])
        return await super().cancel_run(run_id, waiting_only=waiting_only, key=key)


class KnowsEverybody(Dispatcher):
    async def cancel_run(self, run_id: str, *, waiting_only: bool = False, key: str | None = None) -> Covered:
        covered = await super().cancel_run(run_id, waiting_only=waiting_only, key=key)
        return Covered(covered.runs)


class LetsReadersSleep(Dispatcher):
    def _wake_listeners(self, turn: Turn) -> None:
        pass


class LetsFoldedReadersSleep(Dispatcher):
    def _wake_listeners(self, turn: Turn) -> None:
        if turn.run._listeners is not None:
            turn.run._listeners.wake()


class LetsFollowersSleep(Dispatcher):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        wake = self._completions.wake

        def wake_at_the_end() -> None:
            if self._closed:
                wake()

        self._completions.wake = wake_at_the_end  # type: ignore[method-assign]  # the mistake


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
        self._here().call_soon(lambda: super(ClosesAStepLater, self).begin_close(finish=finish))


class CutsCleanUpShort(Dispatcher):
    async def _clean_up(self, awaitable: Awaitable[T], within: float) -> T:
        async with asyncio.timeout(within):
            return await awaitable


class ShowsNobodyWaiting(Dispatcher):
    def _foldable(self, turn: Turn) -> list[Run]:
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


class WakesUnguarded(Dispatcher):
    """What is raised by waking those who follow the completions stops the rest."""

    def _guard(self, about: str, call: Any, *args: Any) -> object:
        if call == self._completions.wake:
            return call(*args)
        return super()._guard(about, call, *args)
