"""The rules of the store: a write takes its time, or fails."""

from __future__ import annotations

from hypothesis import strategies as st

from turngate_verify.drivers.rules.example import Example, one_of, rule, when
from turngate_verify.world.actors import Plan
from turngate_verify.world.failures import StoreDown

_PLANS: st.SearchStrategy[Plan] = st.sampled_from(("slow", "fails"))


class StoreRules(Example):
    """What the store does."""

    @when(lambda self: self.uncovered and not self.world.store.plans)
    @rule(plan=_PLANS)
    def store(self, plan: Plan) -> None:
        """Plan that the next write is slow, or fails."""
        self.world.store.plans.append(plan)

    @when(lambda self: self.slow_writes)
    @rule(nth=one_of(lambda self: self.slow_writes), fails=st.booleans())
    def let_through(self, nth: int, fails: bool) -> None:
        """Let a slow write succeed or fail."""
        door = [each for each in self.world.store.waiting if not each.done()][nth]
        if fails:
            door.set_exception(StoreDown("the disk is full"))
        else:
            door.set_result(None)
