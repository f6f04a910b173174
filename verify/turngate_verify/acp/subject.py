"""An agent as a subject of the kit: the kit is its client and, as the stub model, the runner of its turns.

Every program has sessions of its own in one process. Responses and calls of the
model come on different wires, so the judge takes their order as unknown. If a
prompt behind a busy session neither waits nor joins the turn, the adapter is a
client that sends the next prompt when the last one is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection

from turngate_model.history import Fold
from turngate_verify.acp.agent import outcome_of
from turngate_verify.acp.fates import Fates
from turngate_verify.acp.probing import Policy
from turngate_verify.acp.rig import Prompt, Rig
from turngate_verify.acp.stub import ModelCall
from turngate_verify.conform.port import Features
from turngate_verify.conform.realtime_subject import RealtimeSubject
from turngate_verify.conform.rest import PATIENCE, Awake
from turngate_verify.conform.timing import Timing

_ENDS = 2.0


class AcpSubject(RealtimeSubject):
    """The sessions of one program.

    What a probe has seen is no promise: an agent may let one prompt wait and have the next join the turn. So
    ``doubt`` tells whether any prompt of the program met another fate than to wait.
    """

    def __init__(self, rig: Rig, policy: Policy) -> None:
        super().__init__()
        self.rig = rig
        self.features = Features(bursts=True, real_time=True, unordered=True, self_folds=policy == "fold")
        self.timing = Timing(
            starts=rig.setting.starts,
            answers=max(rig.setting.grace, rig.setting.starts),
            quiet=rig.setting.quiet,
            grace=rig.setting.grace,
            longest=4 * rig.setting.grace,
        )
        self._is_serial = policy not in ("queue", "fold")
        self._sessions: dict[str, str] = {}
        self._prompts: dict[str, Prompt] = {}
        self._begun: list[str] = []
        """The runs whose turns have begun, in their order."""
        self._joined: dict[str, str] = {}
        """The runs that have joined a turn, each with the lead of that turn."""
        self._unsent: dict[str, list[str]] = {}
        """For each session, the prompts that wait in the client, because the session is busy."""
        self._orders: dict[str, str] = {}
        """How the kit lets each turn end."""
        self._lines: dict[str, asyncio.Lock] = {}
        self._fates = Fates()
        self._is_let_go = False

    async def _in_line(self, name: str) -> str:
        """Return the id of a session, which the first operation about it opens."""
        if name not in self._sessions:
            self._sessions[name] = await self.rig.open_session()
        return self._sessions[name]

    def _line(self, name: str) -> asyncio.Lock:
        """Return what keeps the operations of a session in order, also while it is being opened."""
        return self._lines.setdefault(name, asyncio.Lock())

    # Operations.

    async def do_accept(self, session: str, run: str) -> None:
        """Send a prompt, unless the client keeps it until the session is idle."""
        async with self._line(session):
            opened = await self._in_line(session)
            if self._is_serial and self._in_flight(opened):
                self._unsent.setdefault(opened, []).append(run)
            else:
                self._send(opened, run)

    async def do_cancel(self, session: str) -> None:
        """Cancel a session, and drop what the client has not sent."""
        async with self._line(session):
            opened = await self._in_line(session)
            self._fates.cancelled(each.name for each in self._in_flight(opened))
            self.rig.cancel(opened)
            for run in self._unsent.pop(opened, []):
                self.completed(run, cancelled=True)

    def is_computing(self) -> bool:
        """Tell whether the agent is seen to work, so that what it owes may still come."""
        return self.call(self.rig.agent.is_computing())

    def doubt(self, *, to_the_end: bool = False) -> str:
        """Return what became of a prompt behind a busy session that is not what was found out before.

        Such a prompt may have met any fate, at any moment, and then nothing that seems to be broken is
        certain. ``to_the_end`` lets every turn go, and waits for every response first: what became of a
        prompt may show only then. Nothing is judged after that.
        """
        if to_the_end and self._fates.behind:
            self.call(self._let_go(), PATIENCE * self.timing.longest)
        return self._fates.doubt

    async def _let_go(self) -> None:
        self._is_let_go = True
        for prompt in list(self._prompts.values()):
            self._orders.setdefault(prompt.name, "finish")
            for call in prompt.open_calls:
                call.finish(prompt.reply)
        clock = Awake()
        began = heard = clock.now()
        while waiting := [each for each in self._prompts.values() if not each.is_answered]:
            if (now := clock.now()) - heard > self.timing.grace:
                if now - began > PATIENCE * self.timing.grace or not await self.rig.agent.is_computing():
                    return
                heard = now
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(waiting[0].request.is_answered.wait(), self.timing.poll)

    async def look(self) -> None:
        """Raise if the agent has gone."""
        self.rig.agent.check()

    async def end(self) -> None:
        """Cancel what is in flight, and let every call of the model go."""
        for opened in self._sessions.values():
            self.rig.agent.cancel(opened)
        self._unsent.clear()
        self.rig.forget(self._prompts.values())
        waiting = asyncio.gather(*(each.request.is_answered.wait() for each in self._prompts.values()))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(waiting, _ENDS)

    def _in_flight(self, opened: str) -> list[Prompt]:
        return [
            each for each in self._prompts.values() if each.session == opened and not each.request.answers
        ]

    def _send(self, opened: str, run: str) -> None:
        self._fates.sent(run, [each.name for each in self._in_flight(opened)])
        prompt = self.rig.prompt(opened, run, lambda call: self._called(prompt, call))
        prompt.request.on_answer = lambda answer: self._answered(prompt, answer)
        self._prompts[run] = prompt

    def _answered(self, prompt: Prompt, answer: dict[str, object]) -> None:
        run, got = prompt.name, outcome_of(answer)
        if len(prompt.request.answers) == 1:
            at_work = [each for each in self._in_flight(prompt.session) if each.calls]
            self._fates.answered(prompt, got, self._orders.get(run, ""), at_work)
        self._join(prompt, is_answered=True)
        error = None if got in ("end_turn", "cancelled") else got
        self.completed(run, cancelled=got == "cancelled", error=error)
        others = [each for each in self._in_flight(prompt.session) if each is not prompt]
        if not others and (unsent := self._unsent.get(prompt.session)):
            self._send(prompt.session, unsent.pop(0))

    def _join(self, prompt: Prompt, *, is_answered: bool) -> None:
        """Show that a prompt has joined the active turn, or the one that it is answered with."""
        run = prompt.name
        if not self.features.self_folds or run in self._begun or run in self._joined:
            return
        if lead := self._lead(prompt, is_answered=is_answered):
            self._joined[run] = lead
            self.saw(Fold(run, lead))

    def _lead(self, prompt: Prompt, *, is_answered: bool) -> str:
        """Return the run whose turn a prompt may have joined, or an empty string.

        It is the one that began last in its session. A prompt that is still to be answered has not joined a
        turn that has been answered.
        """
        of_session = [run for run in self._begun if self._prompts[run].session == prompt.session]
        last = self._prompts[of_session[-1]] if of_session else None
        return last.name if last is not None and (is_answered or not last.is_answered) else ""

    # The model.

    def _called(self, prompt: Prompt, call: ModelCall) -> None:
        run = prompt.name
        if prompt.is_answered:
            return  # a call that was on its way when its turn was over: it came on another wire
        self._fates.called(run, [each for each in self._in_flight(prompt.session) if each.calls])
        if self._is_let_go:
            call.finish(prompt.reply)
            return
        for each in self._in_flight(prompt.session):
            # The conversation holds every prompt that has joined, and the call is told by the last of them.
            if each is prompt or (each.number < prompt.number and each.number in call.asked.told):
                self._join(each, is_answered=False)
        if run not in self._begun and run not in self._joined:
            self._begun.append(run)
            self.started(run)
        if order := self._orders.get(run) or self._orders.get(self._joined.get(run, "")):
            self._obey(prompt, call, order)

    @staticmethod
    def _obey(prompt: Prompt, call: ModelCall, order: str) -> None:
        if order == "fail":
            call.fail("no luck")
        else:
            call.finish(prompt.reply)

    def tell(self, run: str, what: str) -> None:
        """Have the model answer, or fail, for this turn; from any thread."""
        self.loop().call_soon_threadsafe(self._tell, run, what)

    def _tell(self, run: str, what: str) -> None:
        self._orders.setdefault(run, what)
        prompt = self._prompts.get(run)
        if prompt is None:
            return
        folded = [each for each in self._in_flight(prompt.session) if each.name not in self._begun]
        for each in (prompt, *(folded if self.features.self_folds else ())):
            for call in each.open_calls:
                self._obey(each, call, what)

    def working(self) -> Collection[str]:
        """Return the runs whose model call is open."""
        return [
            run
            for run, prompt in list(self._prompts.items())
            if run in self._begun and run not in self._orders and prompt.open_calls
        ]
