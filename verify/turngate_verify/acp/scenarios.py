"""What the client does on the wire, as text that can be replayed: ``wire cancel asked warm``."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

from turngate_verify.conform.programs import BadProgram

Kind: TypeAlias = Literal[
    "prompt", "behind", "cancel", "cancel-twice", "idle-cancel", "fail", "two-sessions", "fail-beside"
]
_KINDS: tuple[Kind, ...] = get_args(Kind)
DELAYS = {"at-once": 0.0, "1ms": 0.001, "5ms": 0.005, "20ms": 0.02, "50ms": 0.05, "100ms": 0.1, "200ms": 0.2}
"""How long after a prompt the cancel is sent; ``at-once`` is right behind it."""
HELD = ("asked", "streaming", "tool", "after-tool", "end")
"""Moments that the stub model decides."""
_WITH_MOMENT = ("cancel", "cancel-twice", "idle-cancel")
WORDS = {
    "at-once": "in the same moment",
    "asked": "when the model is asked",
    "streaming": "in the middle of its answer",
    "tool": "during a tool call",
    "after-tool": "when the model is asked again after a tool call",
    "end": "in the moment in which the model ends its answer",
}


class Scenario(NamedTuple):
    """One thing that the client does, in sessions of its own."""

    kind: Kind
    moment: str = ""
    is_warm: bool = False
    """Whether the session has had a turn before."""

    def __str__(self) -> str:
        """Return the scenario as it is written in a replay command."""
        return " ".join(filter(None, ("wire", self.kind, self.moment, "warm" if self.is_warm else "")))

    @property
    def when(self) -> str:
        """The moment in words."""
        return WORDS.get(self.moment) or f"{self.moment.removesuffix('ms')} ms later"


def is_scenario(text: str) -> bool:
    """Tell whether a text is meant as a scenario, and not as a program."""
    return text.split()[:1] == ["wire"]


def parsed_scenario(text: str) -> Scenario:
    """Return the scenario that is written in a text."""
    _, *words = text.split()
    kind: Kind | None = next((each for each in _KINDS if words[:1] == [each]), None)
    if kind is None:
        raise BadProgram(f"{text!r} is no scenario; after 'wire' there is one of {', '.join(_KINDS)}")
    rest = words[1:]
    is_warm = rest[-1:] == ["warm"]
    rest = rest[: len(rest) - is_warm]
    moments = (*DELAYS, *HELD) if kind != "idle-cancel" else tuple(DELAYS)
    if len(rest) != (kind in _WITH_MOMENT) or not set(rest) <= set(moments):
        wanted = (
            f"'wire {kind} MOMENT', with one of {', '.join(moments)}"
            if kind in _WITH_MOMENT
            else f"'wire {kind}'"
        )
        raise BadProgram(f"{text!r} should be like {wanted}")
    return Scenario(kind, "".join(rest), is_warm)


def sweep(*, has_stub: bool) -> list[Scenario]:
    """Return one round: every kind, and a cancel at every moment, in a fresh session and in a warm one."""
    moments = (*DELAYS, *HELD) if has_stub else tuple(DELAYS)
    round_: list[Scenario] = [Scenario("prompt")]
    for is_warm in (False, True):
        round_.append(Scenario("behind", is_warm=is_warm))
        round_ += [Scenario("cancel", moment, is_warm) for moment in moments]
        round_ += [Scenario("idle-cancel", moment, is_warm) for moment in ("at-once", "20ms", "200ms")]
    round_ += [Scenario("cancel-twice", moment) for moment in ("at-once", "asked")[: 1 + has_stub]]
    round_.append(Scenario("two-sessions"))
    if has_stub:
        round_ += [Scenario("fail"), Scenario("fail", is_warm=True), Scenario("fail-beside")]
    return round_
