"""The page to play with, in Chromium: everything can be clicked, gone back from, and found out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from browsing import CONTRAST, chromium, opened
from explored import all_refuted, refuted
from surroundings import ROOT
from turngate_model import DESIGNS
from turngate_model.checker import Bounds
from turngate_verify.cli import explore as command
from turngate_verify.cli import run
from turngate_verify.report.play import BOUNDS, Space, held_by, play_page, space, write_play

COMMITTED = ROOT / "pictures" / "play.html"
needs_chromium = pytest.mark.needs("chromium")


@cache
def small() -> Space:
    """Everything, with two prompts."""
    return space(Bounds(2, 1, 1), refuted=all_refuted())


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def path(tmp_path_factory: Any) -> Path:
    return write_play(
        small(), "turngate explore --html play.html", tmp_path_factory.mktemp("play") / "p.html"
    )


def ready(page: Page) -> Page:
    expect(page.locator("body[data-ready]")).to_be_attached()
    return page


def click(page: Page, *steps: str) -> None:
    for step in steps:
        page.locator("#choices").get_by_role("button", name=step, exact=True).click()
        expect(page.locator("#picture tbody tr").last.locator(".who")).to_contain_text(step)


def state(page: Page, side: str) -> dict[str, str]:
    found = page.locator(f"#state .{side} tbody tr").all()
    return {each.locator("th").inner_text(): each.locator("td").last.inner_text() for each in found}


@needs_chromium
def test_one_can_click_through_and_go_back_and_on_again(browser: Browser, path: Path) -> None:
    with opened(browser, path) as page:
        ready(page)
        expect(page.locator("#mechanism")).to_have_value("sound")
        assert page.locator("#choices button").all_inner_texts()[:2] == ["accept a", "accept a (interrupt)"]
        click(page, "accept a", "enter a", "cancel")
        assert state(page, "sound") == {"turn": "a interrupted", "run a": "active, covered"}
        expect(page.locator("#choices")).not_to_contain_text("cancel run a")  # only one cancel within bounds
        click(page, "the turn of a ends, cancelled", "the messages of a are written")
        expect(page.locator("#picture tbody tr")).to_have_count(5)
        expect(page.locator("#picture tbody tr").last).to_contain_text("RunComplete of a: cancelled")
        page.locator("#back").click()
        expect(page.locator("#picture tbody tr")).to_have_count(4)
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#picture tbody tr")).to_have_count(3)
        page.keyboard.press("ArrowRight")
        page.locator("#again").click()
        expect(page.locator("#picture tbody tr")).to_have_count(5)
        expect(page.locator("#again")).to_be_disabled()
        page.locator("#restart").click()
        expect(page.locator("#picture tbody tr")).to_have_count(0)
        expect(page.locator("#back")).to_be_disabled()


@needs_chromium
def test_what_breaks_is_said_at_once_and_what_should_have_been(browser: Browser, path: Path) -> None:
    with opened(browser, path) as page:
        ready(page).select_option("#mechanism", "pending-flag")
        expect(page.locator("#flaw")).to_contain_text('One boolean "pending cancel"')
        click(page, "accept a", "cancel", "accept b")
        expect(page.locator("#verdict")).to_be_empty()
        assert state(page, "broken")["flag"] == "set"
        assert state(page, "sound")["mark"] == "1"
        click(page, "enter b")
        expect(page.locator("#verdict .bad")).to_contain_text("NEVER_POISONED: no cancel has come since b")
        expect(page.locator("#verdict p").last).to_contain_text("What should have been: enter b: b is active")
        expect(page.locator("#picture")).to_contain_text("flag: consumed by b")
        expect(page.locator("#choices button")).to_have_count(0)


@needs_chromium
def test_every_design_has_its_shortest_counterexample_on_one_button(browser: Browser, path: Path) -> None:
    with opened(browser, path) as page:
        ready(page)
        expect(page.locator("#shortest")).to_be_disabled()  # the sound mechanism has none
        assert page.locator("#mechanism option").count() == 1 + len(DESIGNS)
        for name in DESIGNS:
            example = refuted(name).counterexample
            assert example is not None
            page.select_option("#mechanism", name)
            page.locator("#shortest").click()
            expect(page.locator("#picture tbody tr")).to_have_count(len(example.steps))
            expect(page.locator("#verdict")).to_contain_text(f"{example.property}: {example.what}")
            assert page.locator("#picture .right").count() > 0  # the sound mechanism, beside it


@needs_chromium
def test_every_position_has_an_address(browser: Browser, path: Path) -> None:
    with opened(browser, path) as page:
        ready(page).select_option("#mechanism", "silent-drop")
        page.locator("#shortest").click()
        expect(page.locator("#picture tbody tr")).to_have_count(7)
        address = "#" + page.url.partition("#")[2]
    with opened(browser, path, address) as page:
        ready(page)
        expect(page.locator("#picture tbody tr")).to_have_count(7)
        page.locator("#picture tbody tr").nth(4).click()  # the row of the cancel
        expect(page.locator("#picture tbody tr")).to_have_count(5)
        page.go_back()
        expect(page.locator("#picture tbody tr")).to_have_count(7)
    with opened(browser, path, "#no-such-design/1.2.3") as page:
        expect(ready(page).locator("#mechanism")).to_have_value("sound")


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_light_dark_and_narrow(browser: Browser, path: Path, scheme: Any) -> None:
    size = {"width": 1280, "height": 900}
    with opened(browser, path, color_scheme=scheme, viewport=size) as page:
        ready(page).select_option("#mechanism", "silent-drop")
        page.locator("#shortest").click()
        expect(page.locator("#picture tbody tr")).to_have_count(7)
        assert page.evaluate(CONTRAST) == []
        for width in (1280, 700, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


CUT_OFF = """() => [...document.querySelectorAll("#picture, #picture th, #picture td, #state, #choices")]
  .filter(each => each.scrollWidth > each.clientWidth + 1 || each.getBoundingClientRect().right > innerWidth)
  .map(each => each.className + ": " + each.innerText)"""


@needs_chromium
def test_no_column_is_cut_off_at_1280(browser: Browser) -> None:
    with opened(browser, COMMITTED, viewport={"width": 1280, "height": 860}) as page:
        ready(page)
        for name in DESIGNS:
            page.select_option("#mechanism", name)
            page.locator("#shortest").click()
            expect(page.locator("#picture tbody tr").last).to_have_class(re.compile(r"\bbad\b"))
            assert page.evaluate(CUT_OFF) == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= 1280


# What is written, and when it is stale.


def told(data: dict[str, Any], nth: int) -> Any:
    """Return one mechanism of a page in words instead of numbers."""
    words, of = data["words"], data["mechanisms"][nth]
    nodes = [([words[each] for each in rows], calls[1::2]) for rows, calls in of["nodes"]]
    steps = [
        [
            (
                data["actions"][flat[at]],
                flat[at + 1],
                [words[each] for each in data["outcomes"][flat[at + 2]]],
                [[words[each] for each in pair] for pair in data["broken"][flat[at + 3]]],
            )
            for at in range(0, len(flat), 4)
        ]
        for flat in of["steps"]
    ]
    return (of["name"], of["flaw"], of["prompts"], of["cancels"], of["states"], nodes, steps)


def test_the_page_that_is_committed_has_every_design_and_a_few_megabytes_at_most() -> None:
    page = COMMITTED.read_text(encoding="utf-8")
    data = held_by(page)
    assert [each["name"] for each in data["mechanisms"]] == ["sound", *DESIGNS]
    assert [each["flaw"] for each in data["mechanisms"][1:]] == [each.flaw for each in DESIGNS.values()]
    assert len(page) < 3_000_000
    script = (ROOT / "verify/turngate_verify/report/templates/play.js").read_text(encoding="utf-8")
    assert script.strip() in page, "pictures/play.html is stale: make play"


@pytest.mark.deep
def test_the_page_that_the_readme_links_to_is_up_to_date() -> None:
    known, now = held_by(COMMITTED.read_text(encoding="utf-8")), space(BOUNDS, refuted=all_refuted()).data
    for nth in range(1 + len(DESIGNS)):
        assert told(known, nth) == told(now, nth), "pictures/play.html is stale: make play"


@pytest.fixture
def _of_two_designs(monkeypatch: pytest.MonkeyPatch) -> None:
    two = {name: DESIGNS[name] for name in ("publish-first", "unlocked-clear")}
    monkeypatch.setattr("turngate_verify.report.play.DESIGNS", two)


@pytest.mark.usefixtures("_of_two_designs")
def test_the_same_is_written_every_time() -> None:
    one, other = (play_page(space(Bounds(2, 1, 1), refuted=all_refuted()), "x") for _ in range(2))
    assert one == other
    assert [each["name"] for each in held_by(one)["mechanisms"]] == [
        "sound",
        "publish-first",
        "unlocked-clear",
    ]


@pytest.mark.usefixtures("_of_two_designs")
def test_a_design_that_is_too_large_gets_fewer_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turngate_verify.report.play.MOST_NODES", 150)
    held = space(Bounds(2, 1, 1), refuted=all_refuted()).data["mechanisms"]
    assert [each["prompts"] for each in held] == [2, 2, 1]


def test_the_command_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Bounds] = []

    def worked_out(bounds: Bounds, begin: object) -> Space:
        asked.append(bounds)
        return small()

    monkeypatch.setattr(command, "space", worked_out)
    path = tmp_path / "play.html"
    assert run(["explore", "--html", str(path), "--prompts", "2"]) == 0
    out, err = capsys.readouterr()
    assert (out, asked) == ("", [Bounds(2, 1, 1)])
    assert err.startswith(f"wrote {path}: ")
    assert "turngate explore --prompts 2 --html play.html" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--design", "idle-gap"], "--html goes only with --prompts and --cancels"),
        (["--json"], "--html goes only with --prompts and --cancels"),
        (["--durable"], "--html goes only with --prompts and --cancels"),
        (["--turns-limit", "1"], "--html goes only with --prompts and --cancels"),
        (["--sessions", "2"], "the page has one session"),
        (["--prompts", "0"], "prompts must be from 1 to 8, not 0"),
        (["--prompts", "4"], "the page has room for at most 3 prompts and 2 cancels"),
    ],
)
def test_what_the_page_cannot_show_is_refused(
    options: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explore", "--html", str(tmp_path / "x.html"), *options]) == 2
    out, err = capsys.readouterr()
    assert (out, said in err, err.count("\n")) == ("", True, 1)
    assert [*tmp_path.iterdir()] == []
