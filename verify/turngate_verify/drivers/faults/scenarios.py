"""The scenarios that are spoiled, and the kinds of faults."""

from __future__ import annotations

from turngate_verify.world.scenarios import Scenario

SPOILED: dict[str, Scenario] = {
    "handed-off": Scenario(
        "two prompts that are waited for, one fails; a subscriber reads",
        (("read", "submit a", "wait a", "submit b", "wait b"),),
        {"a": ("write", "fail")},
    ),
    "folded": Scenario(
        "a turn folds a follow-up; a third prompt has its own turn",
        (("accept a hook", "enter a", "submit b", "accept c queue", "enter c", "wait b"),),
        {"a": ("fold", "finish")},
    ),
    "cancelled": Scenario(
        "a cancel of an active, a queued and an accepted run; writes are slow",
        (("accept c", "accept a hook", "enter a", "submit b", "wait a"), ("cancel", "enter c", "submit d")),
        store=("slow", "slow", "slow"),
    ),
    "closed": Scenario(
        "a close while runs are active, queued and accepted; writes are slow",
        (("accept c", "submit a", "submit b", "wait c", "close", "wait a"),),
        store=("slow", "slow"),
    ),
    "held": Scenario(
        "a dispatcher held open, with prompts in two sessions",
        (("hold", "read", "submit a", "submit b", "submit d", "accept c", "leave"),),
        {"a": ("fold", "finish")},
        sessions={"d": "t"},
        store=("slow",),
    ),
    "limited": Scenario(
        "sessions that share a place, a prompt taken back, a runner that cleans up, and followers",
        (
            ("submit a", "stream a", "completions", "submit b", "tail b", "submit c"),
            ("submit d", "cancel run a", "take back d", "page", "take back b", "page", "begin close"),
        ),
        {"a": ("tidy", "write", "finish"), "b": ("write", "finish")},
        sessions={"b": "t", "c": "u", "d": "t"},
        turns_limit=1,
    ),
}
LEAD_RUNS = "abcd"
"""The runs of these scenarios, each of which may lead a turn."""

KINDS = {
    "cancel": "a task cancelled at an await",
    "store": "a write that fails, is cancelled or takes too long",
    "callback": "an on_complete or a recording that raises",
    "logging": "a log handler that raises at every line",
    "factory": "a task factory that refuses, drops, cancels, wraps or begins a turn",
    "interrupt": "a KeyboardInterrupt or SystemExit out of runner, store or callback",
    "shutdown": "every task cancelled at once, as when the loop shuts down",
    "dropped": "the loop closed with tasks pending, which are then dropped",
}
