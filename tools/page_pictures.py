"""Take the pictures of the live page for README.md: `python tools/page_pictures.py` (needs Chromium).

They go to pictures/, or to a folder that is given.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from served_process import process  # noqa: E402 - found only now

PICTURES: tuple[tuple[str, int, int, Literal["light", "dark"]], ...] = (
    ("light", 1360, 850, "light"),
    ("dark", 1360, 850, "dark"),
    ("narrow", 420, 900, "light"),
)
"""Each by its name, with the size of its window and the colours that its owner prefers."""


def show(page: Page) -> None:
    """Bring the page to where it has something to show of everything."""

    def send(prompt: str, busy: str = "fold") -> None:
        page.select_option("#busy", busy)
        page.fill("#prompt", prompt)
        page.press("#prompt", "Enter")

    send("3 words about tea")
    expect(page.locator("#done li")).to_have_count(1, timeout=60_000)
    send("please fail")
    expect(page.locator("#done li")).to_have_count(2, timeout=60_000)
    send("never mind")
    expect(page.locator("#phase")).to_have_text("A turn runs.")
    page.keyboard.press("Escape")
    expect(page.locator("#done li")).to_have_count(3, timeout=60_000)
    send("What is a good tea for the afternoon?")
    expect(page.locator("#text")).to_contain_text("demonstration", timeout=60_000)
    send("and biscuits?")
    expect(page.locator("#lead li")).to_have_count(2, timeout=60_000)
    send("soup for dinner", "queue")
    send("a cake", "queue")
    expect(page.locator("#queue li")).to_have_count(2, timeout=60_000)
    page.locator("#queue").get_by_role("button", name="Hold: soup for dinner").click()
    expect(page.locator("#queue li[data-held=true]")).to_have_count(1, timeout=60_000)
    expect(page.locator("#text")).to_contain_text("something else", timeout=60_000)


def main() -> None:
    """Write the pictures."""
    to = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "pictures"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, width, height, scheme in PICTURES:
            with process() as server:
                page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
                page.goto(server.url)
                show(page)
                page.screenshot(path=to / f"page-{name}.png", full_page=name == "narrow")
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
