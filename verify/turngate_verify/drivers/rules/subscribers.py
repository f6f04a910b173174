"""The rules of subscribers: they subscribe, read, lag behind and unsubscribe."""

from __future__ import annotations

from hypothesis import strategies as st

from turngate_verify.drivers.rules.example import COMPLETE_LIMIT, SESSIONS, Example, one_of, rule, when
from turngate_verify.drivers.rules.readers import Reader

MOST_READERS = 2


class SubscriberRules(Example):
    """What subscribers do."""

    @when(lambda self: len(self.readers) < MOST_READERS and self.uncovered)
    @rule(session=st.one_of(st.none(), SESSIONS))
    def subscribe(self, session: str | None) -> None:
        """Subscribe to one session or to all. The dispatcher cuts off a reader that lags too far behind."""
        self.readers.append(Reader(self.world, session, COMPLETE_LIMIT))

    @when(lambda self: any(not reader.waits for reader in self.readers))
    @rule(nth=one_of(lambda self: range(len(self.readers))), stops=st.booleans())
    def read(self, nth: int, stops: bool) -> None:
        """Read one event, in a task. A reader that stops unsubscribes first, and reads what it received."""
        if stops:
            self.readers[nth].unsubscribe()
        if task := self.readers[nth].read():
            self._callers.append(task)
