"""The rules of subscribers and followers: they subscribe, read, lag behind and unsubscribe, follow, page."""

from __future__ import annotations

from hypothesis import strategies as st

from turngate import CursorExpired
from turngate_verify.drivers.rules.example import COMPLETE_LIMIT, SESSIONS, Example, one_of, rule, when
from turngate_verify.drivers.rules.readers import Reader
from turngate_verify.world.followers import CompletionsFollower

MOST_READERS = 2
MOST_FOLLOWERS = 6


class SubscriberRules(Example):
    """What subscribers do, and those who follow the text of a run, the completions or the messages."""

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

    @when(lambda self: self.uncovered and len(self.world.followers) < MOST_FOLLOWERS)
    @rule(
        run=one_of(lambda self: [*self.players, *self.uncovered, *self.runs]),
        start=st.sampled_from((0, 0, 1, 5, 99)),
        to_end=st.booleans(),
    )
    def stream(self, run: str, start: int, to_end: bool) -> None:
        """Follow the text of a run from an offset on, in a task: before its turn, during it or after it."""
        task = self.world.follow_text(run, start).read(self.world.loop, to_end=to_end)
        assert task is not None
        self._callers.append(task)

    @when(lambda self: self.world.monitor.completed and len(self.world.followers) < MOST_FOLLOWERS)
    @rule(behind=one_of(lambda self: [-1, *range(len(self.world.followers))]), to_end=st.booleans())
    def completions(self, behind: int, to_end: bool) -> None:
        """Follow the completions in a task, from the oldest kept or from where another follower is."""
        other = self.world.followers[behind] if 0 <= behind < len(self.world.followers) else None
        known = other if isinstance(other, CompletionsFollower) else None
        follower = self.world.follow_completions(known)
        if follower is None:
            self.tally.reached.add(f"refused: {CursorExpired.__name__}")
        elif task := follower.read(self.world.loop, to_end=to_end):
            self._callers.append(task)

    @when(lambda self: self.world.monitor.completed and len(self.world.followers) < MOST_FOLLOWERS)
    @rule(session=SESSIONS, limit=st.sampled_from((1, 2, 3)), to_end=st.booleans())
    def page(self, session: str, limit: int, to_end: bool) -> None:
        """Read the messages of a session in a task, a few at a time, one page or all there are."""
        task = self.world.follow_messages(session, max(limit, 1)).read(self.world.loop, to_end=to_end)
        assert task is not None
        self._callers.append(task)

    @when(lambda self: self.runs)
    @rule(run=one_of(lambda self: self.runs))
    def messages_of(self, run: str) -> None:
        """Ask for the messages of the turn that a run was part of."""
        self.world.messages_of(run)

    @when(lambda self: any(not follower.waits for follower in self.world.followers))
    @rule(nth=one_of(lambda self: range(len(self.world.followers))), to_end=st.booleans())
    def follow(self, nth: int, to_end: bool) -> None:
        """Go on following, one piece or to the end: after the first piece, or after a task was cancelled."""
        if task := self.world.followers[nth].read(self.world.loop, to_end=to_end):
            self._callers.append(task)
