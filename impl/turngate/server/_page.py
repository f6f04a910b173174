"""The live page: static files that come with the package, and what browsers may do with them."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from starlette.responses import Response

from turngate.server._problems import Problem

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
FOLDER: Final = files("turngate.server") / "page"


class Page:
    """The files of the page by their paths."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}
        for file in FOLDER.iterdir():
            kind = _TYPES.get(file.name.rpartition(".")[2])
            if kind is not None:
                self._files[f"/{file.name}"] = (file.read_bytes(), kind)
        self._files["/"] = self._files["/index.html"]

    def __contains__(self, path: object) -> bool:
        return path in self._files

    def response(self, path: str, method: str) -> Response:
        """Return a file of the page."""
        if method not in ("GET", "HEAD"):
            raise Problem("method-not-allowed", allow="GET")
        content, kind = self._files[path]
        return Response(content, headers=HEADERS, media_type=kind)
