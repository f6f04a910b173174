"""Pages in Chromium, as the system has it: opened from a file, watched for errors and for the network."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

PATIENCE = 60_000  # milliseconds after which something counts as not happening, on any machine


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser: Browser, path: Path, address: str = "", **options: Any) -> Iterator[Page]:
    """Open a file. No script may fail, and nothing but the file may be asked for."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    errors: list[str] = []
    asked: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri() + address)
    yield page
    assert errors == []
    assert {each.partition("#")[0] for each in asked if not each.startswith("data:")} == {path.as_uri()}
    context.close()


CONTRAST = """() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(node => node.nodeType === 3 && node.data.trim());
    const hidden = !element.checkVisibility() || element.closest('svg, script, :disabled');
    if (!own || hidden) continue;
    const both = [light(parts(getComputedStyle(element).color)), light(ground(element))];
    const contrast = (Math.max(...both) + .05) / (Math.min(...both) + .05);
    if (contrast < 4.5) bad.push(`${element.tagName} ${element.textContent.slice(0, 30)}: ${contrast}`);
  }
  return bad;
}"""
"""Returns every text whose contrast with its background is too small to be read."""
