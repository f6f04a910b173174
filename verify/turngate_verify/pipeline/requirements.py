"""The requirements of SPEC.md, and what the port or a recording says of each.

A requirement is *failed* if a property that it is part of is violated, and the
step that shows this puts the requirement to the test for the run that it names. It is *passed* if its
situation has occurred, its properties hold, and no violation of any property
occurred in that situation. Where neither can be said it is *not exercised*, and
where neither the port nor this subject can show it, it is *not applicable*.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, TypeAlias

from turngate_model.properties import AnyProperty, Property

Status: TypeAlias = Literal["passed", "failed", "not applicable", "not exercised"]


class Requirement(NamedTuple):
    """What shows whether a requirement is met: these properties, for a subject with these features."""

    properties: tuple[Property, ...] = ()
    needs: tuple[str, ...] = ()
    hidden: str = ""
    """Why the port cannot show it; empty if it can."""


class RequirementResult(NamedTuple):
    """The result for one requirement, and the reason."""

    status: Status
    why: str = ""


class AtStake(NamedTuple):
    """What the step that shows an offence tested, and which part of it the offence is about."""

    requirements: frozenset[str] = frozenset()
    blamed: frozenset[str] = frozenset()


_P = Property
_MODEL = Requirement(hidden="it is about the machine itself, which no operation of the port shows")
_NO_SEQUENCE = Requirement(hidden="the port shows no sequence numbers")
_STEPS = Requirement(hidden="it is about one step; the port shows the result, and races are distinguished")
_STORE = Requirement(hidden="the kit does not play the store")
_NO_RELEASE = Requirement(hidden="the port has no release and no shutdown")
_NO_PLACES = Requirement(hidden="the port has no limit on runner calls")
_NO_OBSERVER = Requirement(hidden="the port shows neither text, nor views, nor cursors")
_NO_KEYS = Requirement(hidden="the port has no keys")
_NO_LINE = Requirement(hidden="the port has no holds, moves, edits, prompts for one turn, and no data")

REQUIREMENTS: dict[str, Requirement] = {
    "R-MAC-1": _MODEL,
    "R-MAC-2": _MODEL,
    "R-LIV-1": Requirement((_P.EXACTLY_ONE_COMPLETE, _P.NO_STRAND)),
    "R-ACC-1": _NO_SEQUENCE,
    "R-ACC-2": Requirement(hidden="the kit accepts no run twice"),
    "R-ACC-3": Requirement((_P.FULL_COVERAGE, _P.NEVER_POISONED), ("interrupt",)),
    "R-BSY-1": Requirement((_P.NO_STRAND, _P.EXACTLY_ONE_COMPLETE), ("folds",)),
    "R-BSY-2": Requirement(hidden="the port has no prompts that must be queued"),
    "R-BSY-3": Requirement(hidden="the port does not tell which prompts may be folded"),
    "R-BSY-4": Requirement((_P.DECLARED_MOVE,), ("reject",)),
    "R-ENT-1": Requirement((_P.FULL_COVERAGE, _P.DECLARED_MOVE), ("two_phase", "cancel")),
    "R-ENT-2": Requirement((_P.ONE_TURN, _P.FIFO, _P.DECLARED_MOVE)),
    "R-ENT-3": Requirement((_P.NO_STRAND, _P.DECLARED_MOVE)),
    "R-ENT-4": _STEPS,
    "R-QUE-1": Requirement((_P.FIFO,)),
    "R-QUE-2": Requirement((_P.EXACTLY_ONE_COMPLETE, _P.DECLARED_MOVE), ("clear",)),
    "R-CAN-1": Requirement((_P.FULL_COVERAGE,), ("cancel",)),
    "R-CAN-2": Requirement((_P.NEVER_POISONED,), ("cancel",)),
    "R-CAN-3": Requirement((_P.FULL_COVERAGE, _P.EXACTLY_ONE_COMPLETE), ("cancel",)),
    "R-CAN-4": Requirement(hidden="the kit's runner ends when it is interrupted"),
    "R-CAN-5": Requirement((_P.IDLE_CANCEL, _P.NEVER_POISONED), ("cancel",)),
    "R-CAN-6": Requirement((_P.FULL_COVERAGE, _P.NEVER_POISONED), ("cancel_run",)),
    "R-CAN-7": Requirement((_P.FULL_COVERAGE,), ("two_phase", "cancel")),
    "R-FLD-1": Requirement((_P.FIFO, _P.DECLARED_MOVE), ("folds",)),
    "R-FLD-2": Requirement((_P.FULL_COVERAGE, _P.DECLARED_MOVE), ("folds", "cancel")),
    "R-FLD-3": Requirement((_P.EXACTLY_ONE_COMPLETE, _P.FULL_COVERAGE), ("folds",)),
    "R-SET-1": Requirement((_P.LAST_WORD,), ("messages",)),
    "R-SET-2": _STORE,
    "R-SET-3": _STORE,
    "R-SET-4": Requirement((_P.ON_RECORD,), ("messages", "two_phase", "cancel")),
    "R-SET-5": Requirement((_P.ON_RECORD,), ("messages",)),
    "R-HOF-1": _STEPS,
    "R-HOF-2": Requirement((_P.NO_STRAND,)),
    "R-HOF-3": Requirement((_P.LAST_WORD,)),
    "R-REL-1": _NO_RELEASE,
    "R-REL-2": _NO_RELEASE,
    **{f"R-PLC-{nth}": _NO_PLACES for nth in range(1, 6)},
    **{f"R-LOK-{nth}": _NO_OBSERVER for nth in range(1, 7)},
    **{f"R-KEY-{nth}": _NO_KEYS for nth in range(1, 9)},
    **{f"R-HLD-{nth}": _NO_LINE for nth in range(1, 4)},
    **{f"R-STP-{nth}": _NO_LINE for nth in range(1, 3)},
    **{f"R-MOV-{nth}": _NO_LINE for nth in range(1, 4)},
    **{f"R-EDT-{nth}": _NO_LINE for nth in range(1, 3)},
    **{f"R-NOW-{nth}": _NO_LINE for nth in range(1, 3)},
    **{f"R-INTO-{nth}": _NO_LINE for nth in range(1, 4)},
    "R-DAT-1": _NO_LINE,
    "R-CMP-1": Requirement((_P.FULL_COVERAGE, _P.NEVER_POISONED), ("cancel",)),
    "R-CMP-2": Requirement(hidden="the port shows cancelled, and no outcome beside it"),
    "R-CMP-3": Requirement((_P.ON_RECORD,), ("messages", "cancel")),
}
"""Every requirement of SPEC.md, in its order."""


def results(
    features: Collection[str],
    witnessed: Collection[str],
    verdicts: Mapping[AnyProperty, str],
    offences: Mapping[AnyProperty, AtStake],
) -> dict[str, RequirementResult]:
    """Return the result of every requirement.

    ``witnessed`` are the requirements that some history tested without
    breaking anything; ``offences`` says for each violated property what was at
    stake in the offending step.
    """
    return {
        name: _result(name, each, features, witnessed, verdicts, offences)
        for name, each in REQUIREMENTS.items()
    }


def _result(
    name: str,
    requirement: Requirement,
    features: Collection[str],
    witnessed: Collection[str],
    verdicts: Mapping[AnyProperty, str],
    offences: Mapping[AnyProperty, AtStake],
) -> RequirementResult:
    if requirement.hidden:
        return RequirementResult("not applicable", requirement.hidden)
    if lacking := [each for each in requirement.needs if each not in features]:
        return RequirementResult("not applicable", f"the subject does not have {', '.join(lacking)}")
    if broken := [each for each in requirement.properties if name in offences.get(each, AtStake()).blamed]:
        return RequirementResult("failed", f"{', '.join(broken)} is violated")
    if beside := [each for each, at_stake in offences.items() if name in at_stake.requirements]:
        return RequirementResult("not exercised", f"{', '.join(beside)} is violated where it was at stake")
    open_ = [f"{each} is {verdict}" for each, verdict in _open(requirement, verdicts)]
    if open_:
        return RequirementResult("not exercised", f"{', '.join(open_)}: that leaves it open")
    if name not in witnessed:
        return RequirementResult("not exercised", "its situation did not occur")
    return RequirementResult("passed")


def _open(requirement: Requirement, verdicts: Mapping[AnyProperty, str]) -> list[tuple[Property, str]]:
    """Return the properties of a requirement that do not hold, with their verdicts."""
    said = [(each, verdicts.get(each, "unknown")) for each in requirement.properties]
    return [(each, verdict) for each, verdict in said if verdict != "holds"]
