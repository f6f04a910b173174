"""Would this suite notice? It puts each wrong behaviour that the port can show in front of a right subject.

If the kit does not find a flaw at these settings, there are two possible reasons: no program brought it
about, or it came about and nothing judged it. The result says which. A flaw that needs a feature that the
adapter does not declare is not tried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from turngate_model.properties import AnyProperty
from turngate_verify.conform.flawed import FLAWS, Doubted, Flawed, name_of
from turngate_verify.conform.port import SubjectFactory
from turngate_verify.conform.result import Conformance, Effort
from turngate_verify.conform.suites import check
from turngate_verify.words import counted

Noticed = Literal["found", "missed", "not tried"]


class Doubt(NamedTuple):
    """A wrong behaviour, and whether the kit finds it."""

    name: str
    sentence: str
    noticed: Noticed
    property: AnyProperty | None = None
    """The property that it was found to break."""
    program: str = ""
    """A program that shows it."""
    why: str = ""
    """Why it was not found."""


@dataclass
class Doubts:
    """The result: the subject as it is, and each wrong behaviour."""

    plain: Conformance
    doubts: list[Doubt] = field(default_factory=list)

    def those(self, noticed: Noticed) -> list[Doubt]:
        """Return the behaviours for which this is true."""
        return [each for each in self.doubts if each.noticed == noticed]

    @property
    def verdict(self) -> str:
        """Holds if every behaviour that could be tried was found; otherwise unknown.

        It is violated or flaky if the subject itself is: then flaws and its own faults cannot be told apart.
        """
        if self.plain.verdict in ("violated", "flaky"):
            return self.plain.verdict
        return "unknown" if self.those("missed") or self.plain.failed else "holds"

    @property
    def summary(self) -> str:
        """The result in one line."""
        tried = len(self.those("found")) + len(self.those("missed"))
        told = f"{len(self.those('found'))} of {counted(tried, 'wrong behaviour')} found"
        if without := self.those("not tried"):
            told += f", {len(without)} not tried"
        return told


def doubt(
    make: SubjectFactory,
    name: str = "",
    *,
    effort: Effort | None = None,
    begin: Callable[[str], None] = lambda _: None,
) -> Doubts:
    """Check a subject as it is, then with one flaw after another, each until the kit finds it."""
    begin("as it is")
    plain = check(make, name, effort=effort)
    result = Doubts(plain)
    for flaw in FLAWS if not plain.failed else ():
        begin(name_of(flaw))
        result.doubts.append(_doubted(make, name, flaw, plain, effort))
    return result


def _doubted(
    make: SubjectFactory, name: str, flaw: type[Flawed], plain: Conformance, effort: Effort | None
) -> Doubt:
    told = Doubt(name_of(flaw), flaw.sentence, "not tried")
    if lacking := [each for each in flaw.needs if each not in plain.features.names]:
        return told._replace(why=f"the adapter does not declare {', '.join(lacking)}")
    masked = [each for each in flaw.breaks if each in plain.counterexamples or each in plain.flaky]

    def found(result: Conformance) -> list[AnyProperty]:
        return [
            each
            for each in flaw.breaks
            if each in result.counterexamples and each not in plain.counterexamples
        ]

    flawed = Doubted(make, flaw)
    result = check(flawed, name, effort=effort, enough=lambda so_far: bool(found(so_far)))
    if properties := found(result):
        return told._replace(noticed="found", property=properties[0], program=result.replays[properties[0]])
    if masked:
        return told._replace(why=f"the subject itself breaks {', '.join(masked)}, which may hide it")
    return told._replace(noticed="missed", why=_why(flaw, flawed, result))


def _why(flaw: type[Flawed], flawed: Doubted, result: Conformance) -> str:
    """Say why the kit has not found a flaw."""
    if result.failed:
        return f"the subject failed with it: {result.failed.what}"
    if not flawed.took_effect:
        races = "" if result.raced else "; races were not tried"
        return f"no program brought it about: the bounds are too small{races}"
    if unjudged := [each for each in flaw.breaks if each in result.not_shown]:
        return result.not_shown[unjudged[0]]
    if result.counterexamples:
        return f"only {', '.join(result.counterexamples)} was found, which is not what it breaks"
    return f"it came about {flawed.took_effect:,} times, and nothing the adapter shows gives it away"
