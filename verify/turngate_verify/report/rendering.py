"""Makes pages from templates. The only module that knows ``jinja2``, and it escapes everything.

What a page shows may come from strangers: run ids, file names, what a subject has said. Only drawings are put
in as they are; the drawing module has escaped every text in them.
"""

from __future__ import annotations

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


def render(template: str, **about: Any) -> str:
    """Return the page that a template makes of what it is told."""
    return _ENVIRONMENT.get_template(template).render(about)


def drawing(svg: str) -> Markup:
    """Mark a drawing of ours as what need not be escaped again."""
    return Markup(svg[svg.index("<svg") :])  # noqa: S704 - every text in it is escaped where it is drawn


def written(text: str, path: Path) -> Path:
    """Write a page and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path
