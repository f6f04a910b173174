"""Small scenarios: what callers, runner and store do around a dispatcher. Only the order is left open.

An operation is spelled as in a told schedule: ``accept a``, ``accept a queue``
(or interrupt, reject, hook), ``submit a``, ``enter a``, ``release a``,
``cancel``, ``cancel t`` (of another session), ``cancel run a``, ``take back a``
(cancel it while its runner has not been called), ``cancel all``, ``clear``,
``wait a``, ``give up a`` (the waiter's task is cancelled), ``stream a`` (its
text, to its end), ``tail a`` (the same from some character on), ``completions``
(to their end), ``page`` (one more message of session s, in a task), ``close``,
``close gently`` (let what is in flight finish for a while), ``begin close``
(and do not wait), ``read`` (events, to their end), ``hold`` (the dispatcher
open, in a task that closes it at its end) and ``leave`` (end that task).
Commands of the runner that are separated by ``/`` are alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias

from turngate_verify.world.actors import Plan

Answer: TypeAlias = Literal["ok", "fails", "half", "late", "interrupt", "exit", "cancelled"]

_FINISH = ("finish",)


@dataclass(frozen=True)
class Scenario:
    """What the actors around a dispatcher do, each in its own order. They may overtake each other."""

    about: str
    callers: tuple[tuple[str, ...], ...]
    """What each caller does."""
    runner: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """What the runner does when called for a lead run: fold, write, swallow, tidy, leave, finish, fail."""
    store: tuple[Plan, ...] = ()
    """How the writes go, one after the other; those after the last are immediate."""
    answers: tuple[Answer, ...] = ("ok",)
    """How a slow write may go on. With ``late`` its time runs out, with ``half`` some of it passes."""
    sessions: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The sessions of the runs that are not of session s."""
    turns_limit: int | None = None
    """The limit on concurrent runner calls."""

    def session_of(self, run: str) -> str:
        """Return the session of a run."""
        return self.sessions.get(run, "s")

    def commands(self, lead: str) -> tuple[str, ...]:
        """Return what the runner does when called for a lead run."""
        return self.runner.get(lead, _FINISH)


def _prompt(run: str, how: str = "") -> tuple[str, ...]:
    return (f"accept {run} {how}".rstrip(), f"enter {run}")


_A, _B, _C = _prompt("a"), _prompt("b"), _prompt("c")

SCENARIOS: dict[str, Scenario] = {
    "one": Scenario(
        "a prompt that finishes or fails, and two cancels",
        (_A, ("cancel", "cancel")),
        {"a": ("finish/fail",)},
    ),
    "released": Scenario("a prompt whose handle is closed, and a cancel", (_A, ("release a",), ("cancel",))),
    "hooked": Scenario(
        "a prompt with on_complete behind another", (_A, _prompt("b", "hook"), ("cancel run a",))
    ),
    "waited-for": Scenario(
        "a prompt whose caller waits and gives up, and a cancel",
        (("submit a", "wait a", "give up a"), ("cancel",)),
    ),
    "two": Scenario(
        "two prompts, a cancel, and a turn that fails",
        (_A, _B, ("cancel",)),
        {"a": ("fail",)},
    ),
    "folded": Scenario(
        "two prompts and a cancel; the first turn folds, then finishes or fails",
        (_A, _B, ("cancel",)),
        {"a": ("fold", "finish/fail")},
    ),
    "own-turn": Scenario(
        "a prompt that must have its own turn behind a turn that folds, and a clear",
        (_A, _prompt("b", "queue"), ("clear",)),
        {"a": ("fold", "finish")},
    ),
    "cleared": Scenario("two prompts, a clear and a cancel", (_A, _B, ("clear",), ("cancel",))),
    "cancel-run": Scenario(
        "two prompts, each cancelled alone", (_A, _B, ("cancel run a",), ("cancel run b",))
    ),
    "interrupt": Scenario(
        "a prompt that interrupts another", (_A, _prompt("b", "interrupt")), {"a": ("write", "finish/fail")}
    ),
    "reject": Scenario(
        "a prompt that only an idle session takes, and a cancel", (_A, _prompt("b", "reject"), ("cancel",))
    ),
    "stubborn": Scenario(
        "a runner that swallows the first cancel, and a prompt behind it",
        (_A, _B, ("cancel", "cancel run a")),
        {"a": ("swallow", "finish")},
    ),
    "slow-store": Scenario(
        "writes that are slow, fail or take too long, and two cancels",
        (_A, ("cancel", "cancel")),
        store=("slow", "slow"),
        answers=("ok", "fails", "late"),
    ),
    "slow-handoff": Scenario(
        "two prompts and a cancel, with a slow write that may fail",
        (_A, _B, ("cancel",)),
        store=("slow",),
        answers=("ok", "fails"),
    ),
    "closed": Scenario("two prompts while the dispatcher closes", (_A, _B, ("close",)), {"a": ("fail",)}),
    "closed-slowly": Scenario(
        "a prompt, a cancel and a close, with slow writes",
        (_A, ("cancel",), ("close",)),
        store=("slow", "slow"),
    ),
    "slow-twice": Scenario(
        "two slow writes of one turn, which share their time, and a cancel between them",
        (_A, ("cancel",)),
        store=("slow", "slow"),
        answers=("ok", "half"),
    ),
    "closed-gently": Scenario(
        "a prompt and one that never enters, while the dispatcher closes and lets them finish for a while",
        (_A, ("accept c",), ("close gently",)),
        answers=("late",),
    ),
    "left-over": Scenario(
        "a runner that leaves a task and a thread behind, a slow write, and a cancel",
        (_A, ("cancel",)),
        {"a": ("leave", "finish")},
        store=("slow",),
    ),
    "sessions": Scenario(
        "two prompts in two sessions, one of which is cancelled",
        (_A, _B, ("cancel",)),
        {"a": ("fail",)},
        sessions={"b": "t"},
    ),
    "one-place": Scenario(
        "two sessions that share a place, a slow write, and a cancel of the one that may wait",
        (_A, _B, ("cancel t",)),
        store=("slow",),
        sessions={"b": "t"},
        turns_limit=1,
    ),
    "in-line": Scenario(
        "three sessions that share a place",
        (_A, _B, _C),
        sessions={"b": "t", "c": "u"},
        turns_limit=1,
    ),
    "fair-line": Scenario(
        "a session with a queue that shares a place with another",
        (_A, _B, _C),
        sessions={"c": "t"},
        turns_limit=1,
    ),
    "taken-back": Scenario(
        "two sessions that share a place, and callers who take their prompts back",
        (_A, _B, ("take back a",), ("take back b",)),
        sessions={"b": "t"},
        turns_limit=1,
    ),
    "streamed": Scenario(
        "a reader that follows the text of a turn, and a cancel",
        (_A, ("stream a",), ("cancel",)),
        {"a": ("write", "write", "finish/fail")},
    ),
    "streamed-late": Scenario(
        "a reader that follows the text of a follow-up from some character on, and a turn that folds it",
        (_A, _prompt("b"), ("tail b",)),
        {"a": ("write", "fold", "write", "finish")},
    ),
    "followed": Scenario(
        "a reader that follows the completions while the dispatcher begins to close",
        (("completions",), ("accept a hook", "enter a", "begin close"), ("submit b",)),
    ),
    "paged": Scenario(
        "a reader of messages, one by one, while a turn writes them, twice if a cancel comes between",
        (_A, ("page", "page"), ("cancel",)),
        store=("slow",),
    ),
    "tidied": Scenario(
        "a runner that cleans up, and two cancels",
        (_A, ("cancel run a", "cancel")),
        {"a": ("tidy", "finish")},
        answers=("late",),
    ),
    "submitted": Scenario(
        "two prompts submitted, a cancel and a release",
        (("submit a",), ("submit b",), ("cancel",), ("release b",)),
        {"a": ("fail",)},
    ),
    "three": Scenario(
        "three prompts, a cancel, and a turn that fails", (_A, _B, _C, ("cancel",)), {"a": ("fail",)}
    ),
    "three-folded": Scenario(
        "three prompts, a clear and a cancel; the first turn folds twice",
        (_A, _B, _C, ("clear",), ("cancel",)),
        {"a": ("fold", "fold", "finish")},
    ),
}
