"""The test vectors: what is committed is what is generated, the sound pass, and the others are refuted."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import turngate_itself

from conforming import FLAWS as PLAIN_FLAWS
from conforming import Plain, flawed
from surroundings import ROOT
from turngate import Dispatcher
from turngate_model import DESIGNS, Property
from turngate_model.designs import SMALL_FLAWS
from turngate_verify.conform import JUDGED, Command, Features, Subject, Wrote, written
from turngate_verify.conform.port import SubjectHangs
from turngate_verify.drivers.sabotage import SABOTAGES
from turngate_verify.vectors import (
    FLAWS,
    REFUTABLE,
    UNSHOWN,
    VERSION,
    Vector,
    can_play,
    full,
    lines,
    minimal,
    play_vector,
    read,
)
from turngate_verify.vectors.at_rest import ModelSubject
from turngate_verify.vectors.orders import allowed

COMMITTED = ROOT / "vectors" / "minimal.jsonl"
VECTORS = read(COMMITTED.read_text(encoding="utf-8"))
NODE = ROOT / "examples" / "conformance" / "node"


def of(dispatcher: type[Dispatcher]) -> Callable[[], Subject]:
    """Return what makes subjects of a dispatcher of ours, sound or not."""

    class Ours(turngate_itself.TurngateSubject):
        def start(self) -> None:
            self.runs, self.turns = {}, {}
            messages = turngate_itself.ShownMessages(self)
            self.dispatcher = dispatcher(self.agent, messages=messages, record=self.recorded)
            self.dispatcher._home._warns_if_dropped = False  # a broken one may never come to its close

    return Ours


def never_closed(make: Any) -> Callable[[], Subject]:
    """Return what makes the same subjects, whose dispatchers are not closed in the end."""

    class NeverClosed(make):  # type: ignore[misc]
        async def do_close(self) -> None:
            pass

    return NeverClosed


def refuting(make: Callable[[], Subject], vectors: list[Vector]) -> list[Vector]:
    """Return the vectors in which a subject differs, of those that it can play."""
    return [vector for vector in vectors if can_play(made_by(make), vector) and play_vector(make, vector)]


def made_by(make: Callable[[], Subject]) -> Features:
    subject = make()
    subject.close()
    return subject.features


def test_what_is_committed_is_what_is_generated() -> None:
    made = [*lines("minimal", minimal())]
    assert COMMITTED.read_text(encoding="utf-8").splitlines() == made, "run: make vectors"


def test_what_is_written_is_read_again() -> None:
    assert [*lines("minimal", VECTORS)] == COMMITTED.read_text(encoding="utf-8").splitlines()


def test_vectors_of_another_version_are_refused() -> None:
    text = COMMITTED.read_text(encoding="utf-8").replace(f'"vectors": {VERSION}', '"vectors": 99', 1)
    with pytest.raises(ValueError, match="version 99"):
        read(text)


def test_a_step_that_is_not_what_the_program_says_is_refused() -> None:
    with pytest.raises(ValueError, match="is not what the program says"):
        read(
            COMMITTED.read_text(encoding="utf-8").replace(
                '"op": "fail", "run": "a"', '"op": "fail", "run": "b"'
            )
        )


def test_the_designs_are_those_that_are_refuted_and_those_that_cannot_be_shown() -> None:
    assert set(DESIGNS) == (REFUTABLE.keys() - FLAWS.keys()) | UNSHOWN.keys()
    assert not REFUTABLE.keys() & UNSHOWN.keys()
    assert {name for vector in VECTORS for name in vector.refutes} == REFUTABLE.keys()


def test_every_property_that_the_port_can_show_is_guarded_and_every_design_breaks_what_it_is_known_for() -> (
    None
):
    guarded = {each for vector in VECTORS for each in vector.guards}
    assert guarded == set(JUDGED) - {Property.NO_RESIDUE}
    broken: dict[str, set[Property]] = {}
    for vector in VECTORS:
        for name, each in vector.refutes.items():
            broken.setdefault(name, set()).add(each)
    for name in DESIGNS.keys() - UNSHOWN.keys():
        # A RunComplete that is left to the successor is missed when the successor starts.
        assert broken[name] <= {*DESIGNS[name].breaks, Property.LAST_WORD}, name
    assert {name: set(flaw.breaks) for name, flaw in SMALL_FLAWS.items()} == {
        name: broken[name] for name in FLAWS
    }


def test_no_vector_could_be_left_out() -> None:
    for vector in VECTORS:
        others = [each for each in VECTORS if each is not vector and set(each.needs) <= set(vector.needs)]
        elsewhere = {pair for each in others for pair in each.refutes.items()}
        assert vector.refutes.items() - elsewhere, written(vector.program)


@pytest.mark.parametrize(
    "make",
    [
        ModelSubject,
        lambda: ModelSubject(two_phase=False),
        Plain,
        turngate_itself.TurngateSubject,
    ],
    ids=["the mechanism", "the mechanism in one phase", "a plain dispatcher", "Turngate"],
)
def test_a_sound_subject_differs_in_none(make: Callable[[], Subject]) -> None:
    playable = [vector for vector in VECTORS if can_play(made_by(make), vector)]
    assert len(playable) >= 10
    for vector in playable:
        assert (difference := play_vector(make, vector)) is None, str(difference)


@pytest.mark.parametrize("name", [name for name in DESIGNS if name not in UNSHOWN])
def test_every_sabotage_that_the_port_can_show_is_refuted_by_vectors_that_say_so(name: str) -> None:
    """The design of the model may be refuted in more of them: ``hasty-clear`` is a little hastier there."""
    refuted_in = refuting(of(SABOTAGES[name].make), VECTORS)
    assert refuted_in
    for vector in refuted_in:
        assert name in vector.refutes, written(vector.program)


def showing(name: str, vectors: list[Vector]) -> list[Vector]:
    """Return the vectors that refute a sabotage which they should not be able to show.

    The one that keeps its sessions takes them for busy ones, so a prompt in the mode `reject` can tell, and
    so can its close, which waits for them: it is left out here.
    """
    make = of(SABOTAGES[name].make)
    refuted_in = refuting(never_closed(make) if name == "leaky-session" else make, vectors)
    return [vector for vector in refuted_in if name != "leaky-session" or "reject" not in vector.needs]


@pytest.mark.parametrize("name", UNSHOWN)
def test_the_other_sabotages_are_refuted_by_none(name: str) -> None:
    assert showing(name, VECTORS) == []


def test_the_close_of_one_that_keeps_its_sessions_hangs() -> None:
    subject = of(SABOTAGES["leaky-session"].make)()
    subject.accept("s", "a")
    with pytest.raises(SubjectHangs):
        subject.close()


@pytest.mark.parametrize("flaw", PLAIN_FLAWS)
def test_every_flaw_of_a_plain_dispatcher_is_refuted(flaw: str) -> None:
    assert refuting(flawed(flaw), VECTORS)


@pytest.mark.needs("node")
@pytest.mark.parametrize(("name", "flaw"), [("repaired.mjs", None), ("stranded.mjs", "stranded-queue")])
def test_the_pair_of_node(name: str, flaw: str | None) -> None:
    command = Command("node", str(NODE / name), timeout=600.0)
    try:
        command()
        playable = [vector for vector in VECTORS if can_play(command.features, vector)]
        assert {"basic", "cancel", "clear"} == {vector.feature for vector in playable}
        differing = [vector for vector in playable if play_vector(command, vector)]
        assert differing == [vector for vector in playable if flaw in vector.refutes]
    finally:
        command.stop()


def orders_of(vector: Vector, nth: int) -> Iterator[bool]:
    """Say of every order of the events of a step that is not in the vector whether the judge allows it."""
    features = Features(
        two_phase="two_phase" in vector.needs, folds=True, clear=True, messages="messages" in vector.needs
    )
    script = tuple(step.may[0] for step in vector.steps[:nth])
    for order in set(itertools.permutations(vector.steps[nth].may[0])) - set(vector.steps[nth].may):
        yield allowed(vector.program[: nth + 1], (*script, order), features)


def test_an_order_may_be_seen_exactly_if_the_judge_allows_it() -> None:
    for vector in VECTORS:
        for nth in range(len(vector.steps)):
            assert not any(orders_of(vector, nth)), (written(vector.program), nth)


def test_a_difference_is_shown_with_what_may_be_seen() -> None:
    vector = next(each for each in VECTORS if written(each.program) == "cancel, accept a")
    difference = play_vector(flawed("leaves a flag"), vector)
    assert str(difference) == (
        "cancel, accept a: may be seen: [{'event': 'enter', 'run': 'a', 'state': 'active'}]; is seen: "
        "[{'event': 'enter', 'run': 'a', 'state': 'cancel_on_entry'}, "
        "{'event': 'complete', 'run': 'a', 'cancelled': True}]"
    )


@cache
def everything() -> list[Vector]:
    return full()


@pytest.mark.deep
def test_the_full_set_holds_more_than_the_minimal_one_and_no_program_twice() -> None:
    programs = [(vector.needs, vector.program) for vector in everything()]
    assert len(set(programs)) == len(programs) > 1000
    assert {vector.feature for vector in everything()} == {vector.feature for vector in VECTORS}
    assert any(isinstance(event, Wrote) for vector in everything() for event in vector.steps[-1].may[0])


@pytest.mark.deep
def test_turngate_differs_in_none_of_the_full_set() -> None:
    for vector in everything():
        assert (difference := play_vector(turngate_itself.TurngateSubject, vector)) is None, str(difference)


@pytest.mark.deep
@pytest.mark.parametrize("name", UNSHOWN)
def test_the_other_sabotages_are_refuted_by_none_of_the_full_set(name: str) -> None:
    assert showing(name, everything()) == []
