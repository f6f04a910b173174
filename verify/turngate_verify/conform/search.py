"""Random programs, longer than those that the suite enumerates. Hypothesis draws and shrinks them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import SkipTest

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from turngate_model.properties import Property, Violation
from turngate_verify.conform.judge import Judge, ProgramLimits
from turngate_verify.conform.port import SubjectFailed
from turngate_verify.conform.programs import Name, Op
from turngate_verify.world.expecting import Broken

if TYPE_CHECKING:
    from turngate_verify.conform.suites import Suite

LIMITS = ProgramLimits(prompts=8, cancels=4, sessions=2)
"""How much a random program may do."""


def search(suite: Suite) -> None:
    """Search for one broken property after the other, until there is no other or time runs out."""
    known: set[Property] = set(suite.result.counterexamples)
    while not suite.out_of_time and suite.effort.examples:
        found = _search_once(suite, known)
        if found is None:
            return
        known.add(found)


def _search_once(suite: Suite, known: set[Property]) -> Property | None:
    """Return a property that was not known to be broken, or None. The suite keeps its shrunk program."""

    class Rules(PortRules):
        pass

    Rules.suite, Rules.known = suite, known
    # This search plays the programs of the earlier ones again, and counts them again.
    suite.result.examples.update(dict.fromkeys(suite.result.examples, 0))
    configured = settings(
        max_examples=suite.effort.examples,
        stateful_step_count=suite.effort.steps,
        deadline=None,
        database=None,
        print_blob=False,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    try:
        run_state_machine_as_test(seed(suite.effort.seed)(Rules), settings=configured)
    except SkipTest:
        return None
    except Broken as broken:
        return broken.violation.property
    except (SubjectFailed, Flaky):
        if suite.stopped:
            raise suite.stopped from None
        raise SubjectFailed("it does not do the same when the same program is played again") from None
    return None


class PortRules(RuleBasedStateMachine):
    """One rule for each operation of the port."""

    suite: Suite
    known: set[Property]

    def __init__(self) -> None:
        super().__init__()
        self.stop_in_time()
        self.judge = Judge(self.suite.fresh())
        self.enabled = self.judge.enabled(LIMITS)

    def stop_in_time(self) -> None:
        """End the search, and not only this example, when time has run out."""
        if self.suite.out_of_time:
            raise SkipTest("time ran out")

    def could(self, name: Name) -> list[Op]:
        """Return the operations of this name that make sense now."""
        return [op for op in self.enabled if op.name == name]

    def do(self, name: Name, data: st.DataObject) -> None:
        """Do one of them. The program ends at its first offence."""
        self.stop_in_time()
        with self.suite.stopping():
            self.judge.take(data.draw(st.sampled_from(self.could(name))))
        self.enabled = [] if self.judge.violations else self.judge.enabled(LIMITS)
        self.report([*(violation for violation, _ in self.judge.late), *self.judge.violations])

    def report(self, violations: list[Violation]) -> None:
        """Raise Broken for the first property that was not known to be broken."""
        for violation in violations:
            if violation.property not in self.known:
                self.suite.keep(violation, self.judge.program, self.judge.steps)
                raise Broken(violation)

    @precondition(lambda self: self.could("accept"))
    @rule(data=st.data())
    def accept(self, data: st.DataObject) -> None:
        """Take a prompt in."""
        self.do("accept", data)

    @precondition(lambda self: self.could("enter"))
    @rule(data=st.data())
    def enter(self, data: st.DataObject) -> None:
        """Enter an accepted run."""
        self.do("enter", data)

    @precondition(lambda self: self.could("cancel"))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel a session."""
        self.do("cancel", data)

    @precondition(lambda self: self.could("clear"))
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        """Clear a queue."""
        self.do("clear", data)

    @precondition(lambda self: self.could("fold"))
    @rule(data=st.data())
    def fold(self, data: st.DataObject) -> None:
        """Have a runner ask for follow-ups."""
        self.do("fold", data)

    @precondition(lambda self: self.could("finish"))
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """Have a runner return."""
        self.do("finish", data)

    @precondition(lambda self: self.could("fail"))
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        """Have a runner fail."""
        self.do("fail", data)

    @precondition(lambda self: not self.enabled)
    @rule()
    def nothing_more(self) -> None:
        """Do nothing. Hypothesis needs a rule also when the program has come to its end."""

    def teardown(self) -> None:
        """Play the program again without what should make no difference, and compare."""
        self.judge.close()
        if not self.judge.violations:
            self.report(self.suite.compare(self.judge))
