"""JSON that runners hand over: taken at the call, so that nobody changes it afterwards."""

from __future__ import annotations

import json
import math
from typing import Any


def taken(data: object, where: str) -> str:
    """Return the data as JSON text; raise a TypeError that says where something is not JSON."""
    try:
        _check(data)
        return json.dumps(data)
    except (TypeError, RecursionError) as wrong:
        reason = "it is nested too deeply" if isinstance(wrong, RecursionError) else str(wrong)
        raise TypeError(f"{where} takes what JSON can say: {reason}") from None


def given_back(text: str | None) -> Any:
    """Return a new copy of what was taken, None if nothing was."""
    return None if text is None else json.loads(text)


def _check(data: object) -> None:
    """Refuse what `json.dumps` would change in silence: keys that are no strings, infinity, NaN."""
    if isinstance(data, dict):
        for key, value in data.items():
            if not isinstance(key, str):
                raise TypeError(f"a key must be a string, not {key!r:.80}")
            _check(value)
    elif isinstance(data, list | tuple):
        for value in data:
            _check(value)
    elif isinstance(data, float) and not math.isfinite(data):
        raise TypeError(f"there is no number {data!r}")
    elif data is not None and not isinstance(data, str | int | float):
        raise TypeError(f"there is nothing for a {type(data).__name__}")
