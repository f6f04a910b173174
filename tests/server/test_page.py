"""The live page in a real browser: Chromium as the system has it, driven from here."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browsing import CONTRAST, PATIENCE, chromium
from serving import Line, serving
from turngate import Dispatcher, State, Turn
from turngate.server import Limits, asgi_app

pytestmark = pytest.mark.needs("chromium")


class Site:
    """A server on a loop in a thread, behind a line that can be cut; turns go on when the test says so."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.gates: dict[str, asyncio.Event] = {}
        self.down: Callable[[], None] = lambda: None
        self.port = 0
        self.up()
        self.line = Line(f"http://127.0.0.1:{self.port}")
        entered: Any = self.line.up()
        self.url: str = self.call(entered.__aenter__())
        self.leave: Callable[[], None] = lambda: self.call(entered.__aexit__(None, None, None))

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def agent(self, turn: Turn) -> None:
        """Say the prompt and wait; fold and go on each time that the test opens the gate."""
        turn.write(f"<i>about</i> {turn.run.prompt} 😀 ")
        if "breathless" in turn.run.prompt:
            for number in range(3_000):  # more than a subscription keeps
                turn.write(f"{number} ")
        if "fail" in turn.run.prompt:
            raise RuntimeError("no <b>luck</b>")
        for number in range(1_000):
            gate = self.gates[turn.run.session_id] = asyncio.Event()
            await gate.wait()
            turn.write(f"word{number} ")
            for run in await turn.fold():
                turn.write(f"and {run.prompt} ")
            if turn.run.prompt == "short":
                return

    def go_on(self, session: str = "demo") -> None:
        self.loop.call_soon_threadsafe(self.gates[session].set)

    def up(self, **options: Any) -> None:
        """Begin to serve, on the port of the last time."""

        async def serve(started: Future[int], stop: asyncio.Event) -> None:
            self.d = Dispatcher(self.agent)
            self.app = asgi_app(self.d, token="t", **{"finish": 0.0, **options})
            async with self.d, serving(self.app, port=self.port) as url:
                started.set_result(int(url.rpartition(":")[2]))
                await stop.wait()

        started: Future[int] = Future()
        stop = asyncio.Event()
        serving_it = asyncio.run_coroutine_threadsafe(serve(started, stop), self.loop)
        self.port = started.result(60)

        def down() -> None:
            self.loop.call_soon_threadsafe(stop.set)
            serving_it.result(60)

        self.down = down

    def close(self) -> None:
        self.leave()
        self.down()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(60)
        self.loop.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def site() -> Iterator[Site]:
    site = Site()
    yield site
    site.close()


@pytest.fixture
def page(browser: Browser, site: Site) -> Iterator[Page]:
    with opened(browser, site) as page:
        yield page


@contextlib.contextmanager
def opened(browser: Browser, site: Site, **options: Any) -> Iterator[Page]:
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{site.url}/#token=t")
    expect(page.locator("#link")).to_have_text("live")
    assert "#" not in page.url  # the token does not stay where it can be seen
    yield page
    assert errors == []
    context.close()


def send(page: Page, prompt: str, busy: str = "fold") -> None:
    page.select_option("#busy", busy)
    page.fill("#prompt", prompt)
    page.press("#prompt", "Enter")
    expect(page.locator("#said")).to_have_text("Accepted.")
    page.evaluate("document.getElementById('said').textContent = ''")


def done(page: Page, prompt: str) -> Locator:
    return page.locator("#done li", has=page.get_by_role("button", name=prompt, exact=True))


def all_once(page: Page, count: int) -> None:
    expect(page.locator("#tally")).to_have_attribute("data-completes", str(count))
    expect(page.locator("#tally")).to_have_attribute("data-twice", "0")
    for item in page.locator("#done li").all():
        assert item.get_attribute("data-times") in ("1", "0")


def test_a_turn_streams_folds_and_completes_and_the_picture_follows(page: Page, site: Site) -> None:
    expect(page.locator("#guide")).to_be_visible()
    send(page, "tea")
    expect(page.locator("#text")).to_contain_text("<i>about</i> tea 😀")
    assert page.locator("#text i").count() == 0
    expect(page.locator("#life .lit")).to_have_attribute("data-state", "active")
    site.go_on()
    expect(page.locator("#text")).to_contain_text("😀 word0")  # offsets count characters, not halves of them
    send(page, "biscuits")
    expect(page.locator("#queue li")).to_have_count(1)
    expect(page.locator("#life .lit")).to_have_attribute("data-state", "queued")
    site.go_on()
    expect(page.locator("#lead li")).to_have_count(2)
    expect(page.locator("#lead .tag.folded")).to_have_count(1)
    expect(page.locator("#queue li")).to_have_count(0)
    expect(page.locator("#text")).to_contain_text("and biscuits")
    send(page, "short", "interrupt")
    expect(done(page, "tea")).to_have_attribute("data-outcome", "cancelled")
    expect(page.locator("#text")).to_contain_text("about</i> short")
    site.go_on()
    expect(done(page, "short")).to_have_attribute("data-outcome", "finished")
    expect(page.locator("#life .lit")).to_have_attribute("data-state", "complete")
    all_once(page, 3)


def test_one_is_taken_back_escape_covers_the_rest_and_what_comes_next_is_not_touched(
    page: Page, site: Site
) -> None:
    send(page, "tea")
    send(page, "<img src=x onerror=alert(1)>", "queue")
    send(page, "cake", "queue")
    expect(page.locator("#queue li")).to_have_count(2)
    assert page.locator("#queue img").count() == 0
    page.get_by_role("button", name="Take back: <img").click()
    expect(page.locator("#said")).to_have_text("Taken back.")
    expect(page.locator("#queue li")).to_have_count(1)
    expect(page.locator("#text")).to_contain_text("tea")
    page.keyboard.press("Escape")
    expect(page.locator("#said")).to_contain_text("The cancel covers 2 runs")
    expect(page.locator("#story li.stop").first).to_have_text(
        "A cancel covers the 2 runs accepted before it, and none after."
    )
    assert page.locator("#story img").count() == 0
    send(page, "soup")
    expect(page.locator("#story li").filter(has_text="soup")).to_contain_text(
        ["enters an idle session: its turn begins", "is accepted, as number 4"]
    )
    expect(page.locator("#text")).to_contain_text("soup")
    expect(page.locator("#done li[data-outcome=cancelled]")).to_have_count(3)
    expect(page.locator("#phase")).to_have_text("A turn runs.")
    all_once(page, 3)
    send(page, "please fail", "interrupt")
    expect(done(page, "please fail")).to_contain_text("no <b>luck</b>")
    all_once(page, 5)
    page.keyboard.press("Escape")
    expect(page.locator("#said")).to_have_text("There was nothing to cancel.")


def test_a_line_that_is_cut_and_a_server_that_comes_back(page: Page, site: Site) -> None:
    send(page, "tea")
    expect(page.locator("#text")).to_contain_text("tea")
    site.loop.call_soon_threadsafe(site.line.cut)
    expect(page.locator("#link")).to_have_attribute("data-link", "reconnecting")

    async def meanwhile() -> None:
        runs = [await site.d.submit("demo", f"unseen {number}", when_busy="queue") for number in range(3)]
        while any(run.state is not State.QUEUED for run in runs):
            await asyncio.sleep(0.01)
        await site.d.cancel("demo")
        for run in runs:
            await run

    site.call(meanwhile())
    site.loop.call_soon_threadsafe(site.line.mend)
    expect(page.locator("#link")).to_have_text("live")
    expect(done(page, "unseen 2")).to_have_attribute("data-outcome", "cancelled")
    expect(done(page, "tea")).to_have_attribute("data-outcome", "cancelled")
    all_once(page, 4)
    # A restart without a ledger: what was in flight is told by the old server or unknown, never done.
    send(page, "soup")
    expect(page.locator("#text")).to_contain_text("soup")
    site.loop.call_soon_threadsafe(site.line.cut)
    expect(page.locator("#link")).to_have_attribute("data-link", "reconnecting")
    site.down()
    site.up()
    site.loop.call_soon_threadsafe(site.line.mend)
    expect(page.locator("#notice")).to_contain_text("The server was restarted")
    expect(done(page, "soup")).to_have_attribute("data-outcome", "unknown")
    expect(page.locator("#phase")).to_contain_text("No turn runs")
    send(page, "after it")
    expect(page.locator("#text")).to_contain_text("after it")


def test_who_falls_behind_is_told_and_misses_no_completion(browser: Browser, site: Site) -> None:
    site.down()
    site.up(limits=Limits(ring_events=2))
    with opened(browser, site) as page:
        expect(page.locator("#link")).to_have_text("live")
        site.loop.call_soon_threadsafe(site.line.cut)
        expect(page.locator("#link")).to_have_attribute("data-link", "reconnecting")

        async def meanwhile() -> None:
            for number in range(5):
                await site.d.ask(f"other {number}", "please fail")
            await site.d.submit("demo", "still there")

        site.call(meanwhile())
        site.loop.call_soon_threadsafe(site.line.mend)
        expect(page.locator("#notice")).to_contain_text("fell behind")
        expect(page.locator("#done li[data-outcome=failed]")).to_have_count(5)
        expect(page.locator("#text")).to_contain_text("still there")
        all_once(page, 5)


def test_text_that_was_dropped_on_the_way_is_asked_for(browser: Browser, site: Site) -> None:
    whole = "".join(f"{number} " for number in range(3_000))
    for ring in (2, 8_192):
        site.down()
        site.up(limits=Limits(ring_events=ring))
        with opened(browser, site) as page:
            send(page, "breathless")
            expect(page.locator("#text")).to_contain_text("1000")
            site.go_on()
            expect(page.locator("#text")).to_contain_text("2999 word0")
            assert page.locator("#text").text_content() == f"<i>about</i> breathless 😀 {whole}word0 "
            page.keyboard.press("Escape")
            all_once(page, 1)


def test_after_a_reset_the_server_is_asked_for_what_it_knows(page: Page, site: Site) -> None:
    """A page whose place is not known any more, on a server that knows the run: then it is not unknown."""
    send(page, "tea")
    expect(page.locator("#text")).to_contain_text("tea")
    site.loop.call_soon_threadsafe(site.line.cut)
    expect(page.locator("#link")).to_have_attribute("data-link", "reconnecting")
    site.call(site.d.cancel("demo"))
    site.app._handlers.log.epoch = "00000000"
    site.d._completions._name = "another"
    site.loop.call_soon_threadsafe(site.line.mend)
    expect(page.locator("#notice")).to_contain_text("The server was restarted")
    expect(done(page, "tea")).to_have_attribute("data-outcome", "cancelled")
    all_once(page, 1)


def test_it_works_with_the_keyboard_alone_and_in_other_sessions(page: Page, site: Site) -> None:
    expect(page.locator("#prompt")).to_be_focused()
    page.keyboard.type("tea")
    page.keyboard.press("Enter")
    expect(page.locator("#text")).to_contain_text("tea")
    page.keyboard.type("cake")
    page.keyboard.press("Tab")
    page.keyboard.press("q")  # chooses queue
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#queue li")).to_have_count(1)
    for _ in range(40):
        page.keyboard.press("Shift+Tab")
        if page.evaluate("document.activeElement.dataset.do") == "take-back":
            break
    page.keyboard.press("Enter")
    expect(page.locator("#queue li")).to_have_count(0)
    page.focus("#other")
    page.keyboard.type("kitchen/1")
    page.keyboard.press("Enter")
    expect(page.locator("#to")).to_have_text("kitchen/1")
    send(page, "broth")
    expect(page.locator("#text")).to_contain_text("broth")
    page.get_by_role("button", name="demo").press("Enter")
    expect(page.locator("#text")).to_contain_text("tea")


def test_without_its_token_it_asks_for_one(browser: Browser, site: Site) -> None:
    page = browser.new_page()
    page.goto(site.url)
    expect(page.locator("#login")).to_be_visible(timeout=PATIENCE)
    page.fill("#token", "wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#link")).to_have_text("not authorized", timeout=PATIENCE)
    page.fill("#token", "t")
    page.keyboard.press("Enter")
    expect(page.locator("#link")).to_have_text("live", timeout=PATIENCE)
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read_in_light_dark_and_narrow(browser: Browser, site: Site, scheme: Any) -> None:
    with opened(browser, site, color_scheme=scheme, viewport={"width": 1280, "height": 900}) as page:
        send(page, "please fail")
        send(page, "tea")
        send(page, "cake", "queue")
        expect(page.locator("#queue li")).to_have_count(1)
        expect(page.locator("#done li")).to_have_count(1)
        assert page.evaluate(CONTRAST) == []
        for width in (1280, 900, 600, 320):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_after_a_reload_it_shows_what_has_completed(page: Page, site: Site) -> None:
    send(page, "please fail")
    expect(done(page, "please fail")).to_have_attribute("data-outcome", "failed")
    send(page, "tea")
    expect(page.locator("#text")).to_contain_text("tea")
    page.keyboard.press("Escape")
    expect(done(page, "tea")).to_have_attribute("data-outcome", "cancelled")
    page.reload()
    all_once(page, 2)
    send(page, "please fail again")
    all_once(page, 3)
    # So it is for a session that is opened later.
    site.call(site.d.ask("kitchen", "fail here"))
    page.reload()
    page.fill("#other", "kitchen")
    page.press("#other", "Enter")
    expect(done(page, "fail here")).to_have_attribute("data-outcome", "failed")
    # A reload leaves one where one was, with what was open before.
    page.reload()
    expect(page.locator("#to")).to_have_text("kitchen")
    expect(done(page, "fail here")).to_have_attribute("data-outcome", "failed")
    all_once(page, 4)


def test_what_waits_is_described_as_it_was_sent(page: Page, site: Site) -> None:
    send(page, "tea")
    expect(page.locator("#text")).to_contain_text("tea")
    for prompt, busy in (("cake", "queue"), ("soup", "fold")):
        send(page, prompt, busy)
        page.locator("#queue").get_by_role("button", name=prompt, exact=True).click()
        expect(page.locator("#life-said")).to_contain_text(prompt)
        said = page.locator("#life-said").text_content() or ""
        assert ("joins the one that runs" in said) == (busy == "fold"), said


def test_the_prompt_stays_in_sight_and_the_picture_is_whole(browser: Browser, site: Site) -> None:
    with opened(browser, site, viewport={"width": 1280, "height": 860}) as page:
        send(page, "breathless")
        expect(page.locator("#text")).to_contain_text("500")
        for number in range(8):
            send(page, f"waits {number}", "queue")
        expect(page.locator("#queue li")).to_have_count(8)
        for selector in ("#prompt", "#send button", "#cancel"):
            box = page.locator(selector).bounding_box()
            assert box is not None
            assert box["y"] >= 0
            assert box["y"] + box["height"] <= 860, selector
        page.set_viewport_size({"width": 380, "height": 800})
        picture = page.locator("svg.life:visible")
        expect(picture).to_have_count(1)
        for shape in [picture, *picture.locator("rect, text").all()]:
            box = shape.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 380
