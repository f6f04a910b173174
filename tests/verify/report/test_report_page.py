"""The reports in Chromium: one file, every step of a counterexample at an address of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from browsing import CONTRAST, chromium, opened
from explored import refuted, refuted_durable
from surroundings import ROOT
from turngate_model import Property, Violation
from turngate_verify.cli import run
from turngate_verify.cli.show import DriverLine
from turngate_verify.cli.verification import Verification
from turngate_verify.report import provenance
from turngate_verify.report.pages import page as report_page
from turngate_verify.report.pages import write_report

pytestmark = pytest.mark.needs("chromium")
DESIGNS = ("pending-flag", "silent-drop", "unlocked-drain")
LOCK = str(ROOT / "examples" / "conformance" / "session_lock.py") + ":SessionLockSubject"
RECORDINGS = ROOT / "tests" / "verify" / "recordings"


def verification() -> Verification:
    """Return what ``turngate verify`` might have found, of three designs and one of processes."""
    found = Verification(seed="none: always the same", seconds=61)
    found.designs = {name: refuted(name) for name in DESIGNS}
    found.durable.designs = {"no-fence": refuted_durable("no-fence")}
    found.sabotaged = {"pending-flag": "NEVER_POISONED in 13 examples"}
    found.drivers = [DriverLine("model", lambda: "596 states", 1.5)]
    found.broke(Property.FIFO, "<b>out</b> of order & more")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory: Any) -> Path:
    return write_report(verification(), tmp_path_factory.mktemp("report"))


def current(page: Page) -> Any:
    return page.locator("section.current:visible")


def step_at(page: Page) -> str:
    return page.url.partition("#")[2]


def test_the_arrow_keys_go_through_a_counterexample(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        expect(page.locator("section:visible")).to_have_count(0)
        page.keyboard.press("ArrowRight")
        expect(current(page).locator("h3")).to_have_text("1 of 4: accept a")
        assert step_at(page) == "pending-flag/1"
        page.keyboard.press("ArrowRight")
        expect(current(page).locator("h3")).to_have_text("2 of 4: cancel")
        expect(page.locator("#pending-flag nav a[aria-current]")).to_have_text("cancelcaller")
        page.keyboard.press("ArrowLeft")
        expect(current(page).locator("h3")).to_have_text("1 of 4: accept a")
        page.keyboard.press("ArrowLeft")  # there is nothing before the first
        assert step_at(page) == "pending-flag/1"
        page.keyboard.press("End")
        expect(current(page).locator("h3")).to_have_text("4 of 4: enter b")
        page.keyboard.press("ArrowRight")
        assert step_at(page) == "pending-flag/4"
        page.go_back()
        expect(current(page).locator("h3")).to_have_text("1 of 4: accept a")


def rows(page: Page, side: str) -> dict[str, list[str]]:
    found = current(page).locator(f".{side} tbody tr").all()
    return {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in found}


def test_an_address_shows_its_step_with_the_state_before_and_after_and_what_is_sound(
    browser: Browser, report: Path
) -> None:
    with opened(browser, report, "#pending-flag/4") as page:
        expect(current(page)).to_have_count(1)
        assert rows(page, "broken") == {
            "flag": ["set", "-"],
            "accepted": ["a b", "a"],
            "cancel_on_entry": ["-", "b"],
            "run a": ["accepted, covered", "accepted, covered"],
            "run b": ["accepted", "cancel_on_entry"],
        }
        assert rows(page, "sound")["mark"] == ["1", "1"]
        assert rows(page, "sound")["run b"] == ["accepted", "active"]
        marked = current(page).locator(".broken tr.changed th").all_inner_texts()
        assert marked == ["flag", "accepted", "cancel_on_entry", "run b"]
        expect(current(page).locator(".broken .verdict")).to_contain_text(
            "NEVER_POISONED: no cancel has come"
        )
        expect(current(page).locator(".sound .verdict")).to_have_text("Instead: b is active.")


def test_the_picture_follows_the_steps(browser: Browser, report: Path) -> None:
    with opened(browser, report, "#silent-drop/5") as page:
        expect(page.locator("#silent-drop .tg-row.current")).to_have_attribute("data-step", "5")
        veil = page.locator("#silent-drop .veil")
        sixth = page.locator("#silent-drop .tg-row[data-step='6'] .tg-ground")
        assert veil.get_attribute("y") == sixth.get_attribute("y")
        page.keyboard.press("End")
        expect(veil).to_have_attribute("height", "0")


def test_it_goes_with_the_mouse_too_and_an_address_that_is_none_shows_nothing(
    browser: Browser, report: Path
) -> None:
    with opened(browser, report, "#pending-flag/9") as page:
        expect(page.locator("section.current")).to_have_count(0)
        page.locator("#unlocked-drain summary").click()
        expect(current(page).locator("h3")).to_have_text("1 of 7: accept a")
        page.locator("#unlocked-drain .on").click()
        expect(current(page).locator("h3")).to_have_text("2 of 7: accept b")
        page.locator("#unlocked-drain nav li:last-child a").click()
        expect(current(page).locator(".sound p").first).to_have_text("there is nothing left to do")
        expect(page.locator("#unlocked-drain .on")).to_be_disabled()


def test_a_counterexample_among_processes_has_its_states_too(browser: Browser, report: Path) -> None:
    with opened(browser, report, "#no-fence/6") as page:
        expect(current(page).locator("h3")).to_contain_text("6 of 6")
        assert {"P1", "P2", "run a"} <= set(rows(page, "broken"))
        expect(current(page).locator(".verdict")).to_contain_text("FENCED")


def test_it_says_where_it_comes_from_and_how_to_make_it_again(browser: Browser, report: Path) -> None:
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with opened(browser, report) as page:
        made = {
            row.locator("th").inner_text(): row.locator("td").inner_text()
            for row in page.locator(".made tr").all()
        }
        assert made["commit"].startswith(commit)
        assert made["versions"].startswith("Python 3.")
        assert (made["command"], made["seed"]) == ("turngate verify", "none: always the same")
        page.locator("#pending-flag summary").click()
        expect(page.locator("#pending-flag nav code")).to_have_text("turngate explore --design pending-flag")


def test_where_there_is_no_checkout_or_no_git_it_says_so(tmp_path: Path) -> None:
    assert provenance.commit(None).startswith("none:")
    assert provenance.commit(tmp_path).startswith("unknown")


def test_what_strangers_have_written_is_text(browser: Browser, report: Path) -> None:
    with opened(browser, report) as page:
        expect(page.get_by_text("<b>out</b> of order & more")).to_be_visible()
        assert page.locator(".property b").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_light_dark_and_narrow(browser: Browser, report: Path, scheme: Any) -> None:
    size = {"width": 1280, "height": 900}
    with opened(browser, report, "#pending-flag/4", color_scheme=scheme, viewport=size) as page:
        expect(current(page)).to_have_count(1)
        assert page.evaluate(CONTRAST) == []
        for width in (1280, 700, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_page_about_another_dispatcher(browser: Browser, tmp_path: Path) -> None:
    # In a process of its own: the subject has an event loop, and so has what drives Chromium.
    command = [sys.executable, "-m", "turngate", "conform", LOCK, "--programs", "60", "--examples", "0"]
    assert subprocess.run([*command, "--report", str(tmp_path)], check=False).returncode == 1
    with opened(browser, tmp_path / "index.html", "#full-coverage/3") as page:
        assert rows(page, "broken")["run b"] == ["queued", "active, covered"]
        assert rows(page, "sound")["run b"] == ["queued", "complete, cancelled"]
        expect(page.locator("#full-coverage nav code")).to_contain_text(
            "--replay 'accept a, accept b, cancel'"
        )
        expect(page.locator(".made")).to_contain_text("turngate conform")


TEXTS_TOO_SMALL = """() => [...document.querySelectorAll(".case .picture text")]
  .filter(each => each.getBoundingClientRect().height < 9).length"""


@pytest.mark.parametrize("width", [1280, 380])
def test_a_counterexample_comes_first_opened_where_it_breaks_the_promise(
    browser: Browser, tmp_path: Path, width: int
) -> None:
    assert run(["trace", str(RECORDINGS / "bad-FIFO.jsonl"), "--report", str(tmp_path)]) == 1
    with opened(browser, tmp_path / "index.html", viewport={"width": width, "height": 860}) as page:
        expect(current(page).locator("h3")).to_have_text("7 of 7: enter c")
        expect(current(page).locator(".verdict.bad")).to_contain_text("FIFO")
        assert page.locator("h2").first.inner_text() == "The violation"
        assert page.locator("h2").last.inner_text() == "About this page"
        assert page.evaluate("scrollY") == 0
        assert page.evaluate(TEXTS_TOO_SMALL) == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.keyboard.press("ArrowLeft")
        expect(current(page).locator("h3")).to_contain_text("6 of 7")


def test_nothing_red_stands_under_what_always_holds(browser: Browser, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "turngate", "conform", LOCK, "--programs", "60", "--examples", "0"]
    assert subprocess.run([*command, "--report", str(tmp_path)], check=False).returncode == 1
    with opened(browser, tmp_path / "index.html") as page:
        holds = page.locator("h2:text-is('What always holds') + .grid")
        assert {*holds.locator(".chip").all_inner_texts()} == {"holds"}
        assert holds.locator(".problem").count() == 0
        unknown = page.locator("h2:text-is('What is not known') + .grid")
        assert unknown.locator(".problem").count() == 0
        headings = page.locator("h2").all_inner_texts()
        assert headings.index("Counterexamples") == 0
        assert "left out" not in page.locator("header").inner_text()
        expect(page.locator("h2:text-is('About this page') + .card")).to_contain_text("left out: fold")


def test_the_page_about_a_recording(browser: Browser, tmp_path: Path) -> None:
    path = RECORDINGS / "bad-FIFO.jsonl"
    assert run(["trace", str(path), "--report", str(tmp_path)]) == 1
    with opened(browser, tmp_path / "index.html", "#fifo/7") as page:
        expect(current(page).locator("h3")).to_have_text("7 of 7: enter c")
        assert rows(page, "broken")["run c"] == ["accepted", "active"]
        assert rows(page, "sound")["run c"] == ["accepted", "queued"]
        expect(page.locator(".made")).to_contain_text(f"turngate trace {path}")


def test_a_recording_that_holds_has_nothing_to_step_through(browser: Browser, tmp_path: Path) -> None:
    assert run(["trace", str(RECORDINGS / "good-one-run.jsonl"), "--report", str(tmp_path)]) == 0
    with opened(browser, tmp_path / "index.html") as page:
        expect(page.locator("h1")).to_contain_text("holds")
        assert page.locator(".case").count() == 0


NASTY = "</script><img src=x onerror=alert(1)>\x1b[2J"


def test_ids_of_a_recording_can_do_nothing(browser: Browser, tmp_path: Path) -> None:
    entries = [
        {"event": "accept", "session": NASTY, "run": NASTY},
        {"event": "enter", "run": NASTY, "state": "active"},
        {"event": "complete", "run": NASTY, "cancelled": True, "error": NASTY},
    ]
    path = tmp_path / "nasty.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in entries), encoding="utf-8")
    assert run(["trace", str(path), "--report", str(tmp_path)]) == 1
    assert "\x1b" not in (tmp_path / "index.html").read_text(encoding="utf-8")
    with opened(browser, tmp_path / "index.html", "#never-poisoned/3") as page:
        expect(current(page).locator(".verdict").first).to_contain_text("NEVER_POISONED")
        assert page.locator("img").count() == 0


def test_a_violation_that_no_property_page_knows_is_still_escaped() -> None:
    found = verification()
    found.problems.append(Violation(Property.FIFO, "<i>x</i>").what)
    assert "&lt;i&gt;x&lt;/i&gt;" in report_page(found)
