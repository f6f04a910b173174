"""The rules of the event loop: it runs ready callbacks in some order, and time passes."""

from __future__ import annotations

from hypothesis import strategies as st

from turngate_verify.drivers.rules.example import SETTLE_TIMEOUT, Example, rule, when


class LoopRules(Example):
    """What the event loop and the clock do."""

    @when(lambda self: self.world.loop.ready)
    @rule(choices=st.lists(st.integers(0, 3), min_size=1, max_size=6))
    def step(self, choices: list[int]) -> None:
        """Run one ready callback for each choice; 0 is the one that asyncio would run."""
        for choice in choices:
            self._run_callback(choice)

    @when(lambda self: self.world.loop.ready)
    @rule()
    def settle(self) -> None:
        """Run callbacks in asyncio's order until none is ready."""
        self.world.loop.settle()

    @when(lambda self: self.world.loop.next_timer() is not None)
    @rule(seconds=st.sampled_from((1.0, 3.0, SETTLE_TIMEOUT + 1)), blocked=st.booleans())
    def pass_time(self, seconds: float, blocked: bool) -> None:
        """Let time pass, but not beyond the next timer; on a blocked loop also beyond it."""
        self.world.pass_time(seconds, blocked=blocked)
