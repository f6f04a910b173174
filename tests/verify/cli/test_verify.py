"""``turngate verify``: it asks every check, counts what they did, and hears what each has to say.

The checks have their own tests, so here they are asked in small, once, and made to say what they would not.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import pytest

import broken_dispatchers
from explored import refuted
from proving import a_proof
from surroundings import ROOT
from turngate import Dispatcher
from turngate_model import (
    DURABLE_DESIGNS,
    EVERY_DESIGN,
    LIMB_DESIGNS,
    MECHANISMS,
    Design,
    Mechanism,
    Property,
    Violation,
)
from turngate_model.checker import Bounds, DurableBounds, Exploration, Explorer, MemoryModel
from turngate_model.durable import DURABLE_MECHANISMS, DurableModel
from turngate_model.proof import Proof
from turngate_model.proof.teeth import Needed
from turngate_model.properties import DurableProperty
from turngate_verify.cli import run
from turngate_verify.cli import verify as command
from turngate_verify.cli.durable import hold
from turngate_verify.cli.show import DriverLine, driver
from turngate_verify.cli.show import out as out_terminal
from turngate_verify.cli.verification import (
    NOT_ON_LEDGERS,
    OF_THE_LINE,
    SEEN_BY_CALLERS,
    Verification,
    as_object,
    print_verification,
)
from turngate_verify.cli.workers import NoWorkers, Workers
from turngate_verify.drivers.faults import inject_faults
from turngate_verify.drivers.ledger_calls import Case
from turngate_verify.drivers.ledger_calls import Found as LedgerCalls
from turngate_verify.drivers.ledger_faults import Found as LedgerFaults
from turngate_verify.drivers.ledger_lockstep import compare_on_ledger
from turngate_verify.drivers.ledger_rules import LedgerRules, to_reach
from turngate_verify.drivers.ledger_sabotage import find_ledger_sabotage
from turngate_verify.drivers.ledger_scenarios import ACCEPT as LEDGER_ACCEPT
from turngate_verify.drivers.ledger_scenarios import SMALL as LEDGER_SCENARIOS
from turngate_verify.drivers.ledger_schedules import Explored as LedgerExplored
from turngate_verify.drivers.ledger_schedules import explore as explore_on_ledger
from turngate_verify.drivers.limb_sabotage import LimbFound, find_limb_sabotage
from turngate_verify.drivers.lockstep import Lockstep, compare
from turngate_verify.drivers.network_check import NetworkChecked
from turngate_verify.drivers.network_found import NetworkRules
from turngate_verify.drivers.rules.reached import Tally
from turngate_verify.drivers.rules.search import TO_REACH, Rules
from turngate_verify.drivers.sabotage import SABOTAGES
from turngate_verify.drivers.schedules import explore_schedules
from turngate_verify.report.pages import page

PROCESSES = DurableBounds(losses=0, loads=0)
ON_LEDGER = tuple(each for each in LEDGER_SCENARIOS if each.calls == (LEDGER_ACCEPT,))
SMALL = command.Thoroughness(
    Bounds(2, 1),
    Bounds(2, 0),
    examples=300,
    seeds=1,
    scenarios=("one", "two"),
    durable=(PROCESSES,),
    ledger_lockstep=(Bounds(2, 1),),
    ledger_scenarios=ON_LEDGER,
)
STATES = {SMALL: 596, command.QUICK: 16_475}


def verify(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = run(["verify", "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    return code, json.loads(captured.out)


def see_that_it_holds_and_counts(thoroughness: command.Thoroughness, code: int, told: dict[str, Any]) -> None:
    assert (code, told["verdict"], told["problems"]) == (0, "holds", [])
    assert set(told["properties"]) | set(told["model"]) == {*map(str, Property), *map(str, DurableProperty)}
    not_made = {"proof" for each in told["unchecked"] if each.startswith("the proof for any number")}
    for each, checked in told["properties"].items():
        assert checked["verdict"] == "holds"
        checks = (
            {"processes"} if each in map(str, DurableProperty) else {"waiting", "proof", "lockstep", "rules"}
        )
        if each not in NOT_ON_LEDGERS:
            checks |= {"ledger rules", "ledger faults", "ledger schedules"}
        if each in map(str, Property) and each not in NOT_ON_LEDGERS:
            checks |= {"ledger lockstep"}
        if each in map(str, Property) and each not in OF_THE_LINE:
            assert checked["checks"]["model"]["states"] == STATES[thoroughness]
            checks |= {"model", "schedules", "faults"}
        if each in map(str, SEEN_BY_CALLERS):
            checks |= {"network"}
        assert set(checked["checks"]) == checks - not_made
        for name, counts in checked["checks"].items():
            # A property may follow from few conditions; whatever is tried, is tried often.
            assert all(number >= (1 if name == "proof" else 50) for number in counts.values())
    assert set(told["designs"]) == {*EVERY_DESIGN, *DURABLE_DESIGNS, *LIMB_DESIGNS}
    for name, found in told["designs"].items():
        assert found["refuted"]
        design = EVERY_DESIGN.get(name) or DURABLE_DESIGNS.get(name) or LIMB_DESIGNS[name]
        assert set(found["by"]) <= set(map(str, design.breaks))
        assert found["steps"] >= 2 or name in LIMB_DESIGNS
        # On a ledger a design shows in the result, which may be another property.
        breaks = [*DurableProperty, *Property] if name in DURABLE_DESIGNS else design.breaks
        assert any(found["real"].startswith(broken) for broken in breaks)
    see_that_processes_hold_and_are_counted(thoroughness, told)


def see_that_processes_hold_and_are_counted(thoroughness: command.Thoroughness, told: dict[str, Any]) -> None:
    durable = told["durable"]
    assert durable["verdict"] == "holds"
    for each in DurableProperty:
        assert told["properties"][each]["checks"]["processes"]["states"] > 3_000
    assert [each["on_death"] for each in durable["models"]] == [
        each.on_death for each in thoroughness.durable
    ]


@pytest.mark.deep
def test_everything_holds_and_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    see_that_it_holds_and_counts(command.QUICK, *verify(capsys))


class Explored(NamedTuple):
    """An explorer that explores the same only once."""

    bounds: Bounds
    mechanism: type[Mechanism] = Mechanism

    def run(self) -> Exploration[Bounds]:
        return exploration(self)


def explored(model: MemoryModel, mechanism: type[Mechanism] = Mechanism) -> Explored:
    return Explored(model.bounds, mechanism)


@cache
def exploration(of: Explored) -> Exploration[Bounds]:
    return Explorer(MemoryModel(*of)).run()


def rules(
    examples: int, *, make: type[Dispatcher] = Dispatcher, claimed: Iterable[Property] = (), **_seed: Any
) -> Rules:
    """Say that everything is reached, and that a design breaks what it is said to."""
    violations = [Violation(broken, f"as {make.__name__} does") for broken in claimed]
    return Rules(examples, 10 * examples, TO_REACH, next(iter(violations), None))


explored_before = cache(explore_schedules)


compared_on_ledger, explored_on_ledger = cache(compare_on_ledger), cache(explore_on_ledger)
found_before, found_in_limbs = cache(find_ledger_sabotage), cache(find_limb_sabotage)


def ledger_rules(examples: int, *, on_death: Literal["fail", "retry"], **about: Any) -> LedgerRules:
    found: dict[str, Any] = {"reached": to_reach(on_death), "missed": frozenset(), "wrong": [], "program": []}
    return LedgerRules(examples, **{**found, **about})


def checked_network(
    examples: int,
    *,
    has_ledger: bool,
    missed: Iterable[str] = (),
    wrong: Iterable[str] = (),
    found: str = "gone",
) -> NetworkChecked:
    rules = NetworkRules(examples, frozenset(), frozenset(missed), [*wrong], [])
    return NetworkChecked(rules, {"deaf-follower" if has_ledger else "cancel-resent": found})


@pytest.fixture
def _in_small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "QUICK", SMALL)
    monkeypatch.setattr(command, "Explorer", explored)
    monkeypatch.setattr(command, "Workers", NoWorkers)
    monkeypatch.setattr(command, "what_to_install", lambda: "")
    monkeypatch.setattr(command, "prove", lambda _effort: a_proof())
    monkeypatch.setattr(command, "compare", compared)
    monkeypatch.setattr(command, "run_rules", rules)
    monkeypatch.setattr(command, "explore_schedules", explored_before)
    monkeypatch.setattr(command, "inject_faults", injected)
    monkeypatch.setattr(command, "find_ledger_sabotage", found_before)
    monkeypatch.setattr(command, "find_limb_sabotage", found_in_limbs)
    monkeypatch.setattr(command, "check_network", checked_network)
    monkeypatch.setattr(command, "compare_on_ledger", compared_on_ledger)
    monkeypatch.setattr(command, "run_ledger_rules", ledger_rules)
    monkeypatch.setattr(command, "inject_ledger_faults", lambda *, remembers: LedgerFaults(300, ""))
    monkeypatch.setattr(command, "fail_calls", lambda *, every: LedgerCalls(300, Counter(), {}))
    monkeypatch.setattr(command, "explore_on_ledger", explored_on_ledger)
    monkeypatch.setattr(command, "refute", lambda design: refuted(design.name))


compared = cache(compare)
injected = cache(partial(inject_faults, ("closed",)))


@pytest.mark.usefixtures("_in_small")
def test_in_small_everything_holds_and_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    see_that_it_holds_and_counts(SMALL, *verify(capsys))


@pytest.mark.usefixtures("_in_small")
def test_a_proof_that_cannot_be_made_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "what_to_install", lambda: "cvc5 not installed")
    code, told = verify(capsys)
    see_that_it_holds_and_counts(SMALL, code, told)
    assert any("cvc5 not installed" in each for each in told["unchecked"])


def proving(**about: Any) -> Callable[[Any], Proof]:
    return lambda _effort: dataclasses.replace(a_proof(), **about)


def of_the_dispatcher(said: Rules) -> Callable[..., Rules]:
    return lambda examples, **about: rules(examples, **about) if "make" in about else said


def overlooking(name: str) -> Callable[..., Rules]:
    def overlook(examples: int, *, make: type[Dispatcher] = Dispatcher, **about: Any) -> Rules:
        return (
            rules(examples, make=make)
            if make is SABOTAGES[name].make
            else rules(examples, make=make, **about)
        )

    return overlook


def never_refuting(name: str) -> Callable[[Design[Property]], Exploration[Bounds]]:
    return lambda design: exploration(Explored(SMALL.model)) if design.name == name else refuted(design.name)


FINE = rules(300)

HEARD: dict[str, tuple[str, Any, int, str]] = {
    "the model breaks": (
        "Explorer",
        partial(explored, mechanism=MECHANISMS["leaky-session"]),
        1,
        "NO_RESIDUE",
    ),
    "the model is not put to the test": ("QUICK", dataclasses.replace(SMALL, model=Bounds(1, 1)), 3, "FIFO"),
    "a proof fails": ("prove", proving(refuted={"FIFO": ["Z3: no"]}), 1, "FIFO"),
    "a proof is not found": ("prove", proving(undecided={"R-LIV-1": ["Z3: no"]}), 3, "EXACTLY_ONE_COMPLETE"),
    "a tooth does not bite": ("prove", proving(needed=Needed({}, [])), 3, "FIFO"),
    "the dispatcher is out of step": (
        "compare",
        partial(compare, make=SABOTAGES["leaky-session"].make),
        1,
        "NO_RESIDUE",
    ),
    "a move is not seen": ("QUICK", dataclasses.replace(SMALL, lockstep=Bounds(1, 0)), 3, "DECLARED_MOVE"),
    "the rules break": (
        "run_rules",
        of_the_dispatcher(dataclasses.replace(FINE, violation=Violation(Property.FIFO, "out of order"))),
        1,
        "FIFO",
    ),
    "the rules raise": (
        "run_rules",
        of_the_dispatcher(dataclasses.replace(FINE, error="LookupError: r1")),
        1,
        "rules: LookupError: r1",
    ),
    "the rules miss something": (
        "run_rules",
        of_the_dispatcher(dataclasses.replace(FINE, reached=TO_REACH - {"rule: cancel"})),
        3,
        "rules never reached rule: cancel",
    ),
    "a schedule breaks": (
        "explore_schedules",
        partial(explore_schedules, make=broken_dispatchers.SplitEntry),
        1,
        "ONE_TURN",
    ),
    "schedules are left out": (
        "explore_schedules",
        partial(explore_schedules, limit=3),
        3,
        "schedules of one, any: not complete",
    ),
    "a fault is not stood": (
        "inject_faults",
        partial(inject_faults, ("handed-off",), make=broken_dispatchers.Unwatched),
        1,
        "EXACTLY_ONE_COMPLETE",
    ),
    "a design is not refuted": ("refute", never_refuting("idle-gap"), 1, "idle-gap"),
    "a design is not found": (
        "run_rules",
        overlooking("idle-gap"),
        1,
        "idle-gap on the real dispatcher was not found by the rules",
    ),
    "the ledgers are out of step": (
        "compare_on_ledger",
        lambda bounds, processes: Lockstep(1, 1, violation=Violation(Property.HELD, "b starts")),
        1,
        "HELD",
    ),
    "the rules break on ledgers": (
        "run_ledger_rules",
        partial(ledger_rules, wrong=["ADOPTED: something is in flight for ever"]),
        1,
        "ADOPTED",
    ),
    "the rules miss something on ledgers": (
        "run_ledger_rules",
        partial(ledger_rules, missed=frozenset({"end: lost"})),
        3,
        "ledger rules, on death fail, never reached end: lost",
    ),
    "a fault on a ledger is not stood": (
        "inject_ledger_faults",
        lambda *, remembers: LedgerFaults(
            3, "a run, kill at point 0, fail: DURABLE: run a has no completion"
        ),
        1,
        "DURABLE",
    ),
    "a call that fails is not stood": (
        "fail_calls",
        lambda *, every: LedgerCalls(3, Counter(), {Case("questions", many=False, fault=None): ["a hangs"]}),
        1,
        "a hangs",
    ),
    "a schedule on ledgers breaks": (
        "explore_on_ledger",
        lambda scenario: LedgerExplored(3, 9, wrong=["FENCED: a was finished"], choices=["kill process 0"]),
        1,
        "FENCED",
    ),
    "schedules on ledgers are left out": (
        "explore_on_ledger",
        partial(explore_on_ledger, limit=2),
        3,
        f"ledger schedules of {ON_LEDGER[0].name}: not exhausted",
    ),
    "a design is not found on ledgers": (
        "find_ledger_sabotage",
        lambda name: LedgerExplored(7, 9, exhausted=True),
        1,
        "no-fence on ledgers was not found by the schedules",
    ),
    "a design of the limbs is not found": (
        "find_limb_sabotage",
        lambda name: LimbFound([], []),
        1,
        "deaf-follower was not found in the real code",
    ),
    "a program over a network breaks": (
        "check_network",
        partial(checked_network, wrong=["NEVER_POISONED: b is cancelled"]),
        1,
        "NEVER_POISONED",
    ),
    "a caller over a network hangs": (
        "check_network",
        partial(checked_network, wrong=["a caller hangs"]),
        1,
        "a caller hangs",
    ),
    "programs over a network miss something": (
        "check_network",
        partial(checked_network, missed=["restart: kill"]),
        3,
        "rules over a network never reached restart: kill",
    ),
    "a design is not found over the network": (
        "check_network",
        partial(checked_network, found=""),
        1,
        "cancel-resent was not found over the network",
    ),
    "the check of a limb finds something in the right code": (
        "find_limb_sabotage",
        lambda name: LimbFound(["EXACTLY_ONE_COMPLETE: gone"], ["EXACTLY_ONE_COMPLETE: gone"]),
        1,
        "EXACTLY_ONE_COMPLETE",
    ),
}


@pytest.mark.usefixtures("_in_small")
@pytest.mark.parametrize("name", HEARD)
def test_what_one_check_says_decides(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check, says, exit_code, about = HEARD[name]
    monkeypatch.setattr(command, check, says)
    code, told = verify(capsys)
    assert (code, told["verdict"]) == (exit_code, {1: "violated", 3: "unknown"}[exit_code])
    verdicts = {each: found["verdict"] for each, found in told["properties"].items()} | told["model"]
    refutations = {
        name: "holds" if found["refuted"] else "violated" for name, found in told["designs"].items()
    }
    said = [each for each, verdict in {**verdicts, **refutations}.items() if verdict == told["verdict"]]
    assert any(problem.startswith(about) for problem in [*told["problems"], *said])


def unrefuted(name: str) -> Exploration[DurableBounds]:
    return Exploration(PROCESSES, name)


def broken_model(bounds: DurableBounds) -> Exploration[DurableBounds]:
    return Explorer(DurableModel(bounds, DURABLE_MECHANISMS["orphaned-accept"])).run()


def untested_model(bounds: DurableBounds) -> Exploration[DurableBounds]:
    return Explorer(DurableModel(dataclasses.replace(bounds, crashes=0))).run()


@pytest.mark.parametrize(
    ("check", "says", "verdict", "about"),
    [
        ("hold", hold, "holds", "FENCED holds, model only"),
        ("refuted", unrefuted, "violated", "no-fence not refuted"),
        ("hold", broken_model, "violated", "ADOPTED violated"),
        ("hold", untested_model, "unknown", "DURABLE, ADOPTED"),
    ],
)
def test_what_the_model_of_processes_says_decides(
    check: str,
    says: Any,
    verdict: str,
    about: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, check, says)
    verification = Verification()
    with driver("processes") as told:
        command._Processes((PROCESSES,), cast("Workers", NoWorkers())).told(verification, told)
    assert verification.durable.verdict == verdict
    assert verification.verdict == ("violated" if verdict == "violated" else "unknown")
    assert as_object(verification)["durable"]["verdict"] == verdict
    print_verification(verification)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert any(about in line for line in lines)
    shown = page(verification)
    assert "every process" in shown
    assert ("no-fence is not refuted" in shown) == (check == "refuted")
    if verdict == "holds":
        see_that_processes_hold_and_are_counted(SMALL, as_object(verification))


def test_where_only_the_model_was_looked_at_the_verdict_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    verification = Verification()
    verification.checks[Property.HELD]["waiting"] = {"states": 7}
    verification.checks[Property.FIFO] |= {"model": {"states": 7}, "rules": {"examples": 3}}
    print_verification(verification)
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "HELD holds, model only" in lines
    assert "FIFO holds" in lines


DRIVERS = [
    "model",
    "waiting",
    "proof",
    "lockstep",
    "rules",
    "schedules",
    "faults",
    "ledger",
    "ledger",
    "ledger",
    "ledger",
    "designs",
    "sabotage",
    "clients",
    "network",
    "processes",
    "diagrams",
]


@pytest.mark.usefixtures("_in_small")
def test_in_a_pipe_each_driver_has_its_line_and_each_property_is_named_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["verify"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert [line.split()[0] for line in lines[: len(DRIVERS)]] == DRIVERS
    assert lines[0].split()[1:3] == ["596", "states,"]
    assert all(line.endswith(" s") for line in lines[: len(DRIVERS)])
    assert lines[len(DRIVERS)] == ""
    firsts = [line.split()[0] for line in lines if line.strip()]
    for each in (*Property, *DurableProperty):
        assert firsts.count(str(each)) == 1
    assert out.count("596") == 1


@pytest.mark.usefixtures("_in_small")
def test_the_lines_come_while_the_drivers_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    monkeypatch.setattr(out_terminal, "print", lambda *said, **_: printed.append(str(said[0])))
    counted_at: list[int] = []

    def prove(_effort: object) -> Proof:
        counted_at.append(len(printed))
        return a_proof()

    monkeypatch.setattr(command, "prove", prove)
    command.run_drivers(Verification(), SMALL)
    assert counted_at == [2]  # behind the model and the line
    assert len(printed) == len(DRIVERS)


def test_while_it_is_at_work_a_driver_says_how_far_it_is() -> None:
    line = DriverLine("rules")
    tally = Tally()
    line.counts = lambda: f"{tally.examples} examples"
    assert line.told().split() == ["rules", "0", "examples", "0.0", "s"]
    tally.examples = 7
    assert "7 examples" in line.told()
    assert [len(line.told(width)) for width in (200, 80, 10)] == [99, 80, 37]


@pytest.mark.usefixtures("_in_small")
def test_clients_that_are_not_installed_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = NetworkChecked(None, {}, "httpx2 is not installed")
    monkeypatch.setattr(command, "check_network", lambda _examples, *, has_ledger: lacking)
    code, told = verify(capsys)
    assert code == 0
    assert any("httpx2 is not installed" in each for each in told["unchecked"])
    assert "network" not in told["properties"]["NO_RESIDUE"]["checks"]
