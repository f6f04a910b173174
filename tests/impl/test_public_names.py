"""Names that callers use in their annotations, and the logger."""

from __future__ import annotations

import importlib.metadata
import logging
import typing
from collections.abc import Sequence

import pytest

import turngate
from turngate import Message


def test_what_callers_name_in_their_annotations_is_public() -> None:
    for name in ("WhenBusy", "OnComplete", "PromptOptions", "Runner", "Event", "__version__"):
        assert name in turngate.__all__
        assert hasattr(turngate, name)
    assert typing.get_args(turngate.WhenBusy) == ("fold", "queue", "interrupt", "reject")
    assert set(turngate.PromptOptions.__annotations__) == {
        "run_id",
        "attachments",
        "when_busy",
        "on_complete",
        "into",
        "data",
    }
    assert turngate.__version__ == importlib.metadata.version("turngate")


@pytest.mark.parametrize("name", ["Messages", "MemoryMessages", "SqliteMessages"])
def test_a_method_called_list_does_not_spoil_the_annotations_after_it(name: str) -> None:
    store = getattr(turngate, name)
    namespace = {**vars(turngate), "Sequence": Sequence, "Message": Message}
    hints = typing.get_type_hints(store.list, localns={**vars(store), **namespace})
    assert hints["return"] == list[Message]


def test_the_logger_is_as_it_was() -> None:
    assert logging.getLogger("turngate").level == logging.NOTSET


def test_a_dispatcher_has_no_public_name_but_those_that_callers_use() -> None:
    assert {name for name in dir(turngate.Dispatcher) if not name.startswith("_")} == {
        *("accept", "enter", "submit", "ask", "wait", "aclose", "begin_close"),
        *("cancel", "cancel_run", "cancel_all", "clear_queue"),
        *("hold", "hold_run", "resume", "resume_run", "stop", "move", "edit", "send_now"),
        *(
            "find",
            "session",
            "sessions",
            "session_count",
            "is_busy",
            "queued",
            "accepted_count",
            "cancel_mark",
        ),
        *("subscribe", "completions", "end_cursor", "cursor_order"),
        *("key_life", "continues_life", "knows_key"),
    }
    assert [name for name in vars(turngate.Dispatcher(echo)) if not name.startswith("_")] == ["messages"]


async def echo(turn: turngate.Turn) -> str:
    return turn.run.prompt
