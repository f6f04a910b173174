"""What the mechanism holds for one session: its runs, its queue, its turn and its cancel mark.

These classes only hold data. The steps that change it are the methods of ``Mechanism``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from turngate_model.history import FinishReason

Mode: TypeAlias = Literal["fold", "queue", "interrupt", "into", "in-process"]
"""The caller's ``when_busy``, or ``into``: for the turn that runs now, and for no other.

Only some known-bad designs have ``in-process``.
"""


class ModelRun(NamedTuple):
    """A run: its name, and the sequence that accept has stamped on it."""

    name: str
    seq: int


class Half(NamedTuple):
    """The second half of a step that a known-bad design takes in two, although it has to be one."""

    name: str
    runs: tuple[ModelRun, ...] = ()
    mark: int = 0

    @property
    def about(self) -> str:
        """The names of the runs that it will change."""
        return " ".join(run.name for run in self.runs)


@dataclass
class ModelTurn:
    """One turn, from the moment its lead is active until its runs are complete.

    A turn goes through three phases. Without a limit on turns it skips the first.

    1. It waits for a place: the runner has not been called.
    2. It runs: the runner has been called and has not returned.
    3. It settles: the store writes its messages.
    """

    lead: ModelRun
    folded: list[ModelRun] = field(default_factory=list)
    cancelled: bool = False
    """Whether a cancel covers the turn."""
    writing: FinishReason | Literal["", "paused"] = ""
    """While the turn settles: the finish reason that is being written. Empty before that."""
    called: bool = True
    """Whether the runner has been called."""

    @property
    def waits(self) -> bool:
        """Whether the turn waits for a place."""
        return not self.called and self.writing == ""

    @property
    def runs(self) -> list[ModelRun]:
        """The lead, then the runs folded in."""
        return [self.lead, *self.folded]

    def frozen(self) -> tuple[Any, ...]:
        """Return the turn as a value that can be compared and hashed."""
        return (self.lead, tuple(self.folded), self.cancelled, self.writing, self.called)


@dataclass
class ModelSession:
    """One session. When nothing of it is in flight, every field has its default."""

    accepted: list[ModelRun] = field(default_factory=list)
    """The runs that have been accepted and have not entered."""
    foldable: set[str] = field(default_factory=set)
    """The accepted and queued runs that may join an active turn."""
    mark: int = 0
    """The cancel mark: accepted runs up to this sequence are covered."""
    singled_out: set[str] = field(default_factory=set)
    """The accepted runs that ``cancel_run`` has covered."""
    entering: list[ModelRun] = field(default_factory=list)
    """The runs that were cancelled on entry and that the store is writing."""
    queue: list[ModelRun] = field(default_factory=list)
    """The queued runs, in the order of their ranks."""
    held: set[str] = field(default_factory=set)
    """The waiting runs that are held. A run waits while it is accepted or queued."""
    bound: set[str] = field(default_factory=set)
    """The waiting runs that may join the active turn, and may have no turn of their own."""
    ranks: dict[str, int] = field(default_factory=dict)
    """The ranks of the waiting runs whose rank is not their sequence, because something was moved."""
    active: str = ""
    """The lead of the turn that the dispatcher takes for the active one."""
    turns: list[ModelTurn] = field(default_factory=list)
    """The turns that there really are. A sound mechanism never has two."""
    pending: int = 0
    """The flag or the count that some known-bad designs keep instead of a mark."""
    unfinished: list[Half] = field(default_factory=list)
    """The second halves of steps that some known-bad designs take in two."""

    def frozen(self) -> tuple[Any, ...]:
        """Return a value that is equal for two sessions exactly if every step treats them alike.

        When the mark covers an accepted run, no step asks whether the run was also cancelled alone, or
        whether it was foldable. So the value leaves both out.
        """
        marked = {run.name for run in self.accepted if run.seq <= self.mark}
        return (
            tuple(self.accepted),
            frozenset(self.foldable - marked - self.singled_out),
            self.mark,
            frozenset(self.singled_out - marked),
            tuple(self.entering),
            tuple(self.queue),
            frozenset(self.held),
            frozenset(self.bound),
            tuple(sorted(self.ranks.items())),
            self.active,
            tuple(turn.frozen() for turn in self.turns),
            self.pending,
            tuple(self.unfinished),
        )

    def copy(self) -> ModelSession:
        """Return a copy. What happens to the one changes nothing in the other."""
        return ModelSession(
            list(self.accepted),
            set(self.foldable),
            self.mark,
            set(self.singled_out),
            list(self.entering),
            list(self.queue),
            set(self.held),
            set(self.bound),
            dict(self.ranks),
            self.active,
            [
                ModelTurn(turn.lead, list(turn.folded), turn.cancelled, turn.writing, turn.called)
                for turn in self.turns
            ],
            self.pending,
            list(self.unfinished),
        )

    def turn_of(self, lead: str) -> ModelTurn | None:
        """Return the turn that this run leads, or None."""
        return next((turn for turn in self.turns if turn.lead.name == lead), None)

    @property
    def in_flight(self) -> list[ModelRun]:
        """The runs that are accepted and not complete, in sequence order."""
        turns = [run for turn in self.turns for run in turn.runs]
        return sorted([*self.accepted, *self.entering, *self.queue, *turns], key=lambda run: run.seq)
