"""The rules of runners: they write, fold, finish, fail, swallow cancels, and leave things behind."""

from __future__ import annotations

from hypothesis import strategies as st

from turngate_verify.drivers.rules.example import Example, one_of, rule, when

COMMANDS = ("finish", "fold", "fail", "write", "swallow", "tidy", "nonsense", "strike", "leave")
"""The commands that a runner obeys; ``Player.obey`` says what each does."""

_COMMANDS = st.lists(st.sampled_from(("finish", *COMMANDS)), min_size=1, max_size=3)
_AFTER_FOLD = st.lists(st.sampled_from(("finish", "fail", "fail", *COMMANDS)), min_size=1, max_size=2)


class RunnerRules(Example):
    """What runners do."""

    @when(lambda self: self.players)
    @rule(run=one_of(lambda self: self.players), does=_COMMANDS)
    def runner(self, run: str, does: list[str]) -> None:
        """Give a runner commands. It obeys when its task runs next; only ``strike`` acts at once."""
        self._command(run, does)

    @when(lambda self: self.followed)
    @rule(run=one_of(lambda self: self.followed), does=_AFTER_FOLD)
    def fold(self, run: str, does: list[str]) -> None:
        """Have a runner fold the follow-ups in the queue, and then do something else."""
        self._command(run, ["fold", *does])

    @when(lambda self: self.players)
    @rule(does=_COMMANDS)
    def runners(self, does: list[str]) -> None:
        """Give every runner the same commands."""
        for run in self.players:
            self._command(run, does)

    @when(lambda self: self.cleaning)
    @rule(run=one_of(lambda self: self.cleaning))
    def cleaned_up(self, run: str) -> None:
        """Have a runner that is cleaning up come to the end of that."""
        if run in self.cleaning:  # in a shrunk program it may not be
            self.world.runner.players[run].cleaned_up()

    @when(lambda self: self.world.runner.left)
    @rule(nth=one_of(lambda self: range(len(self.world.runner.left))), thread=st.booleans())
    def left_over(self, nth: int, thread: bool) -> None:
        """Have a thread or a task that a runner left behind use its turn, the task when it runs next."""
        left = self.world.runner.left[nth]
        if thread:
            left.act_as_thread()
        elif left.waits:
            left.act()

    def _command(self, run: str, does: list[str]) -> None:
        for command in does:
            self.tally.reached.add(f"runner: {command}")
            self.world.runner.players[run].obey(command)
