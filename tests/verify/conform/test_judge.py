"""What the judge says of dispatchers that are slow, hang, are unsteady, or right in another order."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from conforming import Able, Plain
from surroundings import ROOT, StandingStill
from turngate_model import Property
from turngate_verify.cli import run
from turngate_verify.conform import (
    AsyncioSubject,
    Complete,
    Conformance,
    Effort,
    Features,
    Handoff,
    ProgramLimits,
    RealtimeSubject,
    RunnerFailed,
    Timing,
    check,
    parsed,
    play,
    replay,
)
from turngate_verify.conform.judge import Judge
from turngate_verify.conform.players import outcome

pytestmark = pytest.mark.usefixtures("standing_clock")

QUICK = Effort(programs=150, examples=8)
NEITHER = "neither started nor completed"


class Right:
    """Runs the prompts of a session one after the other, and decides everything in one step."""

    def __init__(self, run: Callable[[str], Awaitable[str]]) -> None:
        self.run = run
        self.queues: dict[str, deque[tuple[str, asyncio.Future[str]]]] = {}
        self.active: dict[str, asyncio.Task[str]] = {}
        self.covered: set[str] = set()

    async def submit(self, session: str, prompt: str) -> asyncio.Future[str]:
        done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.queues.setdefault(session, deque()).append((prompt, done))
        self.next(session)
        return done

    def next(self, session: str) -> None:
        if session not in self.active and self.queues[session]:
            self.begin(session, *self.queues[session].popleft())

    def begin(self, session: str, prompt: str, done: asyncio.Future[str]) -> None:
        task = self.active[session] = asyncio.ensure_future(self.run(prompt))
        task.add_done_callback(lambda task: self.over(session, done, task))

    def over(self, session: str, done: asyncio.Future[str], task: asyncio.Future[str]) -> None:
        if task.cancelled() or session in self.covered:
            done.cancel()
        elif error := task.exception():
            done.set_exception(error)
        else:
            done.set_result(task.result())
        self.covered.discard(session)
        del self.active[session]
        self.next(session)

    async def cancel(self, session: str) -> None:
        for _, done in self.queues.pop(session, ()):
            done.cancel()
        self.queues[session] = deque()
        if session in self.active:
            self.covered.add(session)
            self.active[session].cancel()


class StartsLater(Right):
    """Wrong: a prompt for an idle session starts in the next tick; a cancel before that forgets it."""

    def next(self, session: str) -> None:
        asyncio.get_running_loop().call_soon(super().next, session)

    async def cancel(self, session: str) -> None:
        if session in self.active:
            await super().cancel(session)
        else:
            self.queues[session] = deque()


class LosesTheSecond(Right):
    """Wrong: nothing starts the second prompt of a session."""

    def __init__(self, run: Callable[[str], Awaitable[str]]) -> None:
        super().__init__(run)
        self.before: set[str] = set()

    def next(self, session: str) -> None:
        if session not in self.before:
            self.before.add(session)
            super().next(session)


def slow(seconds: float) -> type[Right]:
    """Return a right dispatcher that writes a prompt down before it takes the prompt in."""

    class Slow(Right):
        async def submit(self, session: str, prompt: str) -> asyncio.Future[str]:
            await asyncio.sleep(seconds)
            return await super().submit(session, prompt)

    return Slow


def forgetful(seconds: float) -> type[Right]:
    """Return a right dispatcher that takes a prompt in after the call has returned."""

    class Intake(Right):
        async def submit(self, session: str, prompt: str) -> asyncio.Future[str]:
            done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self.intake = asyncio.ensure_future(self.take_in(session, prompt, done))
            return done

        async def take_in(self, session: str, prompt: str, done: asyncio.Future[str]) -> None:
            await asyncio.sleep(seconds)
            self.queues.setdefault(session, deque()).append((prompt, done))
            self.next(session)

    return Intake


def lazy_cancel(seconds: float) -> type[Right]:
    """Return a right dispatcher whose cancel takes its time; whatever is in flight then is covered."""

    class Lazy(Right):
        async def cancel(self, session: str) -> None:
            await asyncio.sleep(seconds)
            await super().cancel(session)

    return Lazy


def subject(kind: type[Right], *, waits: bool = False, **more: bool) -> type[AsyncioSubject]:
    """Return an adapter; with ``waits``, one whose call lasts until the run is complete."""

    class Adapter(AsyncioSubject):
        __test__ = False
        features = Features(**more)

        def start(self) -> None:
            self.mine = kind(self.runner)

        async def do_accept(self, session: str, run: str) -> None:
            done = await self.mine.submit(session, run)
            if not waits:
                self.watch(run, done)
                return
            try:
                await done
                self.completed(run)
            except asyncio.CancelledError:
                self.completed(run, cancelled=True)
            except Exception as error:
                self.completed(run, error=str(error))

        async def do_cancel(self, session: str) -> None:
            await self.mine.cancel(session)

    return Adapter


# Races that were not tried.


def test_a_verdict_says_that_races_were_not_tried() -> None:
    result = check(subject(StartsLater), effort=QUICK._replace(mid_flight=0))
    assert (result.verdict, result.races) == ("holds", "not tried")
    assert result.summary.startswith("holds")
    result = check(subject(StartsLater), effort=QUICK._replace(mid_flight=0, require_races=True))
    assert (result.verdict, result.races) == ("unknown", "not tried")
    assert result.summary.startswith("unknown")


def test_races_are_tried_by_default_and_the_hang_is_found() -> None:
    result = check(subject(Right), effort=QUICK._replace(require_races=True))
    assert (result.verdict, result.races) == ("holds", "tried")
    assert result.summary.startswith("holds")
    assert re.findall(r"\d+", result.summary) == ["4", "3", "4", "3"]  # how far, in four kinds of programs
    result = check(subject(StartsLater), effort=QUICK)
    assert (result.verdict, result.races) == ("violated", "tried")
    assert set(result.replays.values()) == {"accept a + cancel"}
    (example,) = result.counterexamples.values()
    assert f"a hangs: it {NEITHER} within 60 virtual seconds" in example.what


def test_races_count_as_tried_only_if_an_operation_was_not_waited_for() -> None:
    adapter = subject(Right)
    assert check(adapter, effort=Effort(programs=0, examples=0)).races == "not tried"
    assert check(adapter, effort=Effort(programs=5, mid_flight=1, examples=0)).races == "not tried"
    assert replay(adapter, "it", parsed("accept a, cancel")).races == "not tried"
    assert replay(adapter, "it", parsed("accept a + cancel")).races == "tried"


SUBJECT = """
import asyncio
from turngate_verify.conform import AsyncioSubject, Features

class Mine(AsyncioSubject):
    features = Features(cancel=False)

    def start(self):
        self.lock = {{}}

    async def turn(self, session, run):
        async with self.lock.setdefault(session, asyncio.Lock()):
            return await self.runner(run)

    async def do_accept(self, session, run):
        self.watch(run, asyncio.ensure_future(self.turn(session, run)))
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(SUBJECT.format(), encoding="utf-8")
    return f"{path}:Mine"


CLI = ("--programs", "100", "--examples", "3")


def test_the_first_line_and_the_object_say_so(
    capsys: pytest.CaptureFixture[str], mine: str, tmp_path: Path
) -> None:
    off = ("--mid-flight", "0")

    def turngate(*arguments: str) -> tuple[int, str]:
        code = run(["conform", *CLI, *arguments])
        return code, capsys.readouterr().out

    code, out = turngate(mine, *off, "--report", str(tmp_path / "report"))
    assert code == 0
    assert out.startswith("verdict: holds")
    page = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    assert "races were not tried" in page
    code, out = turngate(mine, *off, "--require-races")
    assert (code, out.splitlines()[0].split()[:2]) == (3, ["verdict:", "unknown:"])
    code, out = turngate(mine, *off, "--json", "--workers", "2")
    assert (code, json.loads(out)["verdict"], json.loads(out)["races"]) == (0, "holds", "not tried")
    code, out = turngate(mine, *off, "--json", "--require-races")
    assert (code, json.loads(out)["verdict"], json.loads(out)["races"]) == (3, "unknown", "not tried")
    code, out = turngate(mine, "--json", "--require-races", "--workers", "2")
    assert (code, json.loads(out)["verdict"], json.loads(out)["races"]) == (0, "holds", "tried")


EFFORT = """
from turngate_verify.conform import Effort
Mine.effort = Effort(programs=60, examples=2, mid_flight=0, require_races={required})
"""


@pytest.mark.parametrize("required", [False, True])
def test_pytest_says_so_at_the_end(tmp_path: Path, required: bool) -> None:
    text = SUBJECT.format() + EFFORT.format(required=required)
    (tmp_path / "test_mine.py").write_text(text, encoding="utf-8")
    paths = [str(ROOT / part) for part in ("impl", "model", "verify")]
    options = ["-p", "no:cacheprovider", "-k", "ONE_TURN", *(["-n", "1"] if required else [])]
    program = f"import sys; sys.path[:0] = {paths}; import pytest; sys.exit(pytest.main({options}))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == required, done.stdout
    said = "unknown: races were not tried" if required else "one at a time; races were not tried"
    assert f"test_mine.py:Mine: {'' if required else 'holds for operations '}{said}" in done.stdout
    assert ("races were not tried, and the effort requires them" in done.stdout) is required


# Runs that hang.

HANGS = [
    pytest.param(LosesTheSecond, "accept a, cancel, accept b", Property.NO_STRAND, id="in an idle session"),
    pytest.param(LosesTheSecond, "accept a, accept b, finish a", Property.NO_STRAND, id="behind a turn"),
    pytest.param(StartsLater, "accept a + cancel", Property.EXACTLY_ONE_COMPLETE, id="in the same moment"),
]


@pytest.mark.parametrize(("kind", "program", "broken"), HANGS)
@pytest.mark.parametrize("waits", [False, True], ids=["watches", "waits"])
def test_a_hang_is_told_as_a_hang_and_nothing_else(
    kind: type[Right], program: str, broken: Property, waits: bool
) -> None:
    played = play(subject(kind, waits=waits), parsed(program), ProgramLimits())
    assert [each.property for each in played.violations] == [broken]
    run_id = "a" if broken is Property.EXACTLY_ONE_COMPLETE else "b"
    assert played.violations[0].what.startswith(f"{run_id} hangs: it {NEITHER} within 60 virtual seconds")


class RealtimeHang(RealtimeSubject):
    __test__ = False
    features = Features(bursts=True)
    timing = Timing(quiet=0.02, poll=0.005, grace=0.3, answers=600.0)
    kind: ClassVar[type[Right]] = LosesTheSecond

    async def start(self) -> None:
        self.mine = self.kind(self.runner)

    async def do_accept(self, session: str, run: str) -> None:
        self.watch(run, await self.mine.submit(session, run))

    async def do_cancel(self, session: str) -> None:
        await self.mine.cancel(session)


def test_a_real_time_subject_that_hangs_is_told_so_with_the_seconds_waited() -> None:
    played = play(RealtimeHang, parsed("accept a, cancel, accept b"), ProgramLimits())
    assert played.violations[0].what.startswith(f"b hangs: it {NEITHER} within 0.3 s")
    adapter = type("SameMoment", (RealtimeHang,), {"kind": StartsLater})
    played = play(adapter, parsed("accept a + cancel"), ProgramLimits())
    assert played.violations[0].what.startswith(f"a hangs: it {NEITHER} within 0.3 s")


LINES = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"id": asked["id"], "events": []}
    if asked["op"] == "hello":
        answer["features"] = []
    elif asked["op"] == "reset":
        runs = 0
    elif asked["op"] == "accept":
        runs += 1
        state = "queued" if runs > 1 or SHOWS == "queued" else "active"
        answer["events"] = [{"event": "enter", "run": asked["run"], "state": state}] if SHOWS else []
    elif asked["op"] == "finish":
        answer["events"] = [{"event": "complete", "run": asked["run"], "cancelled": False}]
    print(json.dumps(answer), flush=True)
"""


@pytest.mark.parametrize(
    ("shows", "program", "run_id"),
    [("", "accept a", "a"), ("queued", "accept a", "a"), ("active", "accept a, finish a, accept b", "b")],
)
def test_a_command_that_hangs_is_told_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, shows: str, program: str, run_id: str
) -> None:
    path = tmp_path / "lines.py"
    path.write_text(f"SHOWS = {shows!r}\n" + LINES, encoding="utf-8")
    code = run(["conform", "--replay", program, "--timeout", "600", "--", sys.executable, "-S", str(path)])
    out = capsys.readouterr().out
    assert code == 1
    assert "; races were not tried" in out.splitlines()[0]
    assert f"but {run_id} hangs: it {NEITHER} before the subject came to rest" in out.replace("\n", " ")
    assert "DECLARED_MOVE:" not in out


# Right ones that take their time.


@pytest.mark.parametrize("waits", [False, True], ids=["watches", "waits"])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(slow(0.0), id="a tick"),
        pytest.param(slow(0.5), id="half a second"),
        pytest.param(slow(5.0), id="five seconds"),
        pytest.param(forgetful(0.5), id="after the call has returned"),
        pytest.param(forgetful(5.0), id="long after the call has returned"),
        pytest.param(lazy_cancel(0.5), id="a slow cancel"),
        pytest.param(lazy_cancel(5.0), id="a very slow cancel"),
    ],
)
def test_a_right_dispatcher_that_takes_its_time_is_not_accused(kind: type[Right], waits: bool) -> None:
    result = check(subject(kind, waits=waits), effort=Effort(programs=110, examples=5))
    assert (result.failed, result.replays, result.flaky) == (None, {}, {})
    assert result.verdict == "holds", result.summary


def test_a_right_dispatcher_in_real_time_that_takes_its_time_is_not_accused() -> None:
    timing = Timing(quiet=0.02, poll=0.005, grace=3.0, longest=1200.0, answers=600.0)
    adapter = type("Slow", (RealtimeHang,), {"kind": slow(0.01), "timing": timing})
    for program in ("accept a + cancel, finish a", "accept a + accept b, cancel"):
        played = play(adapter, parsed(program), ProgramLimits())
        assert (played.violations, played.late) == ((), ())


def test_a_cancel_that_is_forgotten_is_found_where_operations_are_known_to_be_done() -> None:
    class Misses(Right):
        async def cancel(self, session: str) -> None:
            pass

    assert check(subject(Misses), effort=QUICK).verdict == "violated"


def test_a_time_limit_on_turns_that_hides_a_flaw_leaves_it_unknown() -> None:
    class Limited(Right):
        """Wrong: a cancel misses what is queued. A turn ends by itself after thirty seconds."""

        def begin(self, session: str, prompt: str, done: asyncio.Future[str]) -> None:
            async def limited() -> str:
                async with asyncio.timeout(30.0):
                    return await self.run(prompt)

            task = self.active[session] = asyncio.ensure_future(limited())
            task.add_done_callback(lambda task: self.over(session, done, task))

        async def cancel(self, session: str) -> None:
            if session in self.active:
                self.active[session].cancel()

    result = check(subject(Limited), effort=QUICK)
    assert (result.verdict, result.replays) == ("unknown", {})
    assert "accept a, accept b, cancel" in result.why_unknown(Property.FULL_COVERAGE)

    class Declared(subject(Limited)):  # type: ignore[misc]  # a class made by a function
        returns_when_done = True

    assert check(Declared, effort=QUICK).replays == {Property.FULL_COVERAGE: "accept a, accept b, cancel"}


def test_what_the_call_of_an_adapter_raises_late_is_reported_as_that() -> None:
    class Careless(AsyncioSubject):
        __test__ = False
        features = Features(cancel=False)

        async def do_accept(self, session: str, run: str) -> None:
            await self.runner(run)
            self.completed(run)

    result = check(Careless, effort=QUICK)
    assert result.failed is not None
    assert "fail a" in result.failed.what
    assert "RunnerFailed('no luck')" in result.failed.what


# No right subject is accused.


LONGER = Effort(programs=600, examples=20)


def replayed(make: Any, program: str) -> Conformance:
    result = replay(make, "it", parsed(program))
    assert result.failed is None
    return result


class Completing(Plain):
    """Completes a run as soon as it has entered, and then goes on as it should."""

    features = Features(two_phase=True)

    def enter(self, run: str) -> None:
        super().enter(run)
        self.seen.append(Complete(run, cancelled=False))
        self.lane("s1").turn.clear()


def test_what_is_shown_after_an_offence_is_read_before_anything_is_said_to_be_owed() -> None:
    result = replayed(Completing, "accept a, enter a")
    assert set(result.replays) == {Property.DECLARED_MOVE}
    assert result.told == ["accept a", "enter a: active"]


class AnyOrder(Able):
    """Completes what a cancel drops in an order that changes from one time to the next."""

    order = itertools.cycle((1, -1))

    def cancel(self, session: str) -> None:
        seen = len(self.seen)
        super().cancel(session)
        dropped = [event for event in self.seen[seen:] if isinstance(event, Complete)]
        rest = [event for event in self.seen[seen:] if not isinstance(event, Complete)]
        self.seen[seen:] = [*rest, *dropped[:: next(self.order)]]


def test_the_order_in_which_a_cancel_completes_several_runs_is_free() -> None:
    program = (
        "accept a, enter a, accept b, enter b, accept c, enter c, accept d @2, cancel @2, cancel @2, cancel"
    )
    for idle in ("", ", accept e, cancel @3"):
        result = replayed(AnyOrder, program + idle)
        assert (result.replays, result.flaky) == ({}, {})
    result = check(AnyOrder, effort=LONGER)
    assert (result.counterexamples, result.flaky, result.failed) == ({}, {}, None)


class Worded(Able):
    """Says in every error how many things there were before it."""

    count = itertools.count()

    def clear(self, session: str) -> None:
        seen = len(self.seen)
        super().clear(session)
        self.seen[seen:] = [
            event._replace(error=f"number {next(self.count)}") if isinstance(event, Complete) else event
            for event in self.seen[seen:]
        ]


def test_the_words_of_an_error_are_free() -> None:
    assert check(Worded, effort=LONGER).counterexamples == {}


class Slow(Plain):
    def __init__(self, clock: StandingStill) -> None:
        super().__init__("completes twice")
        clock.now += 0.5


def test_running_out_of_time_while_something_is_made_short_is_no_failure(
    standing_clock: StandingStill,
) -> None:
    result = check(
        lambda: Slow(standing_clock),
        effort=Effort(programs=0, examples=50, seconds=4.0),
        limits=ProgramLimits(),
    )
    assert result.failed is None
    assert "4 s" in result.gave_up
    assert result.verdict_of(Property.EXACTLY_ONE_COMPLETE) == "violated"


def test_running_out_of_time_takes_back_nothing_that_holds(standing_clock: StandingStill) -> None:
    class Sound(Plain):
        def __init__(self) -> None:
            super().__init__()
            standing_clock.now += 0.1

    result = check(Sound, effort=Effort(programs=0, examples=10_000, seconds=300.0))
    assert result.gave_up
    assert result.verdict == "unknown"
    held = {each for each in result.judged if result.verdict_of(each) == "holds"}
    assert held == set(result.judged) - set(result.not_shown)


@pytest.mark.parametrize("effort", [LONGER, Effort(programs=0, examples=60)], ids=["short", "random"])
def test_what_does_not_come_back_is_flaky_with_both_transcripts(effort: Effort) -> None:
    chance = random.Random(1)

    def unsteady() -> Plain:
        return Plain("completes twice" if chance.random() < 0.3 else "")

    result = check(unsteady, effort=effort)
    assert result.counterexamples == {}
    assert (result.verdict, result.failed) == ("flaky", None)
    finding = result.flaky[Property.EXACTLY_ONE_COMPLETE]
    assert finding.example.what.endswith("gets a second RunComplete")
    assert finding.again[:2] == finding.example.told()[:2]
    assert finding.again != finding.example.told()
    assert result.verdict_of(Property.EXACTLY_ONE_COMPLETE) == "flaky"
    assert result.verdict_of(Property.DECLARED_MOVE) == "holds"
    assert finding.program in result.replay_command(Property.EXACTLY_ONE_COMPLETE)


def test_what_comes_back_after_all_is_violated() -> None:
    made = itertools.count()

    def settling() -> Plain:
        # It is broken the first time and again from the twentieth on.
        return Plain("completes twice" if (n := next(made)) == 3 or n > 20 else "")

    result = check(settling, effort=LONGER)
    assert result.verdict_of(Property.EXACTLY_ONE_COMPLETE) == "violated"
    assert Property.EXACTLY_ONE_COMPLETE not in result.flaky


class LosesTheCleared(Plain):
    def clear(self, session: str) -> None:
        self.lane(session).queue.clear()


def test_a_run_that_clear_loses_is_owed_and_nobody_has_overtaken_it() -> None:
    program = "accept a, enter a, accept b, enter b, clear, accept c, enter c, finish a"
    result = replayed(LosesTheCleared, f"{program}, finish c")
    assert result.replays == {Property.EXACTLY_ONE_COMPLETE: f"{program}, finish c"}
    example = result.counterexamples[Property.EXACTLY_ONE_COMPLETE]
    assert example.what == "b gets no RunComplete: the queue was cleared, and it is never heard of again"
    assert example.told()[-2:] == [
        "the turn of a ends: RunComplete of a: finished, c becomes active",
        "the turn of c ends: RunComplete of c: finished",
    ]


class Coalesces(Plain):
    """Gives each waiter the answer of the run before."""

    features = Features(two_phase=True)

    def finish(self, run: str) -> None:
        lane = self.lane(self.session_of[run])
        queued, lane.queue = lane.queue, []
        super().finish(run)
        self.seen += [Complete(each, cancelled=False) for each in queued]


def test_a_run_that_completes_and_never_ran_is_said_to_be_just_that() -> None:
    result = replayed(Coalesces, "accept a, enter a, accept b, enter b, finish a")
    assert set(result.replays) == {Property.DECLARED_MOVE}
    assert result.counterexamples[Property.DECLARED_MOVE].what == (
        "b completes as finished, and never ran: its caller got the answer of another run, or none"
    )


def test_what_an_offence_cuts_short_is_not_said_to_be_stranded() -> None:
    result = replayed(Coalesces, "accept a, enter a, accept b, enter b, accept c, enter c, finish a")
    assert set(result.replays) == {Property.DECLARED_MOVE}
    assert result.told[-1].endswith("RunComplete of b: finished, RunComplete of c: finished")


class TakesItsTime(AsyncioSubject):
    """Starts a turn after twenty seconds of virtual time, and tells how it ended after twenty more."""

    __test__ = False
    features = Features(cancel=False)

    def start(self) -> None:
        self.locks: dict[str, asyncio.Lock] = {}

    async def do_accept(self, session: str, run: str) -> None:
        error = None
        async with self.locks.setdefault(session, asyncio.Lock()):
            await asyncio.sleep(20.0)
            try:
                await self.runner(run)
            except RunnerFailed as failed:
                error = str(failed)
            await asyncio.sleep(20.0)
            self.completed(run, error=error)


def test_what_comes_after_a_while_of_virtual_time_is_waited_for() -> None:
    result = check(TakesItsTime, effort=LONGER)
    assert (result.replays, result.flaky, result.failed, result.verdict) == ({}, {}, None, "holds")


class TimesOut(Able):
    """Ends a turn by itself after a while, and says so: a time limit on turns breaks no promise."""

    def wait(self) -> None:
        for lane in self.lanes.values():
            if lane.turn:
                self.end(lane, error="took too long")


def test_a_turn_that_ends_by_itself_is_not_said_to_complete_early() -> None:
    played = play(TimesOut, parsed("accept a, enter a, accept b, enter b, wait, finish b"), ProgramLimits())
    assert (played.violations, played.late) == ((), ())


class HoldsPlaces(Able):
    """Has one place for all runners: the second turn is active, and waits for it."""

    def working(self) -> list[str]:
        return super().working()[:1]


def test_a_turn_whose_runner_waits_for_a_place_is_not_said_to_be_over() -> None:
    played = play(
        HoldsPlaces, parsed("accept a, enter a, accept b @2, enter b @2, finish a"), ProgramLimits()
    )
    assert (played.violations, played.late) == ((), ())


class AbleInRealTime(Able):
    features = Features(two_phase=True, real_time=True)
    timing = Timing(quiet=0.0)


def test_what_a_real_time_subject_shows_late_belongs_before_the_next_operation() -> None:
    *before, cancel = parsed("accept a, enter a, accept b, enter b, cancel")
    subject = AbleInRealTime()
    judge = Judge(subject)
    for op in before:
        judge.take(op)
    subject.end(subject.lane("s1"), error="took too long")
    judge.take(cancel)
    played = outcome(judge, ProgramLimits())
    assert (played.violations, played.late) == ((), ())
    assert str(played.steps[3]) == "enter b: queued"
    assert played.steps[3].events[-2:] == (Complete("a", False, "took too long"), Handoff("b"))
