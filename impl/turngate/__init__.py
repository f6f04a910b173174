"""A dispatcher for agent servers: one turn at a time per session, exactly one RunComplete per run."""

from turngate._dispatcher import Dispatcher
from turngate._errors import (
    AlreadyEntered,
    ClosedFromRunner,
    DispatcherClosed,
    EmptyPrompt,
    MissingSession,
    QueueFull,
    RunConflict,
    SessionBusy,
    SubscriberCutOff,
    TurnEnded,
    TurngateError,
    UndeclaredMove,
    UnknownRun,
    UnknownSchema,
    WrongLoop,
)
from turngate._events import Delta, Event, RunComplete, Subscription
from turngate._lifecycle import State
from turngate._messages import MemoryMessages, Message, Messages
from turngate._run import Attachment, Covered, OnComplete, PromptOptions, Run, Runner, Turn, WhenBusy
from turngate._sqlite import SqliteMessages

__version__ = "0.1.0"

__all__ = [
    "AlreadyEntered",
    "Attachment",
    "ClosedFromRunner",
    "Covered",
    "Delta",
    "Dispatcher",
    "DispatcherClosed",
    "EmptyPrompt",
    "Event",
    "MemoryMessages",
    "Message",
    "Messages",
    "MissingSession",
    "OnComplete",
    "PromptOptions",
    "QueueFull",
    "Run",
    "RunComplete",
    "RunConflict",
    "Runner",
    "SessionBusy",
    "SqliteMessages",
    "State",
    "SubscriberCutOff",
    "Subscription",
    "Turn",
    "TurnEnded",
    "TurngateError",
    "UndeclaredMove",
    "UnknownRun",
    "UnknownSchema",
    "WhenBusy",
    "WrongLoop",
    "__version__",
]
