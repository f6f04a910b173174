"""What became of the prompts that were sent behind a busy session.

The protocol leaves that open, and an agent may do one thing now and another
later: let a prompt wait, have it join the turn, refuse it, or end the turn for
it. Whatever is no plain waiting is a reason for doubt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from turngate_verify.acp.rig import Prompt

_DOUBT = (
    "but {what}: behind a busy session a prompt may wait, join the turn, be refused, or end the turn, "
    "and that need not be the same each time"
)


class Fates:
    """Follows the prompts of one program."""

    def __init__(self) -> None:
        self.behind: dict[str, frozenset[str]] = {}
        """The runs that were sent behind a busy session, each with those that were in flight."""
        self.doubt = ""
        """The first thing seen that is no plain waiting, as the end of a sentence; empty if there is none."""
        self._cancelled: set[str] = set()
        """The runs that were in flight when their session was cancelled."""
        self._own: set[str] = set()
        """The runs that are known to have a turn of their own."""

    def sent(self, run: str, in_flight: Collection[str]) -> None:
        """Note that a prompt is sent, and what is in flight in its session."""
        if in_flight:
            self.behind[run] = frozenset(in_flight)

    def cancelled(self, runs: Iterable[str]) -> None:
        """Note that these runs are in flight when their session is cancelled."""
        self._cancelled.update(runs)

    def called(self, run: str, at_work: Sequence[Prompt]) -> None:
        """Note a call of the model for a run, and whose calls have come that are not answered yet.

        If there are others, the turn of one of them may be over: its response comes on another wire.
        """
        if all(each.name == run for each in at_work):
            self._own.add(run)

    def answered(self, prompt: Prompt, got: str, order: str, at_work: Sequence[Prompt]) -> None:
        """Note the response to a prompt, how the kit has let its turn end, and who else is at work.

        A turn is not over as long as a call of its own is open. So a run whose call is open now has not
        joined it.
        """
        run = prompt.name
        if len(at_work) == 1 and at_work[0].open_calls:
            self._own.add(at_work[0].name)
        by_cancel = got == "cancelled" and run in self._cancelled
        if run in self.behind and run not in self._own and (prompt.calls or not by_cancel):
            self._note(f"{run} is answered {got}, and is not known to have had a turn of its own")
        as_ordered = (order == "finish" and got == "end_turn") or (order == "fail" and got != "cancelled")
        if not (by_cancel or as_ordered) and any(run in ahead for ahead in self.behind.values()):
            self._note(f"{run} is answered {got} with another prompt behind it, before its turn was let go")

    def _note(self, what: str) -> None:
        self.doubt = self.doubt or _DOUBT.format(what=what)
