"""The live page in a real browser: Chromium as the system has it, driven from here."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browsing import CONTRAST, PATIENCE, chromium
from dispatching import look
from serving import Line, serving
from turngate import Dispatcher, Run, State, Turn
from turngate.durable import DurableDispatcher, SqliteLedger
from turngate.server import Limits, asgi_app

pytestmark = pytest.mark.needs("chromium")


class Site:
    """A server on a loop in a thread, behind a line that can be cut; turns go on when the test says so."""

    def __init__(self, ledger: Path | None = None) -> None:
        self.ledger = ledger
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

    def queued(self, session: str = "demo") -> list[Run]:
        """Return what waits in the dispatcher, which answers on its own loop only."""

        async def queued() -> list[Run]:
            found: list[Run] = await look(self.d.queued(session))
            return found

        found: list[Run] = self.call(queued())
        return found

    def go_on(self, session: str = "demo") -> None:
        self.loop.call_soon_threadsafe(self.gates[session].set)

    def up(self, **options: Any) -> None:
        """Begin to serve, on the port of the last time."""

        async def serve(started: Future[int], stop: asyncio.Event) -> None:
            self.d: Any = (
                Dispatcher(self.agent)
                if self.ledger is None
                else DurableDispatcher(self.agent, SqliteLedger(self.ledger), poll=0.05)
            )
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
        "A cancel covers the 2 runs accepted before it, and none accepted later."
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
    expect(page.locator("#notice")).to_contain_text("The server has restarted")
    expect(done(page, "soup")).to_have_attribute("data-outcome", "unknown")
    expect(page.locator("#phase")).to_contain_text("No turn runs")
    send(page, "after it")
    expect(page.locator("#text")).to_contain_text("after it")


def test_a_page_that_falls_behind_says_so_and_misses_no_completion(browser: Browser, site: Site) -> None:
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
    expect(page.locator("#notice")).to_contain_text("The server has restarted")
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


# The line: what waits is held, moved, edited and sent now.


def wait_in_line(page: Page, *prompts: str) -> None:
    """Have a turn run, and prompts wait for it."""
    send(page, "tea")
    expect(page.locator("#text")).to_contain_text("tea")
    for prompt in prompts:
        send(page, prompt, "queue")
    in_line(page, *prompts)


def in_line(page: Page, *prompts: str) -> None:
    expect(page.locator("#queue > li .words")).to_have_text([*prompts])


def waits(page: Page, prompt: str) -> Locator:
    return page.locator("#queue > li", has=page.get_by_role("button", name=prompt, exact=True))


def press(page: Page, what: str, prompt: str) -> None:
    page.locator("#queue").get_by_role("button", name=f"{what}: {prompt}", exact=True).click()


def drag(page: Page, prompt: str, onto: str, *, share: float) -> None:
    """Drag a prompt with the mouse to a height of another: 0 is its upper edge, 1 its lower one."""
    grip = waits(page, prompt).locator(".grip").bounding_box()
    target = waits(page, onto).bounding_box()
    assert grip is not None
    assert target is not None
    page.mouse.move(grip["x"] + grip["width"] / 2, grip["y"] + grip["height"] / 2)
    page.mouse.down()
    page.mouse.move(target["x"] + 40, target["y"] + target["height"] / 2, steps=4)
    page.mouse.move(target["x"] + 40, target["y"] + target["height"] * share, steps=4)


def run_of(site: Site, prompt: str) -> str:
    return next(run.run_id for run in site.queued() if run.prompt == prompt)


@pytest.mark.parametrize("size", [(1280, 860), (380, 800)])
def test_the_mouse_drags_what_waits_to_another_position(browser: Browser, site: Site, size: Any) -> None:
    with opened(browser, site, viewport={"width": size[0], "height": size[1]}) as page:
        wait_in_line(page, "a", "b", "c")
        waits(page, "c").scroll_into_view_if_needed()
        drag(page, "c", "a", share=0.2)
        expect(page.locator("#queue > li.drop .words")).to_have_text("a")
        page.mouse.up()
        in_line(page, "c", "a", "b")
        waits(page, "b").scroll_into_view_if_needed()
        drag(page, "a", "b", share=0.9)
        page.mouse.up()
        in_line(page, "c", "b", "a")
        assert [run.prompt for run in site.queued()] == ["c", "b", "a"]
        # Escape gives the drag up, and cancels nothing.
        drag(page, "a", "c", share=0.2)
        page.keyboard.press("Escape")
        page.mouse.up()
        expect(page.locator("#queue > li.dragged")).to_have_count(0)
        in_line(page, "c", "b", "a")
        expect(page.locator("#phase")).to_have_text("A turn runs.")
        page.reload()  # the view of the server has this order, too
        in_line(page, "c", "b", "a")
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]


def test_keys_move_what_waits_and_the_focus_goes_with_it(page: Page, site: Site) -> None:
    wait_in_line(page, "a", "b", "c", "d")
    waits(page, "d").locator(".grip").focus()
    for _ in range(3):  # faster than the server answers
        page.keyboard.press("Alt+ArrowUp")
    in_line(page, "d", "a", "b", "c")
    expect(waits(page, "d").locator(".grip")).to_be_focused()
    expect(page.locator("#said")).to_have_text("Moved to position 1 of 4.")
    page.keyboard.press("Alt+ArrowUp")
    page.keyboard.press("Alt+ArrowDown")
    in_line(page, "a", "d", "b", "c")
    page.keyboard.press("Alt+End")
    in_line(page, "a", "b", "c", "d")
    page.keyboard.press("ArrowUp")
    expect(waits(page, "c").locator(".grip")).to_be_focused()
    page.keyboard.press("Alt+Home")
    in_line(page, "c", "a", "b", "d")
    assert [run.prompt for run in site.queued()] == ["c", "a", "b", "d"]


def test_a_run_and_a_session_are_held_and_resumed(page: Page, site: Site) -> None:
    wait_in_line(page, "a", "b")
    press(page, "Hold", "a")
    expect(waits(page, "a")).to_have_attribute("data-held", "true")
    expect(waits(page, "b")).to_have_attribute("data-held", "false")
    expect(page.locator("#queue-count")).to_have_text("(2, 1 held)")
    page.locator("#hold").click()
    expect(page.locator("#queue > li.held")).to_have_count(2)
    send(page, "later", "queue")
    expect(waits(page, "later")).to_have_attribute("data-held", "false")
    page.reload()
    expect(page.locator("#queue > li.held")).to_have_count(2)
    press(page, "Resume", "b")
    expect(waits(page, "b")).to_have_attribute("data-held", "false")
    page.locator("#resume").click()
    expect(page.locator("#queue > li.held")).to_have_count(0)
    assert not any(run.held for run in site.queued())


def test_stop_keeps_what_waits_until_it_is_resumed(page: Page, site: Site) -> None:
    wait_in_line(page, "a", "b")
    page.keyboard.press("Control+.")
    expect(done(page, "tea")).to_have_attribute("data-outcome", "cancelled")
    expect(page.locator("#queue > li.held")).to_have_count(2)
    expect(page.locator("#phase")).to_contain_text("waiting prompts are held")
    expect(page.locator("#stop")).to_be_disabled()
    page.locator("#resume").click()
    expect(page.locator("#text")).to_contain_text("about</i> a ")
    in_line(page, "b")
    page.locator("#stop").click()
    expect(done(page, "a")).to_have_attribute("data-outcome", "cancelled")
    expect(waits(page, "b")).to_have_attribute("data-held", "true")
    all_once(page, 2)


def test_what_waits_is_sent_now(page: Page, site: Site) -> None:
    wait_in_line(page, "a", "b")
    press(page, "Hold", "b")
    expect(waits(page, "b")).to_have_attribute("data-held", "true")
    press(page, "Send now", "b")
    expect(page.locator("#text")).to_contain_text("about</i> b ")
    expect(done(page, "tea")).to_have_attribute("data-outcome", "cancelled")
    in_line(page, "a")
    all_once(page, 1)


def test_what_waits_is_edited_in_place(page: Page, site: Site) -> None:
    long = "cake " * 100
    wait_in_line(page, "a")
    send(page, long, "queue")
    expect(page.locator("#queue > li")).to_have_count(2)
    page.locator("#queue").get_by_role("button", name="Edit: cake").click()
    field = page.locator("#queue textarea")
    expect(field).to_be_focused()
    expect(field).to_have_value(long)  # all of it, though the list shows less
    page.keyboard.press("Control+End")
    page.keyboard.type("and soup")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_have_text("Saved.")
    assert site.queued()[1].prompt == long + "and soup"
    press(page, "Edit", "a")
    page.locator("#queue textarea").fill("never")
    page.keyboard.press("Escape")
    expect(page.locator("#queue textarea")).to_have_count(0)
    expect(page.get_by_role("button", name="Edit: a", exact=True)).to_be_focused()
    press(page, "Edit", "a")
    page.locator("#queue textarea").fill("broth")
    page.get_by_role("button", name="Save").click()
    expect(waits(page, "broth")).to_have_count(1)
    press(page, "Edit", "broth")
    page.locator("#queue textarea").fill("  ")
    page.keyboard.press("Enter")
    expect(page.locator("#said")).to_contain_text("Refused")
    expect(page.locator("#queue textarea")).to_have_value("  ")
    expect(page.locator("#phase")).to_have_text("A turn runs.")
    assert site.queued()[0].prompt == "broth"


def test_what_another_client_does_is_shown_and_an_edit_survives_it(page: Page, site: Site) -> None:
    wait_in_line(page, "a", "b", "c")
    a, b, c = (run_of(site, prompt) for prompt in "abc")
    site.call(site.d.edit(a, prompt="another"))
    in_line(page, "another", "b", "c")
    press(page, "Edit", "b")
    field = page.locator("#queue textarea")
    field.fill("half a sent")
    site.call(site.d.move(c, to="first"))
    site.call(site.d.hold("demo"))
    expect(page.locator("#queue > li.held")).to_have_count(2)
    expect(page.locator("#queue > li").nth(0)).to_contain_text("c")
    expect(page.locator("#queue > li").nth(2).locator("textarea")).to_be_focused()
    site.call(site.d.move(b, to="first"))
    expect(page.locator("#queue > li").nth(0).locator("textarea")).to_be_focused()
    page.keyboard.type("ence")
    site.call(site.d.edit(b, prompt="from elsewhere"))
    expect(page.locator("#queue .warning")).to_contain_text("edited elsewhere")
    expect(field).to_have_value("half a sentence")
    site.call(site.d.send_now(b))
    expect(page.locator("#text")).to_contain_text("about</i> from elsewhere")
    expect(page.locator("#queue > li.gone textarea")).to_have_value("half a sentence")
    expect(field).to_be_focused()
    page.get_by_role("button", name="Use as a new prompt").click()
    expect(page.locator("#prompt")).to_have_value("half a sentence")
    in_line(page, "c", "another")
    site.call(site.d.resume("demo"))
    expect(page.locator("#queue > li.held")).to_have_count(0)


def test_a_refusal_is_shown_in_one_line_and_changes_nothing(page: Page, site: Site) -> None:
    wait_in_line(page, "a", "b", "c")
    a = run_of(site, "a")
    site.loop.call_soon_threadsafe(site.line.cut)
    expect(page.locator("#link")).to_have_attribute("data-link", "reconnecting")
    # The page knows nothing of this, and still shows three that wait.
    site.call(site.d.send_now(a))
    page.route("**/v1/events", lambda route: route.abort())
    site.loop.call_soon_threadsafe(site.line.mend)
    for what in ("Hold", "Send now", "Edit"):
        page.evaluate("document.getElementById('said').textContent = ''")
        press(page, what, "a")
        expect(page.locator("#said")).to_have_text("Refused: its turn has begun.")
        expect(page.locator("#said")).to_have_class("bad")
        in_line(page, "a", "b", "c")
    page.evaluate("document.getElementById('said').textContent = ''")
    waits(page, "c").locator(".grip").focus()
    page.keyboard.press("Alt+Home")
    expect(page.locator("#said")).to_have_text("Refused: its turn has begun.")
    press(page, "Send now", "b")  # for the turn of "tea", which has ended
    expect(page.locator("#said")).to_contain_text("Nothing was done")
    assert [run.prompt for run in site.queued()] == ["b", "c"]
    page.unroute("**/v1/events")
    in_line(page, "b", "c")
    expect(page.locator("#text")).to_contain_text("about</i> a ")


class Finger:
    """A finger on the page."""

    def __init__(self, page: Page) -> None:
        self._devtools = page.context.new_cdp_session(page)

    def do(self, kind: str, *at: float) -> None:
        points = [{"x": at[0], "y": at[1]}] if at else []
        self._devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


def test_waiting_prompts_can_be_changed_on_a_ledger_and_by_touch(browser: Browser, tmp_path: Path) -> None:
    site = Site(tmp_path / "ledger.db")
    size: Any = {"width": 380, "height": 800}
    with (
        contextlib.closing(site),
        opened(browser, site, viewport=size, has_touch=True, is_mobile=True) as page,
    ):
        wait_in_line(page, "a", "b", "c")
        waits(page, "c").scroll_into_view_if_needed()
        grip, target = waits(page, "c").locator(".grip").bounding_box(), waits(page, "a").bounding_box()
        assert grip is not None
        assert target is not None
        x, from_y, to_y = grip["x"] + 5, grip["y"] + 5, target["y"] + 4
        finger = Finger(page)
        finger.do("touchStart", x, from_y)
        for step in range(1, 5):
            finger.do("touchMove", x, from_y + (to_y - from_y) * step / 4)
        expect(page.locator("#queue > li.drop .words")).to_have_text("a")
        finger.do("touchEnd")
        in_line(page, "c", "a", "b")
        assert [run.prompt for run in site.queued()] == ["c", "a", "b"]
        deadline = time.monotonic() + 60
        while (
            waits(page, "a").get_attribute("data-held") != "true"
        ):  # a tap misses a row that is just redrawn
            assert time.monotonic() < deadline
            if (hold := waits(page, "a").get_by_role("button", name="Hold: a")).count():
                hold.tap()
            page.wait_for_timeout(500)
        waits(page, "b").get_by_role("button", name="Edit: b").tap()
        page.locator("#queue textarea").fill("b, edited")
        page.get_by_role("button", name="Save").tap()
        in_line(page, "c", "a", "b, edited")
        page.locator("#stop").tap()
        expect(page.locator("#phase")).to_contain_text("waiting prompts are held")
        waits(page, "a").get_by_role("button", name="Send now: a").tap()
        expect(page.locator("#text")).to_contain_text("</i> a")
        in_line(page, "c", "b, edited")
        page.reload()  # the ledger has kept the order and the holds
        in_line(page, "c", "b, edited")
        expect(page.locator("#queue > li[data-held=true]")).to_have_count(2)


@pytest.mark.parametrize("kind", ["memory", "ledger"])
def test_after_a_snapshot_what_is_accepted_has_its_position_too(
    browser: Browser, tmp_path: Path, kind: str
) -> None:
    site = Site(tmp_path / "ledger.db" if kind == "ledger" else None)

    async def first_in_line() -> Run:
        run: Run = await site.d.accept("demo", "later", when_busy="queue")
        await site.d.move(run.run_id, to="first")
        return run

    with contextlib.closing(site), opened(browser, site) as page:
        wait_in_line(page, "a", "b")
        later = site.call(first_in_line())
        page.reload()  # everything that the page knows is from the snapshot
        in_line(page, "a", "b")
        site.call(site.d.enter(later))
        in_line(page, "later", "a", "b")


def test_the_buttons_of_what_waits_are_in_one_row(browser: Browser, site: Site) -> None:
    with opened(browser, site, viewport={"width": 1280, "height": 860}) as page:
        wait_in_line(page, "a")
        page.locator("#hold").click()
        expect(waits(page, "a")).to_have_attribute("data-held", "true")
        buttons = waits(page, "a").locator(".acts button").all()
        assert len({round(box["y"]) for each in buttons if (box := each.bounding_box())}) == 1
