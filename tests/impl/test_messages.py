from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import pytest

from dispatching import in_loop
from turngate import MemoryMessages, Message, Messages, SqliteMessages


def message(message_id: str, text: str = "text", session: str = "s", **more: Any) -> Message:
    return Message(message_id, session, "run", "user", text, **more)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Messages:
    return MemoryMessages() if request.param == "memory" else SqliteMessages(tmp_path / "messages.db")


@in_loop
async def test_an_unknown_session_has_no_messages(store: Messages) -> None:
    assert await store.list("nobody") == []


@in_loop
async def test_messages_are_listed_by_session_in_the_order_in_which_they_were_put(store: Messages) -> None:
    await store.put([message("b"), message("a")])
    await store.put([message("c"), message("d", session="t")])
    assert await store.list("s") == [message("b"), message("a"), message("c")]
    assert await store.list("t") == [message("d", session="t")]


@in_loop
async def test_a_message_whose_id_is_known_replaces_the_old_one_in_its_place(store: Messages) -> None:
    await store.put([message("a"), message("b"), message("c")])
    await store.put([message("b", "new", finish_reason="canceled"), message("d")])
    assert await store.list("s") == [
        message("a"),
        message("b", "new", finish_reason="canceled"),
        message("c"),
        message("d"),
    ]


@in_loop
async def test_a_listing_is_the_callers_own(store: Messages) -> None:
    await store.put([message("a")])
    (await store.list("s")).clear()
    assert await store.list("s") == [message("a")]


@in_loop
async def test_putting_nothing_changes_nothing(store: Messages) -> None:
    await store.put([])
    assert await store.list("s") == []


@in_loop
async def test_repr() -> None:
    memory = MemoryMessages()
    await memory.put([message("a"), message("b", session="t")])
    assert repr(memory) == "<MemoryMessages of 2 sessions>"
    assert repr(SqliteMessages("/messages.db")) == "SqliteMessages('/messages.db')"


def test_what_reads_the_types_of_a_message_finds_its_words() -> None:
    """As libraries do that check or write values by their types."""
    types = get_type_hints(Message)
    assert get_args(types["role"]) == ("user", "assistant")
    assert types["finish_reason"] == Literal["end_turn", "canceled", "error"] | None
