"""What the pictures show: what a session remembers, who is covered, what arrives, what should have been."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import pytest

from explored import refuted
from turngate_model import EVERY_DESIGN, EVERY_MECHANISM, MECHANISMS, Mechanism
from turngate_model.checker.counterexample import PlayedStep
from turngate_model.history import Accept, Cancel, Complete, Ended, Enter, Handoff
from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Action
from turngate_model.pictures import grid, ink, sequence
from turngate_model.pictures.mermaid import mermaid
from turngate_model.pictures.overview import Overview, overview
from turngate_model.pictures.scenes import Scene, instead, of_counterexample
from turngate_model.pictures.walks import Shown, beside, following, shown, walked

SVG = "{http://www.w3.org/2000/svg}"


def scene_of(name: str) -> Scene:
    example = refuted(name).counterexample
    assert example is not None
    return of_counterexample(name, EVERY_DESIGN[name].flaw, example, EVERY_MECHANISM[name])


def texts(svg: str) -> list[str]:
    return [str(element.text) for element in ET.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", EVERY_DESIGN)
def test_a_design_breaks_in_the_last_step_of_its_picture_and_the_sound_mechanism_does_otherwise(
    name: str,
) -> None:
    broken, sound = scene_of(name).panels[0].sides
    example = refuted(name).counterexample
    assert example is not None
    assert example.property in {each.property for each in broken.walk[-1].broken}
    assert [moment.broken for moment in sound.walk] == [()] * len(broken.walk)
    assert sound.verdict.startswith("Instead")
    stands_still = sound.verdict == "Instead: from here the session goes on by itself."
    assert stands_still is (name == "nested-turn")
    assert ([each.view for each in broken.walk] == [each.view for each in sound.walk]) is stands_still


def test_the_flag_and_the_count_are_distinguished() -> None:
    flag, count = (texts(sequence.svg(scene_of(name))) for name in ("pending-flag", "pending-count"))
    assert {"flag: set", "flag: consumed by b"} <= {*flag}
    assert {"count = 1", "count: consumed by b"} <= {*count}
    assert "mark = 1" in flag  # the sound mechanism, beside it
    assert not {"flag: set", "flag: consumed by b"} & {*count}


def test_no_two_designs_look_the_same_below_their_titles() -> None:
    shown_below = {}
    for name in EVERY_DESIGN:
        drawn = texts(sequence.svg(scene_of(name)))
        below = [each for each in drawn if not each.startswith(name) and each not in EVERY_DESIGN[name].flaw]
        shown_below[name] = tuple(below)
    assert len({*shown_below.values()}) == len(EVERY_DESIGN)


def test_a_cancel_is_a_line_across_all_lanes_and_what_it_covers_is_hatched() -> None:
    scene = scene_of("silent-drop")
    drawn = ET.fromstring(sequence.svg(scene))
    across = [
        line
        for line in drawn.iter(f"{SVG}line")
        if line.get("stroke") == ink.LIGHT["bad"] and line.get("stroke-dasharray")
    ]
    assert len(across) == 2  # one on each side
    lanes = sequence._lanes(scene.panels[0])
    assert [(float(str(one.get("x1"))), float(str(one.get("x2")))) for one in across] == [
        (at.callers, at.right) for at in lanes
    ]
    # Broken: both runs and the call; sound: b is complete at once, so one run and the call. The legend.
    hatched = [path for path in drawn.iter(f"{SVG}path") if path.get("stroke") == "#1f2933"]
    assert len(hatched) == 3 + 2 + 1


def test_the_picture_shows_a_run_complete_and_an_interrupted_runner() -> None:
    drawn = texts(sequence.svg(scene_of("silent-drop")))
    assert drawn.count("RunComplete a") == 2
    assert drawn.count("RunComplete b") == 1  # the sound mechanism alone
    assert drawn.count("interrupted") == 2
    assert "the session remembers" in drawn


def test_two_runner_calls_at_once_are_two_bars() -> None:
    scene = scene_of("unserialized-entry")
    broken, _ = scene.panels[0].sides
    assert broken.walk[-1].view.calls == {"a": False, "b": False}
    calls = [
        float(str(bar.get("x")))
        for bar in ET.fromstring(sequence.svg(scene)).iter(f"{SVG}rect")
        if bar.get("fill") == ink.LIGHT["call"] and bar.get("rx") == "2" and bar.get("class") is None
    ]
    assert len(calls) == len({*calls}) == 3


def test_mermaid_has_both_histories() -> None:
    written = mermaid(scene_of("pending-flag"))
    assert written.startswith("sequenceDiagram\n")
    assert "    alt pending-flag\n" in written
    assert "    else the sound mechanism\n" in written
    assert "    Note right of runner: flag: set\n" in written
    assert "NEVER_POISONED" in written


# On a dark background.


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(part * weight for part, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [ink.LIGHT, ink.DARK], ids=["light", "dark"])
def test_every_text_can_be_read_on_every_background(colours: dict[str, str]) -> None:
    for name in ("ink", "soft", "bad", "good"):
        assert contrast(colours[name], colours["page"]) >= 4.5, name
    for name in ("bad", "good"):
        assert contrast(colours[name], colours[f"{name}-card"]) >= 4.5, name
    assert contrast(colours["ink"], colours["bad-card"]) >= 4.5


def test_every_colour_that_is_used_has_a_dark_form() -> None:
    assert set(ink.LIGHT) == set(ink.DARK)
    for svg in (sequence.svg(scene_of("silent-drop")), grid.svg(overview())):
        used = set(re.findall(r"tg-[fs]-[a-z-]+", svg.partition("</style>")[2]))
        assert used
        assert used <= set(re.findall(r"\.(tg-[fs]-[a-z-]+)\{", svg))


# The session overview.


def test_a_session_overview_with_a_step_that_has_no_route_is_refused() -> None:
    whole = overview()
    with pytest.raises(ValueError, match="no route for"):
        grid.svg(Overview(whole.conditions, {**whole.moves, ("idle", "settling"): ["magic"]}))


def test_no_two_arrows_of_the_session_overview_share_a_line() -> None:
    whole, routes = overview(), grid._routes()
    assert set(whole.moves) == set(routes)
    pieces = [
        (pair, min(piece), max(piece))
        for pair, route in routes.items()
        for piece in itertools.pairwise(route.points)
    ]
    for (one, begin, end), (other, start, stop) in itertools.combinations(pieces, 2):
        for axis in (0, 1):
            level = {point[axis] for point in (begin, end, start, stop)}
            along = 1 - axis
            apart = end[along] <= start[along] or stop[along] <= begin[along]
            assert one == other or len(level) > 1 or apart, (one, other)


def test_the_session_overview_names_every_condition_in_its_cell() -> None:
    drawn = texts(grid.svg(overview()))
    for name in ("running", "unwinding", "settling"):
        assert drawn.count(name) == 3  # the head of the column, without and with a queue
    assert drawn.count("idle") == 2


# Walks.


def act(name: str, run: str = "", how: str = "") -> PlayedStep:
    actor = {"fold": "runner", "end": "runner", "written": "store", "settle": "store"}.get(name, "caller")
    return PlayedStep(0, Action(actor, name, run, how), ())  # type: ignore[arg-type]  # one of the actors


def test_a_step_that_the_sound_mechanism_does_not_have_is_said_to_be_missing() -> None:
    script = [act("accept", "a", "fold"), act("end", "a", "end_turn"), act("enter", "a")]
    first, second, third = beside(script)
    assert (first.missing, second.missing, third.missing) == ("", "there is no such step", "")
    assert third.view.rows() == {"turn": "a runs", "run a": "active"}


def test_a_walk_on_a_mechanism_says_what_it_breaks_and_how_runs_end() -> None:
    script = [act("accept", "a", "fold"), act("cancel"), act("release", "a")]
    last = walked(Mechanism, script)[-1]
    assert last.broken == ()
    assert last.view.rows() == {"run a": "complete, cancelled, released before entry"}
    leaking = walked(MECHANISMS["leaky-session"], script)[-1]
    assert [str(each.property) for each in leaking.broken] == ["NO_RESIDUE"]
    assert leaking.view.memory == {"mark": "1"}


ACTIVE, QUEUED = DeclaredState.ACTIVE, DeclaredState.QUEUED
STRANGERS = [
    Shown("s", "caller", "accept a", (Accept("a"), Enter("a", ACTIVE))),
    Shown("s", "caller", "accept b", (Accept("b"), Enter("b", QUEUED))),
    Shown("s", "caller", "cancel", (Cancel(), Complete("a", True), Handoff("b"))),
    Shown("s", "runner", "finish b", (Ended("b"), Complete("b", False))),
]


def test_what_a_stranger_has_shown_is_followed_by_the_sound_mechanism() -> None:
    broken, sound = shown(STRANGERS), following(STRANGERS, at_once=True)
    assert broken[2].view.rows() == {"turn": "b", "run a": "complete, cancelled", "run b": "active, covered"}
    assert sound[1].view.rows() == {
        "queue": "b",
        "turn": "a runs",
        "run a": "active",
        "run b": "queued",
    }
    assert sound[2].view.rows() == {"run a": "complete, cancelled", "run b": "complete, cancelled"}
    assert sound[3].missing == "nothing happens here"
    assert instead(broken[:3], sound[:3]) == "Instead: b is complete, cancelled."


def test_without_haste_the_sound_mechanism_waits_for_the_end_of_each_turn() -> None:
    sound = following([*STRANGERS[:2], Shown("s", "caller", "cancel", (Cancel(),))])
    assert sound[2].view.memory == {"turn": "a interrupted"}
    told = [*STRANGERS[:2], Shown("s", "session", "RunComplete of a", (Complete("a", False, "E"),))]
    assert following(told)[2].view.rows()["run a"] == "complete, runner failed"
    assert following(told)[2].view.rows()["run b"] == "active"


def test_a_cancel_of_one_run_covers_its_whole_turn_there() -> None:
    told = [*STRANGERS[:2], Shown("s", "caller", "cancel run a", (Cancel(frozenset({"a"})),))]
    assert following(told)[2].view.memory == {"queue": "b", "turn": "a interrupted"}


def test_sessions_are_named_if_there_are_several() -> None:
    steps = [
        Shown("one", "caller", "accept a", (Accept("a"),)),
        Shown("two", "caller", "accept b", (Accept("b"),)),
    ]
    assert shown(steps)[1].view.memory == {"accepted of one": "a", "accepted of two": "b"}
    assert following(steps)[1].view.memory == {"accepted of session 1": "a", "accepted of session 2": "b"}
