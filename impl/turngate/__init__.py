"""A dispatcher for agent servers: one turn at a time per session, exactly one RunComplete per run."""

from turngate._completions import CompletionStream
from turngate._core import State
from turngate._dispatcher import Dispatcher
from turngate._errors import (
    AlreadyEntered,
    ClosedFromRunner,
    CursorExpired,
    DispatcherClosed,
    EmptyPrompt,
    KeyConflict,
    MissingSession,
    NotRunning,
    NotWaiting,
    OutcomeUnknown,
    QueueFull,
    RunConflict,
    SessionBusy,
    SubscriberCutOff,
    TurnEnded,
    TurngateError,
    UndeclaredMove,
    UnknownRun,
    UnknownSchema,
    WouldDeadlock,
    WrongLoop,
)
from turngate._events import Delta, Event, Moved, Note, Outcome, RunComplete, Subscription
from turngate._handles import Covered, Run, Runner, SessionView, TextStream, Turn
from turngate._messages import MemoryMessages, Message, Messages
from turngate._prompt import UNCHANGED, Attachment, OnComplete, PromptOptions, Unchanged, WhenBusy
from turngate._sqlite import SqliteMessages

__version__ = "0.1.0"

__all__ = [
    "UNCHANGED",
    "AlreadyEntered",
    "Attachment",
    "ClosedFromRunner",
    "CompletionStream",
    "Covered",
    "CursorExpired",
    "Delta",
    "Dispatcher",
    "DispatcherClosed",
    "EmptyPrompt",
    "Event",
    "KeyConflict",
    "MemoryMessages",
    "Message",
    "Messages",
    "MissingSession",
    "Moved",
    "NotRunning",
    "NotWaiting",
    "Note",
    "OnComplete",
    "Outcome",
    "OutcomeUnknown",
    "PromptOptions",
    "QueueFull",
    "Run",
    "RunComplete",
    "RunConflict",
    "Runner",
    "SessionBusy",
    "SessionView",
    "SqliteMessages",
    "State",
    "SubscriberCutOff",
    "Subscription",
    "TextStream",
    "Turn",
    "TurnEnded",
    "TurngateError",
    "Unchanged",
    "UndeclaredMove",
    "UnknownRun",
    "UnknownSchema",
    "WhenBusy",
    "WouldDeadlock",
    "WrongLoop",
    "__version__",
]
