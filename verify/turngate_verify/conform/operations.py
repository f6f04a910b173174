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

    async def do_hold(self, session: str) -> None:
        """Hold the waiting runs of a session."""
        raise NotImplementedError

    async def do_resume(self, session: str) -> None:
        """Resume the held runs of a session."""
        raise NotImplementedError

    async def do_hold_run(self, run: str) -> None:
        """Hold one run, or call ``self.refused(run, "hold_run")`` if it does not wait."""
        raise NotImplementedError

    async def do_resume_run(self, run: str) -> None:
        """Resume one run, or call ``self.refused(run, "resume_run")`` if it does not wait."""
        raise NotImplementedError

    async def do_stop(self, session: str) -> None:
        """Cover the active turn alone, and hold the waiting runs."""
        raise NotImplementedError

    async def do_move(self, run: str, before: str | None) -> None:
        """Move a run before another or behind all, or call ``self.refused(run, "move")``."""
        raise NotImplementedError

    async def do_edit(self, run: str, prompt: str) -> None:
        """Give a run another prompt, or call ``self.refused(run, "edit")``."""
        raise NotImplementedError

    async def do_send_now(self, run: str) -> None:
        """Make a queued run the next one now, or call ``self.refused(run, "send_now")``."""
        raise NotImplementedError

    async def do_into(self, session: str, run: str, into: str) -> None:
        """Take a prompt in for the turn of a run alone, or call ``self.refused(run)``."""
        raise NotImplementedError

    async def do_fold(self, run: str) -> Sequence[str]:
        """Take follow-ups into the turn of this run; return those not shown yet. The runner calls this."""
        raise NotImplementedError
