"""What is wrong on purpose in chaos, so that each check is seen to fail.

Try one with `python tools/chaos.py --sabotage NAME`.

Each is put into every process. `found` are words of which the judgement has one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from chaos_clients import Onlooker, Roads
from turngate import RunComplete
from turngate._core import SessionCore
from turngate.durable import DurableDispatcher
from turngate.durable._turns import KnownRuns


class Sabotage(NamedTuple):
    """Something wrong, and the words by which the judgement says so."""

    apply: Callable[[], None]
    found: tuple[str, ...]


_dice = random.Random(1)


def onlooker_skips() -> None:
    """An onlooker misses a RunComplete now and then."""
    hear = Onlooker._hear

    def skip_some(self: Onlooker, event: Any, cursor: str | None) -> None:
        is_last = isinstance(event, RunComplete) and event.run_id.startswith("last-")
        if is_last or not isinstance(event, RunComplete) or _dice.random() > 0.02:
            hear(self, event, cursor)

    Onlooker._hear = skip_some  # type: ignore[method-assign]


def onlooker_hears_twice() -> None:
    """An onlooker is told a RunComplete twice now and then."""
    hear = Onlooker._hear

    def hear_twice(self: Onlooker, event: Any, cursor: str | None) -> None:
        hear(self, event, cursor)
        if isinstance(event, RunComplete) and _dice.random() < 0.02:
            hear(self, event, cursor)

    Onlooker._hear = hear_twice  # type: ignore[method-assign]


def forgotten_cursor() -> None:
    """A client comes back with a cursor that no server has given."""
    choose = Onlooker._choose_cursor

    def make_up(self: Onlooker) -> str | None:
        found = choose(self)
        return None if found is None else "made-up:1:2"

    Onlooker._choose_cursor = make_up  # type: ignore[method-assign]


def resend_without_key() -> None:
    """A call that is sent again has another key than the first time."""
    copy = Roads._copy

    async def forget_key(self: Roads, request: Any, body: bytes) -> Any:
        if "/runs" not in request.url.path or request.url.path.startswith("/v1/runs"):
            request.headers["Idempotency-Key"] = f"{_dice.random()}"
        return await copy(self, request, body)

    Roads._copy = forget_key  # type: ignore[method-assign]


def edit_lost() -> None:
    """An edit is acknowledged, and changes nothing."""
    edit = SessionCore.edit

    def lose(self: SessionCore, run: Any, changes: Any) -> Any:
        return edit(self, run, changes._replace(prompt=run.prompt, data=run.data))

    SessionCore.edit = lose  # type: ignore[method-assign]


def hold_forgotten() -> None:
    """A hold is written down, and holds nothing."""

    def forget(self: SessionCore, waiting: Any, *, held: bool) -> Any:
        return [] if held else real(self, waiting, held=held)

    real = SessionCore._set_held
    SessionCore._set_held = forget  # type: ignore[method-assign]


def another_outcome() -> None:
    """Who waits is told another text than the ledger keeps."""
    wait = DurableDispatcher.wait

    async def tell(self: DurableDispatcher, run_id: str) -> RunComplete:
        return (await wait(self, run_id))._replace(text="something else")

    DurableDispatcher.wait = tell  # type: ignore[method-assign]


def handles_kept() -> None:
    """A process never lets go of the handles of its runs."""
    kept: list[Any] = []
    handle_of = KnownRuns.handle_of

    def keep(self: KnownRuns, *about: Any) -> Any:
        kept.append(handle_of(self, *about))
        return kept[-1]

    KnownRuns.handle_of = keep  # type: ignore[method-assign,assignment]


def answered_before_saved() -> None:
    """A prompt is acknowledged that was never accepted."""
    submit = DurableDispatcher.submit

    async def forget(self: DurableDispatcher, session_id: str, prompt: str, **options: Any) -> Any:
        return None if _dice.random() < 0.02 else await submit(self, session_id, prompt, **options)

    DurableDispatcher.submit = forget  # type: ignore[method-assign]


SABOTAGES = {
    "another-outcome": Sabotage(another_outcome, ("a caller was told",)),
    "answered-before-saved": Sabotage(answered_before_saved, ("DURABLE",)),
    "edit-lost": Sabotage(edit_lost, ("AS_EDITED",)),
    "forgotten-cursor": Sabotage(forgotten_cursor, ("no purge has passed it",)),
    "handles-kept": Sabotage(handles_kept, ("NO_RESIDUE",)),
    "hold-forgotten": Sabotage(hold_forgotten, ("HELD", "hold of")),
    "onlooker-hears-twice": Sabotage(onlooker_hears_twice, ("comes twice",)),
    "onlooker-skips": Sabotage(onlooker_skips, ("are missing",)),
    "resend-without-key": Sabotage(resend_without_key, ("times in the history",)),
}
