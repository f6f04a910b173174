"""The port: what a subject under test offers, and what it shows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, get_args

from turngate_model.history import Complete, Enter, FinishReason, Fold, Handoff, Wrote
from turngate_model.lifecycle import DeclaredState
from turngate_verify.conform.programs import OPERATIONS, TAKING_IN, Op


class Refused(NamedTuple):
    """An operation was refused, and has changed nothing: a prompt was not taken in, or a run not moved."""

    run: str
    operation: str = ""
    """The operation at the port; empty for those that bring a prompt, which then leaves no trace."""


class Given(NamedTuple):
    """The runner was given this prompt for a run. A subject with ``edit`` shows it."""

    run: str
    prompt: str


def is_refused(op: Op, refused: Collection[Refused]) -> bool:
    """Return whether an operation is among those that were refused."""
    return Refused(op.run, "" if op.name in TAKING_IN else op.name) in refused


Observed: TypeAlias = Enter | Handoff | Fold | Complete | Wrote | Refused | Given
"""The events that a subject may show. The kit makes accepts, cancels and clears itself, so it knows these."""


class Features(NamedTuple):
    """What a subject can do besides accepting and running prompts. The kit leaves out what it cannot do."""

    two_phase: bool = False
    """Accept and enter are two operations; otherwise ``accept`` enters as well."""
    folds: bool = False
    """A turn can take queued follow-ups in."""
    clear: bool = False
    """The queue of a session can be cleared."""
    cancel: bool = True
    """A session can be cancelled."""
    messages: bool = False
    """The subject shows ``Wrote`` when the messages of a run are written."""
    cancel_run: bool = False
    """One run can be cancelled."""
    interrupt: bool = False
    """A prompt can cancel all that came before it, and be accepted after it, in one step."""
    reject: bool = False
    """A prompt can ask to be refused when its session is busy."""
    wait: bool = False
    """Time can pass, so that the subject's own timers run out. An ``AsyncioSubject`` always has this."""
    crash: bool = False
    """The process of the subject can be killed, and what it holds is opened again."""
    residue: bool = False
    """The subject says how many things it holds when it is quiet."""
    bursts: bool = False
    """Several operations can be called without waiting in between. An ``AsyncioSubject`` always has this."""
    real_time: bool = False
    """An operation returns when it is taken in; the kit looks again until nothing is owed."""
    hold: bool = False
    """Waiting runs can be held and resumed, all of a session or one."""
    stop: bool = False
    """One step covers the active turn alone, and holds the waiting runs."""
    move: bool = False
    """The position of a waiting run can be changed."""
    edit: bool = False
    """A waiting run can be edited. The subject shows ``Given`` when its runner gets the prompt."""
    send_now: bool = False
    """One step puts a queued run first, resumes it, and covers the active turn alone."""
    into: bool = False
    """A prompt can be for the active turn alone: it joins it, or is cleared with its end."""
    unordered: bool = False
    """Starts of runners and RunCompletes are seen over different channels, so their order is not known."""
    self_folds: bool = False
    """A turn takes follow-ups in by itself, and it is not always known which ones."""

    @property
    def names(self) -> list[str]:
        """The features that the subject has."""
        return [name for name, has in zip(self._fields, self, strict=True) if has]

    @property
    def has_line(self) -> bool:
        """Whether there is any operation on waiting runs."""
        return self.hold or self.stop or self.move or self.edit or self.send_now or self.into

    @property
    def left_out(self) -> list[str]:
        """What the kit leaves out, in words."""
        return [words for name, words in _LEFT_OUT.items() if not getattr(self, name)]


_LEFT_OUT = {
    "two_phase": "enter: accepting and entering are one step, so nothing comes between them",
    "folds": "fold: no follow-up can join a turn",
    "clear": "clear: the queue cannot be cleared",
    "cancel": "cancel: a session cannot be cancelled",
    "messages": "messages: the messages are not shown",
    "cancel_run": "cancel_run: one run cannot be cancelled",
    "interrupt": "interrupt: a prompt cannot cancel what came before it",
    "reject": "reject: a prompt cannot ask to be refused when its session is busy",
    "wait": "wait: time does not pass, so no timer of the subject runs out",
    "crash": "crash: the process of the subject is not killed",
    "residue": "residue: the memory is not shown",
    "bursts": "bursts: every operation is waited for, so no two are called at the same moment "
    "and races are not tried",
    "hold": "hold: a waiting prompt cannot be held",
    "stop": "stop: the active turn cannot be stopped with the queue kept",
    "move": "move: a waiting prompt cannot be moved",
    "edit": "edit: a waiting prompt cannot be edited",
    "send_now": "send_now: a queued prompt cannot be sent at once",
    "into": "into: a prompt cannot be for one turn alone",
}


class Subject(Protocol):
    """A dispatcher under test, fresh from its factory, with a runner that does what the kit says.

    Every operation returns when the subject is at rest: nothing more will
    happen until the next operation. ``run`` in the last three is the lead run
    of an active turn; they do nothing when its runner has ended already.
    """

    @property
    def features(self) -> Features:
        """What the subject can do."""
        ...

    def accept(self, session: str, run: str) -> None:
        """Take a prompt in under this id; enter it as well if the subject is not two-phase."""
        ...

    def enter(self, run: str) -> None:
        """Decide on an accepted run, and carry the decision out."""
        ...

    def cancel(self, session: str) -> None:
        """Cancel every run of the session that is accepted and not complete, and interrupt its runner."""
        ...

    def clear(self, session: str) -> None:
        """Drop what is queued."""
        ...

    def fold(self, run: str) -> None:
        """Have the runner ask for follow-ups."""
        ...

    def finish(self, run: str) -> None:
        """Have the runner return."""
        ...

    def fail(self, run: str) -> None:
        """Have the runner fail."""
        ...

    def observe(self) -> Sequence[Observed]:
        """Return what happened since the last call, in order."""
        ...

    def close(self) -> None:
        """Release everything. The subject is not used again."""
        ...


class AbleSubject(Subject, Protocol):
    """A subject that can do more. Each of these is called only if the features say so, or it is there."""

    def cancel_run(self, run: str) -> None:
        """Cancel this run; the whole turn, if it is part of the active one. The queue goes on."""
        ...

    def interrupt(self, session: str, run: str) -> None:
        """Cancel all that came before and take the prompt in after that, in one step."""
        ...

    def reject(self, session: str, run: str) -> None:
        """Take the prompt in if nothing of the session is in flight; otherwise show ``Refused``."""
        ...

    def wait(self) -> None:
        """Let time pass until every timer of the subject has run out."""
        ...

    def crash(self) -> None:
        """Kill the process without warning (SIGKILL), and open what it held again."""
        ...

    def residue(self) -> int:
        """Return how many things the subject holds. Count nothing that is bounded on purpose."""
        ...

    def burst(self, operations: Sequence[Op]) -> None:
        """Call these operations one after the other, each ``gap`` milliseconds after the one before it."""
        ...

    def hold(self, session: str) -> None:
        """Hold every run of the session that waits now, and none that comes later."""
        ...

    def resume(self, session: str) -> None:
        """Lift every hold of the session."""
        ...

    def hold_run(self, run: str) -> None:
        """Hold this run, or show ``Refused(run, "hold_run")`` if it does not wait."""
        ...

    def resume_run(self, run: str) -> None:
        """Lift the hold of this run, or show that this is refused."""
        ...

    def stop(self, session: str) -> None:
        """Cover the active turn alone and hold the waiting runs, in one step."""
        ...

    def move(self, run: str, before: str | None) -> None:
        """Put this waiting run before another, or last, or show that this is refused."""
        ...

    def edit(self, run: str, prompt: str) -> None:
        """Give a waiting run another prompt, or show that this is refused."""
        ...

    def send_now(self, run: str) -> None:
        """Make this queued run the next one and cover the active turn alone, or show a refusal."""
        ...

    def into(self, session: str, run: str, into: str) -> None:
        """Take a prompt in for the turn of another run alone, or show ``Refused(run)``."""
        ...

    def working(self) -> Collection[str] | None:
        """Return the lead runs whose runner is at work now, or None if that is not known.

        This is not a feature: the kit asks every subject that has the method.
        """
        ...


SubjectFactory: TypeAlias = Callable[[], Subject]
"""Makes a fresh subject: the class of an adapter, or a ``Command``."""


class SubjectFailed(Exception):
    """A subject that cannot be judged: it raised, hung, died, or showed what makes no sense."""

    def __init__(self, what: str, conversation: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.what = what
        self.conversation = list(conversation)
        """The last lines of what the kit and the subject said to each other."""


class SubjectHangs(SubjectFailed):
    """A subject with a call that does not return, or a callback that does not end."""


_ENTERED = (DeclaredState.CANCEL_ON_ENTRY, DeclaredState.QUEUED, DeclaredState.ACTIVE)
_REASONS: tuple[FinishReason, ...] = get_args(FinishReason)


def observed(record: Mapping[str, Any]) -> Observed:
    """Return the event that a JSON object stands for, as in a recorded history.

    Raises ValueError if it stands for none.
    """
    run = record.get("run")
    if not isinstance(run, str):
        raise ValueError(f"{dict(record)} needs run: a string")  # noqa: TRY004 - all that is wrong is a value
    match record:
        case {"event": "enter", "state": str(state)} if state in _ENTERED:
            return Enter(run, DeclaredState(state))
        case {"event": "handoff"}:
            return Handoff(run)
        case {"event": "fold", "into": str(into)}:
            return Fold(run, into)
        case {"event": "complete", "cancelled": bool(cancelled)}:
            error = record.get("error")
            return Complete(run, cancelled, None if error is None else str(error))
        case {"event": "wrote", "reason": reason} if reason in _REASONS:
            return Wrote(run, reason)
        case {"event": "refused"} if record.get("op", "") in ("", *OPERATIONS):
            named = str(record.get("op", ""))
            return Refused(run, "" if named in TAKING_IN else named)
        case {"event": "given", "prompt": str(prompt)}:
            return Given(run, prompt)
        case _:
            raise ValueError(f"{dict(record)} is no event of the port")
