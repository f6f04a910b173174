"""Makes untrusted text safe to print."""

from __future__ import annotations


def visible(text: str, encoding: str = "utf-8") -> str:
    """Return a text on one line in which nothing is hidden: what is not printable is written as in Python."""
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text
    )
    return shown.encode(encoding, "backslashreplace").decode(encoding)
