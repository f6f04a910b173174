"""What a process remembers of the ledger: it saves a load, and is never taken for what is there."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from dispatching import Agent, echo, in_loop
from ledgers import MakeLedger, ledgers, on_each, still
from turngate import QueueFull, RunComplete, RunConflict, State, Turn
from turngate.durable import DurableDispatcher, LedgerUnavailable, PostgresLedger, SqliteLedger
from turngate.durable._ledger import LeaseLost, NotStorable, OutcomeUnknown
from turngate.durable._postgres import Saves
from turngate.durable._records import REMEMBERED, Ask, Changes, Decision, KeyRow, Loaded, SessionRow
from turngate.durable._step import Step
from turngate.durable._swap import (
    Conflict,
    Fate,
    LostSends,
    Refused,
    SessionCache,
    Unanswered,
    pause,
    swap,
)


def accepted(cache: SessionCache, session_id: str, fresh: int) -> None:
    """Have the cache see a session in which a run was accepted."""
    step = Step(Loaded(session_id, None, [], None, fresh, 0.0), 1, "token")
    step.accept(f"run of {session_id}", "p", "", "fold", 10)
    changes = step.decision("step", None).changes
    assert changes is not None
    cache.saved(step.loaded, changes)


def test_no_two_steps_are_given_the_same_number_and_none_below_the_fence() -> None:
    cache = SessionCache()
    accepted(cache, "s", 5)
    accepted(cache, "t", 10)
    assert cache.recall(Ask("s", 1, "")) is None  # there are no numbers, and the clock was not read
    cache.set_clock(100.0)
    cache.add_numbers([7, 12, 4])
    first, second = cache.recall(Ask("s", 1, "")), cache.recall(Ask("t", 1, ""))
    assert first is not None
    assert second is not None
    assert (first.fresh, second.fresh) == (7, 12)
    assert cache.recall(Ask("s", 1, "")) is None  # 4 is not above its fence
    assert [row.run_id for row in first.runs] == ["run of s"]


def test_only_known_sessions_are_cached() -> None:
    cache = SessionCache()
    accepted(cache, "s", 5)
    cache.set_clock(100.0)
    cache.add_numbers(range(10, 20))
    assert cache.recall(Ask("other", 1, "")) is None
    assert cache.recall(Ask("s", 1, "", run_id="unknown")) is None
    assert cache.recall(Ask("s", 1, "", with_text=True)) is None
    new = cache.recall(Ask("s", 1, "", run_id="unknown", is_new=True))
    assert new is not None
    assert new.known is None
    found = cache.recall(Ask("s", 1, "", run_id="run of s"))
    assert found is not None
    assert found.known is not None
    cache.forget("s")
    assert cache.recall(Ask("s", 1, "")) is None


@on_each
async def test_a_step_of_another_process_is_noticed(make: MakeLedger) -> None:
    agent = Agent()
    async with (
        DurableDispatcher(agent, make(), queue_limit=1) as one,
        DurableDispatcher(agent, make()) as two,
    ):

        async def done(d: DurableDispatcher, run_id: str) -> None:
            run = await d.submit("s", "p", run_id=run_id)
            await still(d)
            agent.finish(run)
            await run

        await done(one, "remembered")
        assert (await one.cancel("s")).runs == []
        first = await two.submit("s", "p", run_id="first")
        assert [run.run_id for run in (await one.cancel("s")).runs] == ["first"]
        await first
        await done(one, "again")
        busy = await two.submit("s", "p", run_id="busy")
        behind = await one.submit("s", "p", run_id="behind", when_busy="queue")
        assert behind.state is State.QUEUED
        with pytest.raises(QueueFull):
            await one.submit("s", "p", when_busy="queue")
        assert len(await two.clear_queue("s")) == 1
        assert (await one.submit("s", "p", run_id="room", when_busy="queue")).state is State.QUEUED
        assert await one.submit("s", "p", run_id="busy") == await one.find("busy")
        with pytest.raises(RunConflict):
            await one.submit("s", "another payload", run_id="busy")
        await one.cancel("s")
        assert (await busy).cancelled


@on_each
async def test_a_run_of_another_session_is_found_although_the_session_is_cached(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as d:
        await d.ask("other", "p", run_id="one")
        await d.ask("s", "p")
        with pytest.raises(RunConflict):
            await d.submit("s", "p", run_id="one")
        assert (await d.ask("other", "p", run_id="one")).text == "p"
        assert (await d.ask("s", "next")).seq == 2


@on_each
async def test_two_processes_that_take_turns_number_the_runs_of_a_session(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as one, DurableDispatcher(echo, make()) as other:
        for seq in range(1, 7):
            assert (await (one, other)[seq % 2].ask("s", "p")).seq == seq


@on_each
async def test_a_worker_that_counts_as_dead_saves_nothing(make: MakeLedger) -> None:
    ledger = make()
    async with DurableDispatcher(echo, ledger) as d:
        await d.ask("s", "p")

        def decide(loaded: Loaded, step_id: str) -> Decision:
            step = Step(loaded, 10**9, step_id)
            step.accept("late", "p", "", "fold", 100)
            return step.decision(step_id, None)

        with pytest.raises(LeaseLost):
            await ledger.step(Ask("s", 10**9, "late-step", run_id="late", is_new=True), decide)
        assert await d.find("late") is None
        assert (await d.ask("s", "q")).seq == 2


@on_each
async def test_a_drawn_id_that_a_caller_has_chosen_is_drawn_again(make: MakeLedger) -> None:
    async with DurableDispatcher(echo, make()) as d:
        first = await d.submit("s", "p")
        number = int(first.run_id.removeprefix(f"run-{d._stepper.token}"), 16)
        for session in ("s", "t"):
            await d.ask(session, "p", run_id=f"run-{d._stepper.token}{number + 1:x}" + "x" * (session == "t"))
        drawn = await d.submit("s", "p")
        assert drawn.run_id == f"run-{d._stepper.token}{number + 2:x}"
        assert (await drawn).text == "p"


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_fences_grow_over_a_purge_although_sessions_are_cached(kind: str, tmp_path: Path) -> None:
    fences: list[int] = []

    async def note(turn: Turn) -> None:
        fences.append(turn.fence)

    @in_loop
    async def purging(make: MakeLedger) -> None:
        async with DurableDispatcher(note, make()) as one, DurableDispatcher(note, make()) as two:
            for purged in (False, True, False, True, True):
                for d in (one, two, one, one):
                    await d.ask("s", "p")
                    await d.ask("t", "p")
                if purged:
                    assert await two.purge(before=time.time() + 60)
        assert len({*fences}) == len(fences)
        assert fences[::2] == sorted(fences[::2])
        assert fences[1::2] == sorted(fences[1::2])

    with ledgers(kind, tmp_path) as make:
        purging(make)


class Sent:
    """Notes how many steps each statement saves; what is to go wrong with it is `trouble`."""

    def __init__(self, ledger: Any) -> None:
        self.batches: list[int] = []
        self.trouble: type[Exception] | None = None
        self._send = ledger._saves._send
        ledger._saves._send = self.send

    async def send(self, statement: str, worker: int, wanted: int, sessions: list[Any], *rest: object) -> Any:
        self.batches.append(steps_of(statement, sessions))
        if self.trouble is not None and self.batches[-1] > 1:
            raise self.trouble("on purpose")
        return await self._send(statement, worker, wanted, sessions, *rest)


def steps_of(statement: str, sessions: list[Any]) -> int:
    """Count the steps that a statement saves."""
    return len(sessions) if statement == "save" else 1


@pytest.mark.needs
@pytest.mark.parametrize("trouble", [None, Conflict, Refused])
def test_steps_that_wait_together_are_saved_together_and_each_by_itself(
    trouble: type[Exception] | None, tmp_path: Path
) -> None:
    @in_loop
    async def saving(make: MakeLedger) -> None:
        ledger = make()
        assert isinstance(ledger, PostgresLedger)
        async with DurableDispatcher(echo, ledger) as d:
            sessions = [f"s{number}" for number in range(20)]
            await asyncio.gather(*(d.ask(session, "p") for session in sessions))
            sent = Sent(ledger)
            sent.trouble = trouble
            asked = [d.ask(session, "q", run_id=f"named {session}") for session in sessions]
            completes = await asyncio.gather(*asked)
            assert [each.run_id for each in completes] == [f"named {session}" for session in sessions]
            assert {each.outcome for each in completes} == {"finished"}
            assert max(sent.batches) > 5
            if trouble is None:
                assert len(sent.batches) < 20
            completions = d.completions()
            told = [(await anext(completions))[1].run_id for _ in range(40)]
            assert len({*told}) == 40

    with ledgers("postgres", tmp_path) as make:
        saving(make)


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_of_two_runs_of_one_id_that_are_saved_together_one_is_refused(kind: str, tmp_path: Path) -> None:
    @in_loop
    async def saving(make: MakeLedger) -> None:
        async with DurableDispatcher(echo, make()) as d:
            sessions = [f"s{number}" for number in range(4)]
            for round_ in range(3):
                asked = [d.ask(session, "p", run_id=f"one {round_}") for session in sessions]
                came_of = await asyncio.gather(*asked, return_exceptions=True)
                assert [type(each) for each in came_of].count(RunConflict) == 3, came_of
                (complete,) = [each for each in came_of if isinstance(each, RunComplete)]
                assert (complete.run_id, complete.text) == (f"one {round_}", "p")

    with ledgers(kind, tmp_path) as make:
        saving(make)


def changes(session_id: str) -> Changes:
    return Changes(session_id, None, SessionRow("token", 1), [], [], [], [], [])


@in_loop
async def test_a_step_whose_caller_is_cancelled_disturbs_none_that_waits_with_it() -> None:
    sent: list[int] = []
    gate = asyncio.Event()

    async def send(statement: str, worker: int, wanted: int, sessions: list[Any], *rest: object) -> Any:
        count = steps_of(statement, sessions)
        sent.append(count)
        await gate.wait()
        return [(True, 1, [*range(count)], [])]

    for steps in range(4):
        gate.clear()
        sent.clear()
        saves = Saves(send, asyncio.ensure_future, SessionCache())
        tasks = []
        for name in "abcd":
            tasks.append(asyncio.ensure_future(saves.save(1, changes(name))))
            for _ in range(steps):
                await asyncio.sleep(0)
        first, second, *others = tasks
        first.cancel()
        second.cancel()
        await asyncio.sleep(0)
        gate.set()
        for each in others:
            assert await each == (Fate.SAVED, 1)
        await asyncio.gather(*saves._senders)
        assert sum(sent) <= len(tasks)
        assert not saves._senders


@in_loop
async def test_a_step_that_comes_when_the_last_senders_have_nothing_left_is_sent() -> None:
    gate = asyncio.Event()

    async def send(statement: str, worker: int, wanted: int, sessions: list[Any], *rest: object) -> Any:
        await gate.wait()
        return [(True, 1, [*range(steps_of(statement, sessions))], [])]

    saves = Saves(send, asyncio.ensure_future, SessionCache())

    async def twice() -> None:
        await saves.save(1, changes("a"))
        await saves.save(1, changes("c"))  # at once, in the step of the loop in which both senders end

    first = asyncio.ensure_future(twice())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = asyncio.ensure_future(saves.save(1, changes("b")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(saves._senders) == 2
    gate.set()
    async with asyncio.timeout(20):
        await asyncio.gather(first, second)


@in_loop
async def test_steps_that_wait_when_the_ledger_is_closed_are_answered() -> None:
    async def send(*about: object) -> Any:
        await asyncio.Event().wait()

    for steps in range(4):
        saves = Saves(send, asyncio.ensure_future, SessionCache())
        tasks = []
        for name in "abcdef":
            tasks.append(asyncio.ensure_future(saves.save(1, changes(name))))
            for _ in range(steps):
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        senders = [*saves._senders]
        for sender in senders:
            sender.cancel()
        await asyncio.wait(senders)
        saves.close()
        problems = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each) for each in problems} <= {Unanswered, LedgerUnavailable}
        assert not saves._senders


@in_loop
async def test_numbers_grow_whichever_process_takes_the_step(tmp_path: Path) -> None:
    ledgers = [SqliteLedger(tmp_path / "ledger.db") for _ in range(3)]
    agents = [Agent() for _ in ledgers]
    processes = [
        DurableDispatcher(agent, ledger, turns_limit=1) for agent, ledger in zip(agents, ledgers, strict=True)
    ]
    async with asyncio.timeout(20), processes[0], processes[1], processes[2]:
        fences, asked = [0], []
        for number in (0, 1, 2, 1, 0, 0, 2, 1, 1):
            run = await processes[number].submit(f"s{number}", "p")
            await still(*processes)
            assert agents[number].turns[-1].run is run  # its runner was called: a step that decides nothing
            horizon = (await ledgers[(number + 1) % 3].read_point()).horizon
            assert horizon == processes[number]._stepper.last_position + 1
            fences.append(agents[number].turns[-1].fence)
            agents[number].finish(run)
            asked.append(await run)
        assert fences == sorted({*fences})
        completions = processes[1].completions()
        assert [(await anext(completions))[1] for _ in asked] == asked


# One step, with a ledger that says what it is told.


class Told:
    """Loads a session that it is given, and answers each save as it is told."""

    def __init__(self, *answers: Any, session: SessionRow | None = None) -> None:
        self.answers = [*answers]
        self.session = session
        self.key: KeyRow | None = None
        self.sent: list[tuple[str, Changes]] = []
        self.loads = 0
        self.given_up: list[bool] = []
        self.patience = 99

    async def load(self, ask: Ask) -> Loaded:
        self.loads += 1
        return Loaded("s", self.session, [], None, 5, 0.0, key=self.key)

    async def save(self, ask: Ask, changes: Changes) -> tuple[Fate, int]:
        self.sent.append((ask.step_id, changes))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer, 7

    def give_up(self, is_unanswered: bool) -> bool:
        self.given_up.append(is_unanswered)
        self.patience -= 1
        return self.patience < 0

    async def step(self, cache: SessionCache | None = None, key: tuple[str, str] | None = None) -> Decision:
        cache = cache or SessionCache()
        return await swap(self, cache, Ask("s", 1, "step", key=key), take_in, self.give_up)


def take_in(loaded: Loaded, step_id: str) -> Decision:
    step = Step(loaded, 1, "token")
    step.accept("r", "p", "", "fold", 9)
    return step.decision(step_id, step_id)


AWAY = LedgerUnavailable("away")


@in_loop
async def test_a_step_is_sent_again_under_another_id_until_it_is_saved() -> None:
    ledger = Told(Fate.STALE, AWAY, Conflict(), Fate.SAVED)
    with pytest.raises(Conflict):
        await ledger.step()
    ledger.sent.clear()
    ledger.answers = [Fate.STALE, AWAY, Fate.SAVED]
    decision = await ledger.step()
    assert [step_id for step_id, _ in ledger.sent] == ["step", "step.2", "step.3"]
    assert (decision.position, decision.result, ledger.given_up) == (7, "step.3", [False, False])


@in_loop
async def test_a_cached_session_is_not_loaded_and_is_dropped_before_the_step_is_sent() -> None:
    cache = SessionCache()
    ledger = Told(Fate.SAVED, Fate.SAVED, Unanswered(), Fate.SAVED)
    cache.set_clock(100.0)
    cache.add_numbers([10])
    await ledger.step(cache)

    def refuse(loaded: Loaded, step_id: str) -> Decision:
        if loaded.session is not None:
            raise QueueFull("as far as is remembered")
        return take_in(loaded, step_id)

    await swap(ledger, cache, Ask("s", 1, "again"), refuse, ledger.give_up)
    assert ledger.loads == 2  # what is refused on a remembered session is decided again
    cache.forget("s")
    ledger.patience = 0
    with pytest.raises(OutcomeUnknown):
        await ledger.step(cache)
    assert cache.recall(Ask("s", 1, "")) is None


@in_loop
async def test_a_lost_answer_is_looked_for_where_the_step_would_be() -> None:
    ledger = Told(Unanswered(), Fate.SAVED)
    save = ledger.save

    async def saved_all_the_same(ask: Ask, changes: Changes) -> tuple[Fate, int]:
        ledger.session = changes.after
        return await save(ask, changes)

    ledger.save = saved_all_the_same  # type: ignore[method-assign]
    decision = await ledger.step()
    assert (decision.result, len(ledger.sent), ledger.given_up) == ("step", 1, [True])
    ledger.save, ledger.session = save, None  # type: ignore[method-assign]
    ledger.answers = [Unanswered(), Fate.SAVED]
    ledger.sent.clear()
    assert (await ledger.step()).result == "step.2"  # there is no session, so it was not saved
    ledger.answers = [Unanswered(), Fate.SAVED]
    ledger.key = KeyRow("k", "", "request", "answer", "another")
    assert (await ledger.step(key=("k", ""))).result == "step.2"
    ledger.answers = [Unanswered()]
    ledger.key = ledger.key._replace(step_id="step")
    assert (await ledger.step(key=("k", ""))).result == "step"
    ledger.answers, ledger.key = [Unanswered(), Fate.SAVED], None
    assert (await ledger.step(key=("k", ""))).result == "step.2"


@pytest.mark.parametrize("lost", [False, True])
@in_loop
async def test_an_outcome_that_cannot_be_found_out_is_unknown(lost: bool) -> None:
    """An answer that was lost makes of every later end of the step one that nobody knows."""
    before: list[Any] = [Unanswered()] if lost else []
    for answer, patience, ends in (
        (Fate.DEAD, 9, LeaseLost),
        (AWAY, int(lost), LedgerUnavailable),
        (Unanswered(), int(lost), None),
    ):
        ledger = Told(*before, answer)
        ledger.patience = patience
        with pytest.raises(OutcomeUnknown if lost or ends is None else ends) as raised:
            await ledger.step()
        assert isinstance(raised.value, OutcomeUnknown) == (lost or ends is None)
        assert ledger.answers == []
    for refused in (NotStorable("no"), OutcomeUnknown("no")):
        with pytest.raises(type(refused), match="no"):
            await Told(refused).step()


def decided(before: SessionRow | None, version: int = 4) -> Decision:
    after = SessionRow("token", version)
    return Decision(Changes("s", before, after, [], [], [], [], []), None)


def test_a_session_remembers_a_limited_number_of_steps_and_none_after_a_purge() -> None:
    def found(session: SessionRow | None, decision: Decision) -> Decision | None:
        lost = LostSends()
        lost.decisions["step"] = decision
        return lost.saved(Loaded("s", session, [], None, 5, 0.0), is_keyed=False)

    row = SessionRow("token", 3)
    sent = decided(row)
    assert found(SessionRow("token", 9, recent=("step", "other")), sent) is sent
    assert found(SessionRow("token", 3 + REMEMBERED), sent) is None
    with pytest.raises(OutcomeUnknown, match="has forgotten whether"):
        found(SessionRow("token", 4 + REMEMBERED), sent)
    for purged in (None, SessionRow("of another life", 1)):
        with pytest.raises(OutcomeUnknown, match="was purged while"):
            found(purged, sent)
    new = decided(None, 1)
    assert found(None, new) is None
    assert found(SessionRow("of another life", 1), new) is None  # another process was first


def test_numbers_are_asked_for_when_half_of_them_are_gone() -> None:
    cache = SessionCache()
    assert cache.numbers_wanted() == 64
    cache.add_numbers(range(31))
    assert cache.numbers_wanted() == 33
    cache.add_numbers([31])
    assert cache.numbers_wanted() == 0


def test_large_sessions_and_too_many_sessions_are_not_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("turngate.durable._swap._SESSIONS_LIMIT", 2)
    cache = SessionCache()
    for name in ("a", "b", "c"):
        accepted(cache, name, 5)
    cache.set_clock(0.0)
    cache.add_numbers(range(10, 20))
    assert [cache.recall(Ask(name, 1, "")) is not None for name in ("a", "b", "c")] == [False, True, True]
    step = Step(Loaded("large", None, [], None, 6, 0.0), 1, "token")
    step.accept("r", "p" * 16_385, "", "fold", 10)
    changes = step.decision("step", None).changes
    assert changes is not None
    cache.saved(step.loaded, changes)
    assert cache.recall(Ask("large", 1, "")) is None


def test_the_second_attempt_comes_at_once_and_the_others_after_short_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert pause(1) == 0
    monkeypatch.setattr("turngate.durable._swap.random.uniform", lambda low, high: low + high)
    assert [pause(attempt) for attempt in (2, 3, 4, 20)] == [0.008, 0.016, 0.032, 0.5]
