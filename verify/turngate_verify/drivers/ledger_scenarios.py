"""Small scenarios of two processes on one ledger, for `ledger_schedules`."""

from __future__ import annotations

from turngate_verify.drivers.ledger_schedules import Fault, Scenario

A, B = (0, "submit", "a"), (1, "submit", "b")
ACCEPT, FOLLOW, CANCEL = (0, "accept", "a"), (1, "follow up", "b"), (1, "cancel", "")
CALLS = {
    "a submit": (A,),
    "an accept": (ACCEPT,),
    "a submit and a cancel": (A, CANCEL),
    "an accept and a cancel": (ACCEPT, CANCEL),
    "two submits": (A, B),
    "a submit and a follow-up": (A, FOLLOW),
}
FAULTS: tuple[tuple[Fault, ...], ...] = ((), ("kill",), ("lease",), ("lose",))
ALL = [
    Scenario(f"{calls}, {' and '.join(faults) or 'no fault'}, {on_death}", CALLS[calls], faults, on_death)
    for calls in CALLS
    for faults in FAULTS
    for on_death in ("fail", "retry")
    if "kill" in faults or "lease" in faults or on_death == "fail"
]
SMALL = [
    each
    for each in ALL
    if each.faults in ((), ("lose",))
    or each.calls in ((A,), (A, CANCEL))
    or (each.calls == (ACCEPT,) and each.faults == ("kill",))
]
REMEMBERING = [
    each._replace(name=f"{each.name}, remembering", remembers=True)
    for each in SMALL
    if each.calls in ((A, CANCEL), (A, B), (A,)) and each.on_death == "fail"
]
SLOW_SCENARIOS = [each for each in REMEMBERING if each.calls == (A, B) and each.faults]
SMALL += [each for each in REMEMBERING if each not in SLOW_SCENARIOS]
LINE = [
    Scenario("an accept and a hold", (ACCEPT, (1, "hold", ""))),
    Scenario("a submit and a stop", (A, (1, "stop", ""))),
    Scenario("a submit and a stop, kill", (A, (1, "stop", "")), ("kill",)),
    Scenario("an accept and an edit", (ACCEPT, (1, "edit", "a"))),
    Scenario("an accept and an edit, lose", (ACCEPT, (1, "edit", "a")), ("lose",)),
    Scenario("an accept and a hold, kill", (ACCEPT, (1, "hold", "")), ("kill",)),
    Scenario("an accept, a hold and a resume", (ACCEPT, (1, "hold", ""), (0, "resume", ""))),
]
"""Callers hold, stop, resume and edit while another process is at work."""
LARGE_LINE = [
    Scenario("two submits and a hold", (A, B, (0, "hold", ""))),
    Scenario("two submits and a stop", (A, B, (0, "stop", ""))),
    Scenario("two submits and an edit", (A, B, (0, "edit", "b"))),
    Scenario("two submits and one is sent now", (A, B, (0, "send now", "b"))),
    Scenario("two submits and a hold, a kill", (A, B, (1, "hold", "")), ("kill",)),
    Scenario("two submits and an edit, a lost answer", (A, B, (0, "edit", "b")), ("lose",)),
]
LARGE = [
    *(each for each in ALL if each not in SMALL),
    *SLOW_SCENARIOS,
    *LARGE_LINE,
    Scenario("a submit, a lost lease, noticed at any moment", (A,), ("lease",), "retry", looks=1),
    Scenario("a submit, a kill, noticed at any moment", (A,), ("kill",), "retry", looks=1),
    Scenario("two submits and a cancel, no fault", (A, B, CANCEL)),
    Scenario("two submits and a cancel, a lost answer", (A, B, CANCEL), ("lose",)),
    Scenario("two submits and a cancel, a kill", (A, B, CANCEL), ("kill",)),
    Scenario("two submits and a cancel, a kill, retry", (A, B, CANCEL), ("kill",), "retry"),
    Scenario("two submits and a cancel, a lost lease", (A, B, CANCEL), ("lease",)),
    Scenario("two submits, a kill and a lost answer", (A, B), ("kill", "lose")),
    Scenario("two submits, a lost lease and a lost answer", (A, B), ("lease", "lose")),
]
TOO_LARGE = [
    Scenario(f"two submits and a cancel, a {fault}, remembering", (A, B, CANCEL), (fault,), remembers=True)
    for fault in ("lose", "kill")
]
"""These cannot be exhausted: 60,000 schedules were not enough."""
SMALL += LINE
