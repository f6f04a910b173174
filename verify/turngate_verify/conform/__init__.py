"""The conformance kit: hold somebody else's dispatcher to what always holds.

The port
--------
A subject is a dispatcher behind a handful of operations (``Subject``). The kit
is its callers, and also its runner: it says when a turn folds, finishes or
fails, so that every race is a matter of the order of operations.

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
close()                lets go of everything
=====================  =====================================================

Every operation returns when the subject is quiescent: nothing more happens
until the next one. What is shown are the events of a recorded history:
``Enter``, ``Handoff``, ``Fold``, ``Complete``, and ``Wrote`` from a subject
that shows its messages. Accepts, cancels and clears are the kit's own doing
and are not shown. ``Features`` says what a subject can do; what it cannot is
left out, and the result lists it.

An adapter
----------
``AsyncioSubject`` is the base for dispatchers written with asyncio. It drives
a loop of its own to quiescence, with virtual time, and sees by its runner when
turns start::

    class MySubject(AsyncioSubject):
        def start(self):
            self.mine = MyDispatcher(run=self.runner)

        async def do_accept(self, session, run):
            self.watch(run, self.mine.submit(session, run))   # the future that a caller waits for

        async def do_cancel(self, session):
            await self.mine.cancel(session)

``Command`` is a subject in another language, behind JSON lines.

In a test module
----------------
With Turngate installed, an adapter that a pytest module defines or imports is
the whole suite: one test per property, with nothing to configure. A failure
prints the program, the property and the command that replays it; a property
that stays unknown is skipped, and says why. An adapter with an attribute
``effort`` says how hard to look; one with ``__test__ = False`` is left alone.

The verdicts
------------
``check`` plays every short program, shortest first, then random ones, each on
a fresh subject, and judges by the abstract session. A property is ``violated``
with the shortest program found, ``unknown`` when nothing has put it to the
test or the subject cannot show it, and ``holds`` otherwise: for the programs
that were played, which is evidence and no proof. A program is judged up to its
first offence; what comes after it may only be its consequence. LAST_WORD alone
is followed past its first offence.
"""

from typing import Any

from turngate_model.history import Complete, Enter, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState
from turngate_verify.conform.asyncio_subject import AsyncioSubject
from turngate_verify.conform.judge import ProgramLimits
from turngate_verify.conform.lines import Command
from turngate_verify.conform.port import Features, Observed, Subject, SubjectFactory, SubjectFailed, observed
from turngate_verify.conform.programs import BadProgram, Op, Program, parsed, written
from turngate_verify.conform.suites import JUDGED, Conformance, Effort, Played, check, play, replay
from turngate_verify.world.failures import RunnerFailed

__all__ = [
    "JUDGED",
    "AsyncioSubject",
    "BadProgram",
    "Command",
    "Complete",
    "Conformance",
    "DeclaredState",
    "Effort",
    "Enter",
    "Features",
    "Fold",
    "Handoff",
    "Observed",
    "Op",
    "Played",
    "Program",
    "ProgramLimits",
    "RunnerFailed",
    "Subject",
    "SubjectFactory",
    "SubjectFailed",
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
    """Return the tests of an adapter to pytest; the plugin asks for every object of a test module."""
    from turngate_verify.conform.pytest_items import collected  # noqa: PLC0415 - whoever does not run pytest need not have it

    return collected(collector, name, obj)
