"""What is typed in a terminal that hands over every key: letters, and the keys that mean something."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

ENTER, ESCAPE, BACKSPACE, CLEAR, WORD, END = "enter", "escape", "backspace", "clear", "word", "end"
_KEYS = {
    "\r": ENTER,
    "\n": ENTER,
    "\x7f": BACKSPACE,
    "\x08": BACKSPACE,
    "\x15": CLEAR,
    "\x17": WORD,
    "\x04": END,
    "\x03": END,
}


class Keys:
    """Makes keys of the bytes of a terminal.

    The Escape key is one byte, and so begin the sequences that arrows and the like send. One that comes alone
    is the key: `feed` keeps it back, and it is what `pending` says when nothing has followed for a moment.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    @property
    def pending(self) -> bool:
        """Whether an Escape has come of which it is not known yet what it begins."""
        return self._held == "\x1b"

    def release(self) -> str:
        """Take a pending Escape for the key."""
        self._held = ""
        return ESCAPE

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield keys by their names, and everything else as the character it is."""
        text = self._held + self._decoder.decode(data)
        self._held = ""
        while text:
            if text[0] != "\x1b":
                key, text = text[0], text[1:]
                if key in _KEYS:
                    yield _KEYS[key]
                elif key.isprintable():
                    yield key
                continue
            if len(text) == 1:
                self._held = text
                return
            if text[1] not in "[O":
                text = text[1:]
                yield ESCAPE
                continue
            end = next((at for at, each in enumerate(text[2:], 2) if "@" <= each <= "~"), None)
            if end is None:
                self._held = text
                return
            text = text[end + 1 :]  # an arrow, say: it means nothing here
