"""One random program on a real dispatcher, and three judges of it: the monitor, the recording and the kit.

They see different things. The monitor hears the dispatcher, the runner and the
store, and compares what it hears with what the dispatcher says of itself; the
recording shows what callers see, and nothing else; the conformance kit sees
the operations that it makes and what the subject shows after each of them.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from turngate import Dispatcher
from turngate_model import DeclaredState, Property
from turngate_model.history import Complete, Ended, Enter, Event, Fold, Handoff, Wrote
from turngate_model.properties import AnyProperty
from turngate_verify.conform import Features, Observed, ProgramLimits, written
from turngate_verify.conform.judge import Judge
from turngate_verify.trace import NEVER_SHOWN, check
from turngate_verify.trace_lines import BadRecording
from turngate_verify.world.monitor import Monitor
from turngate_verify.world.world import World, without_log

LIMITS = ProgramLimits(prompts=7, cancels=3, sessions=2)
OPERATIONS = 24
UNSHOWN = (*NEVER_SHOWN, Property.IDLE_CANCEL, Property.ISOLATION, Property.REFINES)
"""What a recording is not judged by: it does not show it, or there is nothing to compare it with."""


class HeardMonitor(Monitor):
    """A monitor that keeps apart what it says of recorded events."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.heard: set[Property] = set()

    def observe(self, session: str, event: Event) -> None:
        before = len(self.violations)
        super().observe(session, event)
        if not isinstance(event, Wrote | Ended):
            new = {violation.property for violation in self.violations[before:]}
            # At a RunComplete this property is about messages, which are not recorded.
            self.heard |= new - {Property.LAST_WORD} if isinstance(event, Complete) else new


class HeardWorld(World):
    """A world that keeps its recording, and what the monitor says of the events in it."""

    monitor_class = HeardMonitor
    monitor: HeardMonitor

    def __init__(self, make: type[Dispatcher]) -> None:
        self.recording: list[str] = []
        super().__init__(make)

    def record(self, entry: dict[str, Any]) -> None:
        self.recording.append(json.dumps(entry))
        super().record(entry)

    def come_to_an_end(self) -> None:
        """Let everything end; what is broken is in the violations, and may keep it from closing."""
        with suppress(AssertionError):
            self.finish()
        self.abandon()
        sessions = self.monitor.sessions.values()
        if not self.monitor.ended and not any(each.in_state(DeclaredState.ACCEPTED) for each in sessions):
            # Nothing more will happen, and no caller holds a run that may still enter.
            self.recording.append(json.dumps({"event": "end"}))


class WorldSubject:
    """A world as a subject of the conformance kit."""

    features = Features(two_phase=True, folds=True, clear=True, messages=True)

    def __init__(self, make: type[Dispatcher]) -> None:
        self.world = HeardWorld(make)
        self._shown = 0

    def _do(self, call: Callable[..., object], *about: str) -> None:
        call(*about)
        self.world.loop.settle()

    def accept(self, session: str, run: str) -> None:
        self._do(self.world.accept, session, run)

    def enter(self, run: str) -> None:
        self._do(self.world.enter, run)

    def cancel(self, session: str) -> None:
        self._do(self.world.cancel, session)

    def clear(self, session: str) -> None:
        self._do(self.world.clear, session)

    def fold(self, run: str) -> None:
        self._tell(run, "fold")

    def finish(self, run: str) -> None:
        self._tell(run, "finish")

    def fail(self, run: str) -> None:
        self._tell(run, "fail")

    def _tell(self, run: str, command: str) -> None:
        if run in self.world.runner.players:
            self._do(self.world.runner.players[run].obey, command)

    def observe(self) -> Sequence[Observed]:
        seen, self._shown = self.world.monitor.history[self._shown :], len(self.world.monitor.history)
        return [event for _, event in seen if isinstance(event, Enter | Handoff | Fold | Complete | Wrote)]

    def close(self) -> None:
        self.world.abandon()


class Judged(NamedTuple):
    """What each judge says of a program: the properties that are broken."""

    program: str
    recording: list[str]
    monitor: set[Property]
    heard: set[Property]
    """What the monitor says of the events that are recorded."""
    trace: set[Property]
    """The first that the recording shows to be broken."""
    kit: set[AnyProperty] | None = None
    heard_by_then: frozenset[Property] = frozenset()
    """What the monitor had heard when the kit saw its last operation."""


def judged(seed: int, make: type[Dispatcher] = Dispatcher) -> Judged:
    """Play the random program of a seed, at rest after every operation, and let all three judge it."""
    chance = random.Random(seed)
    subject = WorldSubject(make)
    world = subject.world
    judge = Judge(subject)
    with without_log():
        for _ in range(chance.randint(1, OPERATIONS)):
            options = [] if judge.violations else judge.enabled(LIMITS)
            if options:
                judge.take(chance.choice(options))
        by_then = frozenset(world.monitor.heard)
        world.come_to_an_end()
    kit = {violation.property for violation in (*judge.violations, *(each for each, _ in judge.late))}
    return _judged(written(judge.program), world)._replace(kit=kit, heard_by_then=by_then)


def judged_in_haste(seed: int, make: type[Dispatcher] = Dispatcher) -> Judged:
    """Play the random program of a seed, without waiting for anything, and let two of them judge it."""
    chance = random.Random(seed)
    world = HeardWorld(make)
    program: list[str] = []
    with without_log(), suppress(*() if make is Dispatcher else (Exception,)):
        for _ in range(chance.randint(1, 3 * OPERATIONS)):
            name, call, *about = chance.choice([*_possible(world)])
            program.append(" ".join((name, *map(str, about))))
            call(*about)
    with without_log():
        world.come_to_an_end()
    return _judged(", ".join(program), world)


def _judged(program: str, world: HeardWorld) -> Judged:
    monitor = {violation.property for violation in world.monitor.violations}
    heard = world.monitor.heard
    return Judged(program, world.recording, monitor, heard, _told_by(world.recording))


def _told_by(recording: list[str]) -> set[Property]:
    try:
        offence = check(recording).offence
    except BadRecording:
        return {Property.DECLARED_MOVE}  # it tells of a move that there cannot be
    return {offence.property} if offence else set()


def _possible(world: HeardWorld) -> Iterator[tuple[Any, ...]]:
    """Yield what could be done next."""
    for session in ("s", "s", "t"):
        if len(world.runs) < LIMITS.prompts:
            yield "accept", world.accept, session, f"r{len(world.runs) + 1}"
            yield "submit", world.submit, session, f"r{len(world.runs) + 1}"
        if (abstract := world.monitor.sessions.get(session)) is not None:
            yield "cancel", world.cancel, session
            yield "clear", world.clear, session
            yield from (("enter", world.enter, run) for run in abstract.in_state(DeclaredState.ACCEPTED))
    yield from (("again", world.accept, run.session_id, name) for name, run in world.runs.items())
    for lead, player in world.runner.players.items():
        yield from ((f"runner of {lead}:", player.obey, does) for does in ("fold", "finish", "fail"))
    yield from (("step", world.loop.step, nth) for nth in range(len(world.loop.ready)))
