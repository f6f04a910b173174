"""The operations of a dispatcher that an adapter overrides, for both bases of subjects."""

from __future__ import annotations

from collections.abc import Sequence


class Operations:
    """What an adapter does to its dispatcher. It overrides the operations that its dispatcher has."""

    async def do_accept(self, session: str, run: str) -> None:
        """Take a prompt in."""
        raise NotImplementedError

    async def do_enter(self, run: str) -> None:
        """Enter an accepted run."""
        raise NotImplementedError

    async def do_cancel(self, session: str) -> None:
        """Cancel a session."""
        raise NotImplementedError

    async def do_clear(self, session: str) -> None:
        """Clear the queue of a session."""
        raise NotImplementedError

    async def do_cancel_run(self, run: str) -> None:
        """Cancel one run."""
        raise NotImplementedError

    async def do_interrupt(self, session: str, run: str) -> None:
        """Take a prompt in that cancels all that came before it."""
        raise NotImplementedError

    async def do_reject(self, session: str, run: str) -> None:
        """Take a prompt in, or call ``self.refused``, if the session is busy."""
        raise NotImplementedError

    async def do_fold(self, run: str) -> Sequence[str]:
        """Take follow-ups into the turn of this run; return those not shown yet. The runner calls this."""
        raise NotImplementedError
