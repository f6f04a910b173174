"""Places gone wrong, twice: as mechanisms for the explorer, and as relations for the proof."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from turngate_model import Mechanism, Property
from turngate_model.mechanism import Action
from turngate_model.model_session import ModelSession, ModelTurn
from turngate_model.proof.judge import Runs, only
from turngate_model.proof.relation import Relation
from turngate_model.proof.terms import (
    Formula,
    Individual,
    Sort,
    TurnPhase,
    all_of,
    differ,
    implies,
    is_one_of,
    less,
    plus,
)


class KeepsThePlaceWhileSettling(Mechanism):
    def give_back_place(self) -> None:
        """Keep it."""

    def hand_off(self, s: ModelSession, turn: ModelTurn) -> None:
        if turn.called:
            super().give_back_place()
        super().hand_off(s, turn)


class CallsTheLastInLine(Mechanism):
    def can_call(self) -> bool:
        assert self.places is not None
        return self.places.free > 0 and self.places.line[-1:] == (self.session,)


class CallsACancelledTurn(Mechanism):
    """A cancel leaves a waiting turn in line."""

    def cover(self, turn: ModelTurn) -> None:
        turn.cancelled = True


class LosesThePlaceOfACancelledTurn(Mechanism):
    def give_up_waiting(self) -> None:
        assert self.places is not None
        self.places = self.places.taken(self.session)


class CallsOneTooMany(Mechanism):
    def can_call(self) -> bool:
        assert self.places is not None
        return self.places.line[:1] == (self.session,)


class NeverGivesBack(Mechanism):
    def give_back_place(self) -> None:
        """Keep it for ever."""


class NeverCalls(Mechanism):
    def can_call(self) -> bool:
        return False


class FoldsWhileItWaits(Mechanism):
    def turn_actions(self, s: ModelSession, turn: ModelTurn) -> Iterator[Action]:
        yield from super().turn_actions(s, turn)
        if turn.waits and s.queue:
            yield Action("runner", "fold", turn.lead.name)


BROKEN = {
    KeepsThePlaceWhileSettling: Property.REFINES,
    CallsTheLastInLine: Property.REFINES,
    CallsACancelledTurn: Property.REFINES,
    LosesThePlaceOfACancelledTurn: Property.REFINES,
    CallsOneTooMany: Property.REFINES,
    NeverGivesBack: Property.REFINES,
    NeverCalls: Property.REFINES,
    FoldsWhileItWaits: Property.DECLARED_MOVE,
}


# The same as relations.


class KeepsThePlaceWhileSettlingRelation(Relation):
    def give_back_place(self) -> None:
        pass

    def hand_off(self, s: Individual, lead: Individual) -> None:
        if self.path.branch(self.path["called"](s), "called"):
            super().give_back_place()
        super().hand_off(s, lead)


class CallsTheLastInLineRelation(Relation):
    def can_call(self, s: Individual) -> Formula:
        in_line, before = self.path["in_line"], self.path["before"]
        last = self.reading.for_all(
            lambda t: implies(all_of(in_line(t), differ(t, s)), before(t, s)), Sort.SESSION
        )
        return all_of(in_line(s), last, less(0, self.path["free"]()))


class CallsACancelledTurnRelation(Relation):
    def cover(self, s: Individual, leads: Runs) -> None:
        self.put_in("interrupted", leads)


class LosesThePlaceOfACancelledTurnRelation(Relation):
    def leaving(self, waits: Runs) -> Callable[[Individual], Formula]:
        one_waits = self.is_any(waits)
        if self.path.branch(one_waits, "one waits"):
            self.path.give("free", lambda old: plus(old(), -1))
        return super().leaving(waits)


class CallsOneTooManyRelation(Relation):
    def can_call(self, s: Individual) -> Formula:
        in_line, before = self.path["in_line"], self.path["before"]
        first = self.reading.for_all(
            lambda t: implies(all_of(in_line(t), differ(t, s)), before(s, t)), Sort.SESSION
        )
        return all_of(in_line(s), first)


class NeverGivesBackRelation(Relation):
    def give_back_place(self) -> None:
        pass


class NeverCallsRelation(Relation):
    def can_call(self, s: Individual) -> Formula:
        return False


class FoldsWhileItWaitsRelation(Relation):
    def fold(self, s: Individual, lead: Individual) -> None:
        queued = self.of(s, "queue")
        self.needs(
            self.at(s, lead),
            is_one_of(self.path["phase"](lead), TurnPhase.RUNNING, TurnPhase.WAITING),
            self.is_any(queued),
        )
        self.join(s, lead, only(self.first_of(queued, "first")))


RELATIONS = {mechanism: globals()[f"{mechanism.__name__}Relation"] for mechanism in BROKEN}
