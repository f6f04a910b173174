"""The steps of the relation: their names, what each is about, and every path through each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from turngate_model.proof.paths import Path, walk
from turngate_model.proof.readings import Reading
from turngate_model.proof.relation import WRITING, Relation
from turngate_model.proof.terms import Individual, Sort
from turngate_model.proof.vocabulary import World

_RUN, _NUMBER, _OK = Sort.RUN, Sort.INT, Sort.BOOL


class Step(NamedTuple):
    """A step that may be taken in a session: what the mechanism calls it, and what it is about."""

    name: str
    how: str = ""
    """A mode of an accept, or the outcome of a turn."""
    about: tuple[Sort, ...] = ()

    def __str__(self) -> str:
        return f"{self.name} {self.how}".rstrip()

    @property
    def is_internal(self) -> bool:
        """Whether the step happens of itself, if runners end and stores answer."""
        return self.name in ("end", "written", "settle", "resume")

    @property
    def cancels(self) -> bool:
        """Whether a cancel is part of the step."""
        return self.name in ("cancel", "cancel_run", "close") or self.how == "interrupt"

    def take(self, relation: Relation, session: Individual, *about: Any) -> None:
        """Take the step on the path of a relation."""
        if self.name == "accept":
            run, number = about
            relation.accept(session, run, number, self.how)
        elif self.name == "end":
            (lead,) = about
            relation.end(session, lead, next(each for each in WRITING if each == self.how))
        else:
            getattr(relation, self.name)(session, *about)

    def paths(
        self,
        kind: type[Relation],
        reading: Reading,
        world: World,
        session: Individual,
        about: tuple[Any, ...],
    ) -> Iterator[Path]:
        """Yield every path of the step."""
        return walk(reading, world, lambda path: self.take(kind(path), session, *about))


def steps_of(kind: type[Relation]) -> tuple[Step, ...]:
    """Return every step that a relation has."""
    resumes = () if kind.resumes is None else (Step("resume", about=kind.resumes),)
    return (
        *(Step("accept", mode, (_RUN, _NUMBER)) for mode in kind.modes),
        *(Step(name, about=(_RUN,)) for name in ("again", "enter", "release", "cancel_run", "fold")),
        *(Step(name) for name in ("cancel", "clear", "close")),
        *(Step("end", outcome, (_RUN,)) for outcome in WRITING),
        *(Step(name, about=(_RUN, _OK)) for name in ("written", "settle")),
        *resumes,
    )
