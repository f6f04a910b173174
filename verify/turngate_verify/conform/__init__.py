"""The conformance kit: checks whether another dispatcher has the properties of Turngate.

The port
--------
A subject is a dispatcher behind a handful of operations (``Subject``). The kit
plays its callers and also its runner: it says when a turn folds, finishes or
fails. So every race comes down to the order of operations.

=====================  =====================================================
operation              the subject
=====================  =====================================================
accept(session, run)   takes a prompt in; enters it too, if not two-phase
enter(run)             decides: cancel_on_entry, queued or active
cancel(session)        covers all that is in flight, interrupts the runner
clear(session)         drops what is queued
fold(run)              the runner of this lead run asks for follow-ups
finish(run)            the runner of this lead run returns
fail(run)              the runner of this lead run raises
observe()              shows what happened since the last call, in order
close()                releases everything
=====================  =====================================================

A subject may have more: ``cancel_run``, ``interrupt``, ``reject``, ``wait``,
``crash``, ``residue`` and ``burst`` (``AbleSubject``). Every operation returns when
the subject is at rest: nothing more happens until the next one. A subject shows
events of a recorded history: ``Enter``, ``Handoff``, ``Fold``, ``Complete``, and
``Wrote`` if it shows its messages. It does not show accepts, cancels and clears,
because the kit makes these itself.
``Features`` says what a subject can do. The kit leaves out what it cannot do,
and the result lists that.

An adapter
----------
``AsyncioSubject`` is the base for dispatchers written with asyncio. It runs its
own loop, in virtual time, until nothing more happens. Its runner shows when a
turn starts::

    class MySubject(AsyncioSubject):
        def start(self):
            self.mine = MyDispatcher(run=self.runner)

        async def do_accept(self, session, run):
            self.watch(run, self.mine.submit(session, run))   # the future that a caller waits for

        async def do_cancel(self, session):
            await self.mine.cancel(session)

``RealtimeSubject`` is the base for servers, pollers, and workers in threads or
other processes. Its operations return when they are taken in; the kit looks
until nothing is owed, and waits long only for what should happen and does not.
All time-outs are in ``Timing``. ``Command`` is a subject in another language,
behind JSON lines.

In a test module
----------------
With Turngate installed, pytest makes one test per property of each adapter that
a test module defines or imports. There is nothing to configure. A failing test
prints the program, the property and the command that replays it. A test whose
property stays unknown is skipped, and says why. The attribute ``effort`` of an
adapter says how hard to look; ``__test__ = False`` turns its tests off.

The verdicts
------------
``check`` plays every short program, shortest first, then drills and random
programs, each on a fresh subject. An abstract session judges what the subject
shows. A property is ``violated`` if a program breaks it each time that it is
played, and the result has the shortest such program. It is ``flaky`` if it was
broken once and not again, and the result has both transcripts. It is
``unknown`` if no program tested it, or the subject cannot show it.
Otherwise it ``holds`` for the programs that were played, which is evidence and
no proof. With an ``AsyncioSubject``, operations also arrive between two callbacks of
the one before, at every moment until rest: ``Effort(mid_flight=0)`` turns that off.
Other subjects are tried with operations at the same moment if they have the feature
``bursts``. The verdict says whether races were tried and how far, and
``Effort(require_races=True)`` makes it unknown if they were not. The kit judges a
program up to its first offence, because later ones may only follow from it;
after a violation of LAST_WORD alone it goes on.
"""

from typing import Any

from turngate_model.history import Complete, Enter, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState
from turngate_verify.conform.asyncio_subject import AsyncioSubject
from turngate_verify.conform.judge import ProgramLimits
from turngate_verify.conform.lines import Command
from turngate_verify.conform.players import play
from turngate_verify.conform.port import (
    AbleSubject,
    Features,
    Given,
    Observed,
    Refused,
    Subject,
    SubjectFactory,
    SubjectFailed,
    observed,
)
from turngate_verify.conform.programs import BadProgram, Op, Program, parsed, written
from turngate_verify.conform.realtime_subject import RealtimeSubject
from turngate_verify.conform.result import JUDGED, Conformance, Effort, FlakyFinding, Played
from turngate_verify.conform.suites import check, replay
from turngate_verify.conform.timing import Timing
from turngate_verify.world.failures import RunnerFailed

__all__ = [
    "JUDGED",
    "AbleSubject",
    "AsyncioSubject",
    "BadProgram",
    "Command",
    "Complete",
    "Conformance",
    "DeclaredState",
    "Effort",
    "Enter",
    "Features",
    "FlakyFinding",
    "Fold",
    "Given",
    "Handoff",
    "Observed",
    "Op",
    "Played",
    "Program",
    "ProgramLimits",
    "RealtimeSubject",
    "Refused",
    "RunnerFailed",
    "Subject",
    "SubjectFactory",
    "SubjectFailed",
    "Timing",
    "Wrote",
    "check",
    "collect",
    "observed",
    "parsed",
    "play",
    "replay",
    "written",
]


def collect(collector: Any, name: str, obj: object) -> Any:
    """Return the tests of an adapter. The pytest plugin calls this for every object of a test module."""
    from turngate_verify.conform.pytest_items import collected  # noqa: PLC0415 - needed only under pytest

    return collected(collector, name, obj)
