"""The sessions that a ledger can hold, and the paths that a save takes through them.

A save is a path of one to three steps of the mechanism, from the session that was loaded. The
abstract session beside it sees the events of the whole path at the save, so all that is checked of
a state of the mechanism is checked at every save.
"""

from __future__ import annotations

from turngate_model.checker.nodes import Nodes
from turngate_model.history import Accept, Cancel, Event
from turngate_model.lifecycle import successor
from turngate_model.mechanism import Action, Mechanism, ModelRun, ModelSession
from turngate_model.properties import Violation

NAMES = "abcdefgh"


class Sessions(Nodes):
    """Every session seen so far, each with the abstract session that judges it."""

    def __init__(self, mechanism: type[Mechanism], *, refine: bool) -> None:
        super().__init__(mechanism, successor, refine=refine)
        self._followed: dict[tuple[int, Action], tuple[int, tuple[Violation, ...]]] = {}

    def follow(self, node: int, action: Action) -> tuple[int, tuple[Violation, ...]]:
        """Take one step of the mechanism: return the session that it leads to and what it breaks."""
        known = self._followed.get((node, action))
        if known is None:
            run = ModelRun(action.run, self.runs(node) + 1) if action.name == "accept" else None
            edge = self.step(node, 0, action, run)
            known = self._followed[node, action] = (edge.target, edge.violations)
        return known

    def paired(self, loaded: int, now: int) -> int:
        """Return the session as it was loaded, beside the abstract session as it is now."""
        return self._intern(self.how(loaded).copy(), self.what(now).copy())

    def repeated(self, node: int, action: Action) -> tuple[int, tuple[Violation, ...]]:
        """Take a step that a client asked for once and that is done again.

        The abstract session has seen the call of the client already, and is not shown it a second time: else
        a cancel that is done twice would look like two cancels, which are legal.
        """
        how, what = self.how(node).copy(), self.what(node).copy()
        violations: list[Violation] = []

        def see(event: Event) -> None:
            if not isinstance(event, Accept | Cancel):
                violations.extend(what.observe(event))

        mechanism = self.design(see)
        if action.name == "accept":
            mechanism.again(how, ModelRun(action.run, NAMES.index(action.run) + 1))
        else:
            mechanism.take(how, action)
        target = self._intern(how, what)
        return target, (*violations, *self._faults[target])


class Path:
    """The steps of the mechanism that one save consists of."""

    def __init__(self, sessions: Sessions, node: int) -> None:
        self._sessions = sessions
        self.node = node
        self.trail: list[tuple[int, Action]] = []
        """Each step, and the session in which it was taken."""
        self.violations: list[Violation] = []

    @property
    def session(self) -> ModelSession:
        """The session that the path has come to."""
        return self._sessions.how(self.node)

    def take(self, action: Action) -> None:
        """Go one step on."""
        self.trail.append((self.node, action))
        self.node, violations = self._sessions.follow(self.node, action)
        self.violations += violations

    def repeat(self, action: Action) -> None:
        """Go one step on, which the abstract session has seen the client ask for already."""
        self.node, violations = self._sessions.repeated(self.node, action)
        self.violations += violations
