"""Makes pages from templates. The only module that knows ``jinja2``, and it escapes everything.

What a page shows may come from strangers: run ids, file names, what a subject has said. Only drawings are put
in as they are; the drawing module has escaped every text in them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

__all__ = ["Markup", "drawing", "render", "written"]

_ENVIRONMENT = Environment(
    loader=PackageLoader("turngate_verify.report", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)

_SMALLEST = 0.85
"""A drawing is never shown smaller than so much of its size; where there is no room, it scrolls."""


def render(template: str, **about: Any) -> str:
    """Return the page that a template makes of what it is told."""
    return _ENVIRONMENT.get_template(template).render(about)


def drawing(svg: str, *, readable: bool = False) -> Markup:
    """Mark a drawing of ours as what need not be escaped again.

    ``readable`` keeps it from being shrunk so far that its text cannot be read.
    """
    svg = svg[svg.index("<svg") :]
    if readable and (width := re.search(r"width='(\d+)'", svg)):
        svg = svg.replace("<svg", f"<svg style='min-width: {int(width[1]) * _SMALLEST:.0f}px'", 1)
    return Markup(svg)  # noqa: S704 - every text in it is escaped where it is drawn


def written(text: str, path: Path) -> Path:
    """Write a page and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path
