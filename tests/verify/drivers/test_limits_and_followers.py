"""What servers need, driven by rules, schedules and faults: a mistake in any of it is found."""

from __future__ import annotations

import pytest

import broken_followers
from turngate import Dispatcher
from turngate_verify.drivers.faults import inject_faults
from turngate_verify.drivers.rules.program import RuleCall, run_program
from turngate_verify.drivers.rules.search import TO_REACH, rules_of, run_rules
from turngate_verify.drivers.schedules import explore_schedules
from turngate_verify.world.world import World

FOUND_BY_RULES = {  # soon with this seed, and what is said of it
    "CallsOneTooMany": (0, "no place is free: it should wait"),
    "StarvesOthers": (6, "is called ahead of the turn of session"),
    "KeepsThePlaceWhileItSettles": (4, "waits for a place although one is free"),
    "LosesThePlaceOfTheCancelled": (3, "waits for a place although one is free"),
    "CallsTheCancelled": (3, "which waits for no place: it should not be"),
    "TakesBackTheCalled": (3, "does something: it should change nothing"),
    "KnowsEverybody": (3, "says known=True: it should be False"),
    "LetsFollowersSleep": (3, "waits, though there are"),
    "TellsWhatIsLeft": (3, "completions end at"),
    "ClosesAStepLater": (2, "expected <class 'turngate._errors.DispatcherClosed'>"),
    "ShowsNobodyWaiting": (3, "was said to be waiting"),
    "SkipsBetweenPages": (0, "at a time gets ["),
    "FindsNoneThatWasFolded": (0, "are not the messages of the turn of"),
}
RARE = {"ClosesAStepLater"}
"""Those that take minutes to find."""


@pytest.mark.requirement("R-PLC-1", "R-PLC-2", "R-PLC-3", "R-PLC-4", "R-PLC-5", "R-LOK-4")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.deep if name in RARE else ()) for name in FOUND_BY_RULES],
)
def test_the_rules_find_a_mistake(name: str) -> None:
    seed, said = FOUND_BY_RULES[name]
    rules = run_rules(2_000, make=getattr(broken_followers, name), seed=seed)
    assert said in (rules.violation.what if rules.violation else rules.error)
    with pytest.raises(AssertionError):
        exec(rules.program, {})


FOUND_BY_SCHEDULES = {  # in this scenario, and what is said of it
    "CallsOneTooMany": ("one-place", "no place is free: it should wait"),
    "CallsTheLastInLine": ("in-line", "c is called ahead of the turn of session t"),
    "StarvesOthers": ("fair-line", "b is called ahead of the turn of session t"),
    "KeepsThePlaceWhileItSettles": ("one-place", "waits for a place although one is free"),
    "LosesThePlaceOfTheCancelled": ("one-place", "waits for a place although one is free"),
    "CallsTheCancelled": ("taken-back", "which waits for no place: it should not be"),
    "TakesBackTheCalled": ("taken-back", "does something: it should change nothing"),
    "TakesBackNoneInLine": ("taken-back", "says that it covers []: it should cover ['b']"),
    "LetsReadersSleep": ("streamed", "who follows a from 0 waits at 0, though 10 characters are written"),
    "LetsFoldedReadersSleep": ("streamed-late", "who follows b from 3 waits at 10, though 20"),
    "LetsFollowersSleep": ("followed", "who follows completions, 0 so far waits, though there are 1"),
    "CutsCleanUpShort": ("tidied", "the clean-up of the runner of a is cut short"),
    "ShowsNobodyWaiting": ("folded", "was said to be waiting"),
    "SkipsBetweenPages": ("paged", "who reads the messages of s, 1 at a time gets"),
    "FindsNoneThatWasFolded": ("folded", "are not the messages of the turn of b"),
}


@pytest.mark.requirement("R-PLC-1", "R-PLC-2", "R-PLC-3", "R-PLC-4", "R-PLC-5", "R-LOK-1", "R-LOK-4")
@pytest.mark.parametrize("name", FOUND_BY_SCHEDULES)
def test_the_schedules_find_a_mistake(name: str) -> None:
    scenario, said = FOUND_BY_SCHEDULES[name]
    failure = explore_schedules(scenario, "stock", make=getattr(broken_followers, name)).failure
    assert failure is not None
    assert said in failure.what


def test_no_mistake_goes_unfound() -> None:
    mistakes = {name for name, each in vars(broken_followers).items() if _is_mistake(each)}
    assert mistakes == {*FOUND_BY_RULES, *FOUND_BY_SCHEDULES, "WakesUnguarded"}


def _is_mistake(each: object) -> bool:
    bases = (broken_followers.WithPlaces, broken_followers.WithPages)
    if not isinstance(each, type) or each.__module__ != broken_followers.__name__:
        return False
    return issubclass(each, Dispatcher) and each not in bases


def test_the_faults_find_a_follower_whose_wake_up_costs_others_their_completion() -> None:
    failure = inject_faults(["limited"], make=broken_followers.WakesUnguarded).failure
    assert failure is not None
    assert (failure.kind, failure.broken) == ("dropped", "EXACTLY_ONE_COMPLETE")


def test_the_rules_must_reach_what_servers_need() -> None:
    followers = ("stream", "completions", "page", "follow", "messages_of")
    rules = ("turns_limit", "begin_close", "cleaned_up", *followers)
    assert {*(f"rule: {name}" for name in rules), "runner: tidy", "refused: CursorExpired"} <= TO_REACH


def test_a_loop_that_is_slow_to_run_a_timer_excuses_a_write() -> None:
    program = (
        RuleCall("submit", {"session": "s", "prompts": ["fold"], "waits": False}),
        RuleCall("store", {"plan": "slow", "then": 2}),
        RuleCall("runner", {"run": "r1", "does": ["nonsense"], "then": 1}),
        RuleCall("submit", {"session": "t", "prompts": ["interrupt"], "waits": False}),
        RuleCall("pass_time", {"seconds": 6.0, "blocked": False, "then": 1}),
        RuleCall("pass_time", {"seconds": 3.0, "blocked": False, "then": 2}),
    )
    assert run_program(rules_of(), program) is None


def test_of_two_turns_that_have_a_place_either_may_be_called_first() -> None:
    world = World(turns_limit=2)
    for run, session in zip("abc", "stu", strict=True):
        world.accept(session, run)
        world.enter(run)
    world.loop.step(1)
    world.check()
    assert [*world.runner.players] == ["b"]
    world.loop.settle()
    world.check()
    assert [*world.runner.players] == ["b", "a"]
    world.finish()
