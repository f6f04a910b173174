"""A memory of a bounded size: what was put into it last is still there, what is older may be gone."""

from __future__ import annotations

from typing import Generic, TypeVar

V = TypeVar("V")


class Remembered(Generic[V]):
    """Remembers at least the last ``size`` values, and never more than twice as many.

    There are two generations: when the newer one is full, the older one is forgotten as a whole.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._newer: dict[str, V] = {}
        self._older: dict[str, V] = {}

    def put(self, name: str, value: V) -> None:
        """Remember a value under a name, as the newest."""
        self._newer[name] = value
        if len(self._newer) >= self._size:
            self._older, self._newer = self._newer, {}

    def get(self, name: str) -> V | None:
        """Return what is remembered under a name."""
        value = self._newer.get(name)
        return self._older.get(name) if value is None else value

    def clear(self) -> None:
        """Forget everything."""
        self._newer, self._older = {}, {}

    def __contains__(self, name: str) -> bool:
        return name in self._newer or name in self._older

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)
