"""Makes pages from templates. The only module that knows ``jinja2``, and it escapes everything.

A page may show untrusted text: run ids, file names, the output of a subject. Only drawings are inserted
unescaped; the drawing module has escaped the text in them.
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
"""A drawing is never shrunk below this part of its size; where there is no room, it scrolls."""


def render(template: str, **about: Any) -> str:
    """Render a template."""
    return _ENVIRONMENT.get_template(template).render(about)


def drawing(svg: str, *, readable: bool = False) -> Markup:
    """Mark one of our drawings as safe, so that it is not escaped again.

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
