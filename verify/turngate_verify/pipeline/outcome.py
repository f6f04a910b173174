"""One result in the form that every output of a pipeline is written from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

from turngate_verify.pipeline.requirements import RequirementResult

CaseStatus: TypeAlias = Literal["passed", "failed", "error", "skipped"]
_OF_VERDICTS: dict[str, CaseStatus] = {"holds": "passed", "violated": "failed"}


class Case(NamedTuple):
    """One thing that was checked."""

    name: str
    status: CaseStatus
    summary: str = ""
    detail: str = ""
    """More lines, such as a counterexample and the command that replays it."""
    file: str = ""
    line: int = 0


class Outcome(NamedTuple):
    """What a command has found about one subject or recording."""

    title: str
    verdict: str
    summary: str
    seconds: float
    cases: tuple[Case, ...]
    requirements: Mapping[str, RequirementResult]

    @property
    def verdict_case(self) -> Case:
        """The verdict itself as a case, so that what is unknown never looks like a success."""
        return Case("verdict", _OF_VERDICTS.get(self.verdict, "error"), self.summary)

    @property
    def requirement_cases(self) -> tuple[Case, ...]:
        """The requirements as cases."""
        return tuple(
            Case(name, "passed" if said.status == "passed" else "failed", said.why)
            if said.status in ("passed", "failed")
            else Case(name, "skipped", f"{said.status}: {said.why}")
            for name, said in self.requirements.items()
        )
