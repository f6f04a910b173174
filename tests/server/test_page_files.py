"""The files of the live page: what no browser is needed for."""

from __future__ import annotations

import re

from surroundings import ROOT
from turngate import State
from turngate._core import MOVES

FOLDER = ROOT / "impl" / "turngate" / "server" / "page"


def test_its_files_hold_no_script_in_markup_and_need_no_network() -> None:
    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert re.findall(r"<script[^>]*>", html) == ['<script type="module" src="app.js">']
    assert not re.search(r"\son\w+=|style=|javascript:", html)
    for file in FOLDER.iterdir():
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), file
        assert "innerHTML" not in text
        assert "eval(" not in text


def test_the_picture_is_the_lifecycle() -> None:
    html = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert {*re.findall(r'data-state="(\w+)"', html)} == {state.value for state in State}
    drawn = {*re.findall(r'data-edge="(\w+ \w+)"', html)}
    assert drawn == {f"{start.value} {to.value}" for start, ends in MOVES.values() for to in ends}
