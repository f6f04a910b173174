"""The wire driver: a client that keeps to the letter, and judges an agent by what crosses its streams.

The stub model holds every turn until the driver lets it go. So a prompt that is
cancelled in time can end in one way alone, and no verdict depends on who was
faster. Without a stub, a response that may have crossed the cancel is not held
against the agent.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from turngate_model.checker.counterexample import Counterexample, PlayedStep, consequences
from turngate_model.history import Complete, Enter, Event
from turngate_model.lifecycle import DeclaredState
from turngate_model.mechanism import Action
from turngate_model.properties import AnyProperty, Property, Violation
from turngate_verify.acp.rig import Prompt, Rig, shell_tool
from turngate_verify.acp.scenarios import DELAYS, Scenario, sweep
from turngate_verify.acp.stub import ModelCall
from turngate_verify.conform.rest import PATIENCE, Awake
from turngate_verify.conform.result import FlakyFinding

_COMES_BACK = 3
"""What was found must come back this many times."""
_TRIES = 12
"""How many replays are made for that, at most."""
_IN_VAIN = 5
"""After this many replays in which nothing came back, no more are made."""
_CANDIDATES = 2
"""How many scenarios that broke a property are replayed before it counts as flaky."""
ROUNDS = 3
_POLL = 0.01
_TOOLS = frozenset({"tool_call", "tool_call_update"})
_TAKES_TIME = f"{shlex.quote(sys.executable)} -c 'import time; time.sleep(5)'"
"""A command for a cancel to hit. Some agents refuse a plain ``sleep``."""
NO_RESPONSE = "no response"


class _Said:
    """A step that is being described: what the driver did, and what was seen since."""

    def __init__(self, place: int, action: Action, words: str) -> None:
        self.place = place
        self.action = action
        self.words = words
        self.events: list[Event] = []

    def step(self) -> PlayedStep:
        seen = consequences(tuple(self.events))
        words = f"{self.words}: {seen}" if seen else self.words
        return PlayedStep(self.place, self.action, tuple(self.events), words=words)


class WirePlay:
    """One scenario on fresh sessions, and what it breaks. Nothing is judged after the first offence."""

    def __init__(self, rig: Rig, scenario: Scenario) -> None:
        self.rig = rig
        self.scenario = scenario
        self.offence: Violation | None = None
        self.exercised: set[Property] = set()
        self.skipped = ""
        """Why the scenario could not be played as it is meant; empty if it could."""
        self._said: list[_Said] = []
        self._prompts: list[Prompt] = []
        self._sessions: list[str] = []

    @property
    def steps(self) -> tuple[PlayedStep, ...]:
        """What happened, step by step."""
        return tuple(each.step() for each in self._said)

    async def perform(self) -> None:
        """Play the scenario. Raises AgentGone if the agent goes."""
        try:
            await self._perform()
            await self._settle()
        finally:
            self.rig.holds_permissions = False
            self.rig.forget(self._prompts)

    async def _perform(self) -> None:
        kind, moment, is_warm = self.scenario
        match kind:
            case "prompt":
                await self._plain(await self._open(is_warm), Property.EXACTLY_ONE_COMPLETE)
            case "behind":
                await self._behind(await self._open(is_warm))
            case "cancel" | "cancel-twice":
                await self._cancelled(await self._open(is_warm), moment, twice=kind == "cancel-twice")
            case "idle-cancel":
                await self._idle_cancel(await self._open(is_warm), moment)
            case "fail":
                await self._failing(await self._open(is_warm))
            case "two-sessions" | "fail-beside":
                await self._beside(fails=kind == "fail-beside")

    # Scenarios.

    async def _cancelled(self, session: str, moment: str, *, twice: bool) -> None:
        a = self._prompt(session)
        if not await self._reach(a, moment):
            self.skipped = self.skipped or f"a cancel {self.scenario.when} could not be sent in time"
            return
        if a.is_answered and self._has_stub:
            self.skipped = f"the prompt was answered {a.request.outcome} before the cancel"
            return
        self._cancel(session, a, moment)
        if twice:
            self._cancel(session, a, "at-once")
        got = await self._outcome(a)
        self.exercised.add(Property.EXACTLY_ONE_COMPLETE)
        if got == NO_RESPONSE and self._has_stub:
            a.release()
            got = await self._outcome(a)
            if got not in (NO_RESPONSE, "cancelled"):
                got += ", and only when the model had answered"
        may = ("cancelled", "end_turn") if moment == "end" or not self._has_stub else ("cancelled",)
        if got == "cancelled":
            self.exercised.add(Property.FULL_COVERAGE)
        if got == NO_RESPONSE:
            self._break(Property.EXACTLY_ONE_COMPLETE, "a is cancelled, and never answered")
        elif got not in may:
            self.exercised.add(Property.FULL_COVERAGE)
            said = f"a is answered {got}: a prompt that is cancelled is answered cancelled"
            self._break(Property.FULL_COVERAGE, said)
        else:
            await self._quiet()
            await self._plain(session, Property.NO_STRAND)

    async def _behind(self, session: str) -> None:
        """Send a prompt while another one is at work: it may meet any fate, but is answered."""
        a = self._prompt(session)
        if not await self._begun(a) or a.is_answered:
            self.skipped = "a prompt was done before the next one was sent"
            return
        b = self._prompt(session)
        await self._quiet()
        self._finish(a)
        b.release()
        for each, broken in ((a, Property.EXACTLY_ONE_COMPLETE), (b, Property.NO_STRAND)):
            self.exercised |= {Property.EXACTLY_ONE_COMPLETE, broken}
            if await self._outcome(each) == NO_RESPONSE:
                behind = f", which was sent behind {a.name}," if each is b else ""
                self._break(broken, f"{each.name}{behind} is never answered")
                return
        await self._quiet()
        await self._plain(session, Property.NO_STRAND)

    async def _idle_cancel(self, session: str, moment: str) -> None:
        self._say(0, Action("caller", "cancel"), "cancel of an idle session")
        self.rig.cancel(session)
        if DELAYS[moment]:
            await asyncio.sleep(DELAYS[moment])
        self.exercised.add(Property.IDLE_CANCEL)
        await self._plain(session, Property.IDLE_CANCEL)

    async def _failing(self, session: str) -> None:
        a = self._prompt(session)
        a.on_call = lambda call: call.fail("no luck")
        for call in a.open_calls:
            call.fail("no luck")
        got = await self._outcome_of_failure(a)
        if not a.has_called.is_set():
            self.skipped = "the model was not asked, and could not fail"
        elif got == NO_RESPONSE:
            self.exercised.add(Property.EXACTLY_ONE_COMPLETE)
            self._break(Property.EXACTLY_ONE_COMPLETE, "the model fails, and a is never answered")
        else:
            self.exercised |= {Property.EXACTLY_ONE_COMPLETE, Property.NO_STRAND}
            await self._plain(session, Property.NO_STRAND)

    async def _outcome_of_failure(self, a: Prompt) -> str:
        """Wait for the answer to a prompt whose calls all fail, as long as the agent tries again."""
        for _ in range(6):
            calls = len(a.calls)
            await self.rig.agent.wait(a.request.is_answered, self.rig.setting.grace)
            if a.is_answered or len(a.calls) == calls:
                break
        else:
            a.release()
        return await self._outcome(a)

    async def _beside(self, *, fails: bool) -> None:
        one, two = await self._open(False), await self._open(False)
        a, b = self._prompt(one), self._prompt(two)
        if self._has_stub and not (await self._begun(a) and await self._begun(b)):
            self.skipped = "two sessions were not at work at the same time"
            return
        if b.is_answered:
            self.skipped = "the other session was done before the cancel"
            return
        if fails:
            self._say(0, Action("runner", "end", "a", "error"), "the model fails in the first session")
            a.on_call = lambda call: call.fail("no luck")
            for call in a.open_calls:
                call.fail("no luck")
            await self._outcome_of_failure(a)
        else:
            self._cancel(one, a, "at-once")
            await self._outcome(a)
        await self._quiet()
        does = "a failure in" if fails else "a cancel of"
        early = b.request.outcome if b.is_answered and self._has_stub else ""
        hung_up = self._has_stub and not early and not b.open_calls
        if not early and not hung_up:
            self._finish(b)
            early = await self._outcome(b)
        self.exercised.add(Property.ISOLATION)
        if hung_up:
            self._break(Property.ISOLATION, f"after {does} another session, the model call of b is given up")
        elif early != "end_turn" and (self._has_stub or early in ("cancelled", NO_RESPONSE)):
            self._break(Property.ISOLATION, f"after {does} another session, b is answered {early}")

    async def _plain(self, session: str, broken: Property) -> None:
        """Send a prompt that must run and finish; ``broken`` is what is broken if it does not."""
        b = self._prompt(session)
        ran = await self._begun(b)
        is_later = len([each for each in self._prompts if each.session == session]) > 1
        if ran and is_later and self._has_stub and not await self._has_ended_before(b):
            return
        self._finish(b)
        got = await self._outcome(b)
        ran = ran or (self._has_stub and b.has_called.is_set())  # it was slow, no more
        is_after_cancel = any(each.action.name == "cancel" for each in self._said)
        self.exercised.add(Property.EXACTLY_ONE_COMPLETE)
        self.exercised.add(broken)
        if is_after_cancel:
            self.exercised.add(Property.NEVER_POISONED)
        if got == "end_turn" and ran:
            return
        if not self._has_stub and got not in ("cancelled", NO_RESPONSE):
            self.skipped = f"{b.name} is answered {got}, which may be the model's doing"
        elif got == "cancelled":
            said = f"{b.name} is answered cancelled: nothing has cancelled it"
            self._break(Property.NEVER_POISONED, said)
        elif got == NO_RESPONSE:
            self._break(broken, f"{b.name} is never answered")
        else:
            never = "" if ran else ", and the model was never asked"
            self._break(broken, f"{b.name} is answered {got}{never}: it should run and finish")

    async def _has_ended_before(self, b: Prompt) -> bool:
        """Check that no model call of an earlier turn of the session is still open."""
        earlier = [each for each in self._prompts if each.session == b.session and each is not b]
        self.exercised.add(Property.ONE_TURN)
        if await self._owed(lambda: not any(each.open_calls for each in earlier)):
            return True
        still = next(each.name for each in earlier if each.open_calls)
        said = f"{b.name} runs, and a model call of {still}, which is answered, is still open"
        self._break(Property.ONE_TURN, said)
        return False

    # Parts of scenarios.

    @property
    def _has_stub(self) -> bool:
        return self.rig.setting.has_stub

    async def _open(self, is_warm: bool) -> str:
        session = await self.rig.open_session()
        self._sessions.append(session)
        if is_warm:
            await self._plain(session, Property.EXACTLY_ONE_COMPLETE)
        return session

    def _say(self, place: int, action: Action, words: str) -> None:
        self._said.append(_Said(place, action, words))

    def _prompt(self, session: str) -> Prompt:
        name = "abcdefgh"[len(self._prompts)]
        place = self._sessions.index(session)
        self._say(place, Action("caller", "accept", name, "fold"), f"accept {name}")
        first = self._said[-1]

        def called(_: ModelCall) -> None:
            if not prompt.calls[1:] and not prompt.is_answered:
                first.events.append(Enter(name, DeclaredState.ACTIVE))

        prompt = self.rig.prompt(session, name, called)
        prompt.request.on_answer = lambda _: self._said[-1].events.append(self._complete(prompt))
        self._prompts.append(prompt)
        return prompt

    @staticmethod
    def _complete(prompt: Prompt) -> Complete:
        got = prompt.request.outcome
        error = None if got in ("cancelled", "end_turn") else got
        return Complete(prompt.name, got == "cancelled", error)

    def _cancel(self, session: str, a: Prompt, moment: str) -> None:
        self._say(self._sessions.index(session), Action("caller", "cancel"), "cancel")
        if moment == "end":
            for call in a.open_calls:
                call.finish(a.reply)
        self.rig.cancel(session)

    def _finish(self, prompt: Prompt) -> None:
        place = self._sessions.index(prompt.session)
        if self._has_stub:
            self._say(
                place, Action("runner", "end", prompt.name, "end_turn"), f"the model answers {prompt.name}"
            )
        prompt.release()

    async def _begun(self, prompt: Prompt) -> bool:
        """Wait until a turn has asked the model; return False if it was answered first, or never asked."""
        if not self._has_stub:
            return True
        await self._owed(lambda: prompt.has_called.is_set() or prompt.is_answered)
        return prompt.has_called.is_set()

    async def _owed(self, is_so: Callable[[], bool]) -> bool:
        """Wait for what is owed, and return whether it has come.

        An agent that is still at work may take longer: it is slow, and does not hang.
        """
        clock = Awake()
        began = heard = clock.now()
        grace = self.rig.setting.grace
        while not is_so():
            if (now := clock.now()) - heard > grace:
                if now - began > PATIENCE * grace or not await self.rig.agent.is_computing():
                    return is_so()  # it was looked at for a while
                heard = now
            self.rig.agent.check()
            await asyncio.sleep(_POLL)
        return True

    async def _outcome(self, prompt: Prompt) -> str:
        """Wait for the response to a prompt, and return its stop reason, or its error."""
        await self._owed(lambda: prompt.is_answered)
        return prompt.request.outcome or NO_RESPONSE

    async def _quiet(self) -> None:
        await asyncio.sleep(self.rig.setting.quiet)

    async def _reach(self, a: Prompt, moment: str) -> bool:
        """Bring a turn to the moment of its cancel; return whether it got there."""
        if moment in DELAYS:
            self._said[-1].words += f", and {self.scenario.when}"
            if DELAYS[moment]:
                await asyncio.sleep(DELAYS[moment])
            return True
        if not await self._begun(a):
            return False
        call = a.calls[0]
        if moment == "streaming":
            return await self._streaming(a, call)
        if moment in ("tool", "after-tool"):
            return await self._in_a_tool(a, call, moment)
        self._said[-1].words += f", and, {self.scenario.when},"
        return True

    async def _streaming(self, a: Prompt, call: ModelCall) -> bool:
        if not call.asked.is_streamed:
            self.skipped = "the agent does not ask for streams"
            return False
        self._say(0, Action("runner", "write", "a"), "the model answers the first half of a")
        seen = self.rig.updates.setdefault(a.session, set())
        seen.discard("agent_message_chunk")
        call.write("half of ")
        await self._until(lambda: "agent_message_chunk" in seen, 1.0)
        return call.is_open

    async def _in_a_tool(self, a: Prompt, call: ModelCall, moment: str) -> bool:
        tool = shell_tool(call.asked.tools, _TAKES_TIME if moment == "tool" else "true")
        if tool is None:
            self.skipped = "the agent offers no tool that the kit knows how to use"
            return False
        self._say(0, Action("runner", "use", "a"), f"the model asks for the tool {tool[0]}")
        self.rig.holds_permissions = moment == "tool"
        seen = self.rig.updates.setdefault(a.session, set())
        seen.difference_update(_TOOLS)
        call.use(*tool)
        if moment == "after-tool":
            await self._owed(lambda: len(a.calls) > 1 or a.is_answered)
            return len(a.calls) > 1
        shown = self.rig.permissions
        await self._owed(lambda: bool(seen & _TOOLS or shown or a.calls[1:] or a.is_answered))
        await self._until(lambda: bool(self.rig.permissions) or len(a.calls) > 1, 3.0)
        return bool(self.rig.permissions or seen & _TOOLS) and len(a.calls) == 1

    async def _until(self, is_so: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not is_so() and time.monotonic() < until:
            self.rig.agent.check()
            await asyncio.sleep(_POLL)

    # In the end.

    async def _settle(self) -> None:
        """Look once more: at second answers, at updates that came too late, at texts of other sessions."""
        await self._quiet()
        if self.offence is not None:
            return
        for prompt in self._prompts:
            if len(prompt.request.answers) > 1:
                said = f"{prompt.name} is answered {len(prompt.request.answers)} times"
                self._break(Property.EXACTLY_ONE_COMPLETE, said)
                return
        for session in self._sessions:
            if foreign := self.rig.foreign_text(session):
                names = [each.name for each in self._prompts if each.number in foreign]
                of = names[0] if names else "a prompt"
                self._break(Property.ISOLATION, f"a session is shown the answer to {of} of another session")
                return
        for session in self._sessions:
            if any(each.is_answered for each in self._prompts if each.session == session):
                self.exercised.add(Property.LAST_WORD)
            if late := self.rig.late.get(session):
                said = f"{late[0]} comes after the response to the last prompt of its session"
                self._break(Property.LAST_WORD, said)
                return

    def _break(self, broken: Property, what: str) -> None:
        self.exercised.add(broken)
        if self.offence is None:
            self.offence = Violation(broken, what)


class WireFinding(NamedTuple):
    """What broke a property, and how often it came back."""

    scenario: Scenario
    example: Counterexample


class WireDriver:
    """Plays rounds of scenarios, replays what they find, and keeps what comes back."""

    def __init__(self, rig: Rig, seconds: float) -> None:
        self.rig = rig
        self.seconds = seconds
        self.checked: Counter[AnyProperty] = Counter()
        self.found: dict[Property, WireFinding] = {}
        self.flaky: dict[Property, FlakyFinding] = {}
        self.skipped: dict[str, None] = {}
        """Why scenarios could not be played as they are meant."""
        self.rounds = 0
        self.spent = 0.0
        """Seconds that it took."""
        self.last: WirePlay | None = None
        self._seen: dict[Property, dict[Scenario, list[WirePlay]]] = {}
        self._played: Counter[Scenario] = Counter()

    async def run(self) -> None:
        """Play rounds, at least one, and replay what they have found."""
        began = time.monotonic()
        while self.rounds < ROUNDS and (not self.rounds or time.monotonic() - began < self.seconds / 2):
            for scenario in sweep(has_stub=self.rig.setting.has_stub):
                if (self.rounds or self._seen) and time.monotonic() - began > self.seconds:
                    break
                await self.play(scenario)
            self.rounds += 1
        await self.confirm()
        self.spent = time.monotonic() - began

    async def play(self, scenario: Scenario) -> WirePlay:
        """Play a scenario once, and note what it breaks."""
        play = self.last = WirePlay(self.rig, scenario)
        await play.perform()
        self._played[scenario] += 1
        if play.skipped:
            self.skipped.setdefault(f"{scenario}: {play.skipped}")
        self.checked.update(play.exercised if play.offence is None else {play.offence.property})
        if play.offence is not None:
            self._seen.setdefault(play.offence.property, {}).setdefault(scenario, []).append(play)
        return play

    async def confirm(self) -> None:
        """Replay what was found. What does not come back is flaky."""
        for broken, scenarios in list(self._seen.items()):
            often = sorted(
                scenarios, key=lambda each: (-len(scenarios[each]) / self._played[each], str(each))
            )
            for scenario in often[:_CANDIDATES]:
                if await self._comes_back(broken, scenario, scenarios[scenario][0]):
                    break

    async def _comes_back(self, broken: Property, scenario: Scenario, first: WirePlay) -> bool:
        assert first.offence is not None
        again, back, tries = first, 0, 0
        while back < _COMES_BACK and tries < _TRIES and (back or tries < _IN_VAIN):
            tries += 1
            play = await self.play(scenario)
            if play.offence is not None and play.offence.property is broken:
                back += 1
            else:
                again = play
        times = f" (in {back} of {tries} replays)" if back < tries else ""
        example = Counterexample(broken, first.offence.what + times, first.steps)
        if back < _COMES_BACK:
            told = Counterexample(broken, "", again.steps).told()
            self.flaky[broken] = FlakyFinding(str(scenario), example, told, tries)
            return False
        self.flaky.pop(broken, None)
        self.found[broken] = WireFinding(scenario, example)
        return True
