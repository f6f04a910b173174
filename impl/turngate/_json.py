"""JSON that runners hand over: encoded at the call, so that later changes to it do not count."""

from __future__ import annotations

import json
import math
from typing import Any, Final

_LEVELS: Final = 200
"""How deep data may be nested: what is encoded on one stack must be written, read and copied on any other."""


def encode(data: object, where: str) -> str:
    """Return the data as JSON text, the same text for equal data; raise a TypeError if they are not JSON."""
    try:
        _check(data, _LEVELS)
        return json.dumps(data, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as wrong:
        raise TypeError(f"{where} takes what JSON can say: {wrong}") from None


def decode(text: str | None) -> Any:
    """Return a new copy of what was encoded, None if nothing was."""
    return None if text is None else json.loads(text)


def _check(data: object, levels: int) -> None:
    """Refuse what `json.dumps` would change in silence: keys that are no strings, infinity, NaN."""
    if isinstance(data, dict | list | tuple):
        if levels == 0:
            raise TypeError(f"it is nested more than {_LEVELS} levels deep")
        if isinstance(data, dict):
            for key in data:
                if not isinstance(key, str):
                    raise TypeError(f"a key must be a string, not {type(key).__name__}")
        for value in data.values() if isinstance(data, dict) else data:
            _check(value, levels - 1)
    elif isinstance(data, float) and not math.isfinite(data):
        raise TypeError(f"there is no number {data!r}")
