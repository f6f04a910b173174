"""Which operations make sense next, given the features and the sessions of a subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turngate_model.lifecycle import DeclaredState
from turngate_verify.conform.port import Features
from turngate_verify.conform.programs import LINE, REST, RUNS, TAKING_IN, Name, Op, Program
from turngate_verify.conform.stepping import Moment

if TYPE_CHECKING:
    from turngate_verify.conform.judge import Judge

EXTRA: tuple[Name, ...] = ("cancel_run", "interrupt", "reject", "wait", "crash")
"""Operations of which a short program has few, so that short programs go deeper."""
_CANCELLING = ("cancel", "cancel_run", "interrupt")
_RARE = ("fail", "clear", "fold", "cancel_run", "interrupt", "reject")
"""Operations of which a program that is played mid-flight has few."""
_NEVER_IN_A_BURST = ("wait", "crash", "residue", "fold")


class ProgramLimits(NamedTuple):
    """How many prompts, cancels and sessions a program may have."""

    prompts: int = 3
    cancels: int = 2
    sessions: int = 2
    extras: int = 1
    """How many bursts, and operations that most subjects do not have, there may be."""
    line: int = 2
    """How many operations on waiting runs there may be."""


def enabled(judge: Judge, limits: ProgramLimits) -> list[Op]:
    """Return the operations that make sense now, in a fixed order."""
    sessions, program, features = judge.sessions.each, judge.program, judge.features
    used = [place for place, session in enumerate(sessions) if session.states] or [0]
    fresh = [len(used)] if judge.place_of and len(used) < limits.sessions else []
    ops: list[Op] = []
    cancels = limits.cancels - sum(op.name in _CANCELLING for op in program)
    if len(judge.place_of) < limits.prompts:
        run = RUNS[len(judge.place_of)]
        may: dict[Name, bool] = {
            "accept": True,
            "interrupt": features.interrupt and cancels > 0 and bool(judge.place_of),
            "reject": features.reject,
        }
        ops += [Op(name, run, place) for name in may if may[name] for place in (*used, *fresh)]
    may_line = sum(op.name in LINE for op in program) < limits.line
    for place in used:
        ops += _in_session(judge, place, may_cancel=cancels > 0)
        if may_line:
            ops += _in_line(judge, place, limits, may_cancel=cancels > 0)
    if _extras(program) >= limits.extras:
        return [op for op in ops if op.name not in EXTRA]
    in_flight = any(session.in_flight for session in sessions)
    last = program[-1].name if program else ""
    if features.wait and last not in ("", "wait"):
        ops.append(Op("wait"))
    if features.crash and last != "crash" and in_flight:
        ops.append(Op("crash"))
    return ops


def _extras(program: Program) -> int:
    return sum(op.name in EXTRA or op.gap != REST for op in program)


def _in_session(judge: Judge, place: int, *, may_cancel: bool) -> list[Op]:
    session, features = judge.sessions.at(place), judge.features
    ops: list[Op] = []
    if features.two_phase:
        waiting = session.in_state(DeclaredState.ACCEPTED)
        ops += [Op("enter", run, place) for run in waiting if run not in judge.sessions.asked_to_enter]
    if features.cancel and may_cancel:
        ops.append(Op("cancel", "", place))
    if features.cancel_run and may_cancel:
        ops += [Op("cancel_run", run, place) for run in session.in_flight]
    if features.clear and session.in_flight:
        ops.append(Op("clear", "", place))
    if session.turn and session.running:
        if features.folds:
            ops.append(Op("fold", session.lead, place))
        ops += [Op("finish", session.lead, place), Op("fail", session.lead, place)]
    return ops


def _in_line(judge: Judge, place: int, limits: ProgramLimits, *, may_cancel: bool) -> list[Op]:
    """Return the operations on waiting runs, and those on a turn, which must be refused."""
    session, features = judge.sessions.at(place), judge.features
    line, held, lead = session.line, session.held, session.lead
    ops: list[Op] = []
    if features.hold:
        ops += [Op("hold", "", place)] if session.in_flight else []
        ops += [Op("resume", "", place)] if held else []
        ops += [Op("hold_run", run, place) for run in line if run not in held]
        ops += [Op("resume_run", run, place) for run in line if run in held]
    if features.move:
        pairs = [(run, before) for run in line for before in (*line, "") if run != before]
        ops += [Op("move", run, place, other=before) for run, before in pairs if _moves(line, run, before)]
        ops += [Op("move", lead, place)] if lead else []
    if features.edit:
        ops += [Op("edit", run, place) for run in (*line, *([lead] if lead else []))]
    if features.stop and may_cancel and lead:
        ops.append(Op("stop", "", place))
    if features.send_now and may_cancel:
        ops += [Op("send_now", run, place) for run in line]
    if features.into and session.turn and len(judge.place_of) < limits.prompts:
        ops.append(Op("into", RUNS[len(judge.place_of)], place, other=lead))
    return ops


def _moves(line: list[str], run: str, before: str) -> bool:
    """Tell whether a move changes anything."""
    after = line.index(run) + 1
    return (line[after] if after < len(line) else "") != before


def bursts(judge: Judge, limits: ProgramLimits) -> list[Program]:
    """Return the pairs of operations of one session that make sense in the same moment, in a fixed order.

    A run is never entered in the moment of its accept: a caller has it when the accept has returned.
    """
    if not judge.features.bursts or _extras(judge.program) >= limits.extras:
        return []
    able = [op for op in enabled(judge, limits) if op.name not in _NEVER_IN_A_BURST]
    pairs: list[Program] = []
    for first in able:
        seconds = [op for op in able if op.place == first.place and _can_follow(first, op)]
        if first.name in TAKING_IN:
            nth = len(judge.place_of) + 1
            seconds = [op for op in seconds if op.name not in TAKING_IN]
            if nth < limits.prompts:
                seconds.append(Op("accept", RUNS[nth], first.place))
        pairs += [(first._replace(gap=0), second) for second in seconds]
    return pairs


def count_rare(program: Program) -> int:
    """Count the rare operations of a program."""
    return sum(op.name in _RARE for op in program)


def enabled_at(program: Program, moment: Moment, features: Features, limits: ProgramLimits) -> list[Op]:
    """Return the operations that make sense at a moment between two rests, in a fixed order."""
    place_of = {op.run: op.place for op in program if op.name in TAKING_IN}
    used = sorted(set(place_of.values()))
    fresh = [len(used)] if used and len(used) < limits.sessions else []
    rare = count_rare(program) < limits.extras
    may_cancel = sum(op.name in _CANCELLING for op in program) < limits.cancels
    ops: list[Op] = []
    if len(place_of) < limits.prompts:
        run = RUNS[len(place_of)]
        ops += [Op("accept", run, place) for place in (*(used or [0]), *fresh)]
        if features.interrupt and rare and may_cancel:
            ops += [Op("interrupt", run, place) for place in used]
        if features.reject and rare:
            ops += [Op("reject", run, place) for place in used or [0]]
    if sum(op.name in LINE for op in program) < limits.line:
        named = {(op.name, op.run) for op in program}
        lined = _in_line_at(place_of, moment, features, may_cancel=may_cancel)
        if features.into and len(place_of) < limits.prompts:
            run = RUNS[len(place_of)]
            lined += [Op("into", run, place_of[lead], other=lead) for lead in moment.at_work]
        ops += [op for op in lined if (op.name, op.run) not in named]
    entered = {op.run for op in program if op.name == "enter"}
    if features.two_phase:
        ops += [
            Op("enter", run, place)
            for run, place in place_of.items()
            if run in moment.accepted and run not in entered | moment.complete
        ]
    if features.cancel and may_cancel:
        ops += [Op("cancel", "", place) for place in used]
    for run in moment.at_work:
        ops.append(Op("finish", run, place_of[run]))
        ops += [
            Op(name, run, place_of[run])
            for name in ("fail", "fold")
            if rare and (name == "fail" or features.folds)
        ]
    if rare and features.clear:
        ops += [Op("clear", "", place) for place in used]
    if rare and features.cancel_run and may_cancel:
        ops += [Op("cancel_run", run, place_of[run]) for run in place_of if run in moment.accepted]
    return ops


def _in_line_at(
    place_of: dict[str, int], moment: Moment, features: Features, *, may_cancel: bool
) -> list[Op]:
    """Return the operations on waiting runs, at a moment at which it is not known which runs wait."""
    runs = [run for run in place_of if run in moment.accepted]
    ops: list[Op] = []
    for place in sorted(set(place_of.values())):
        ops += [Op("hold", "", place), Op("resume", "", place)] if features.hold else []
        ops += [Op("stop", "", place)] if features.stop and may_cancel else []
    for run in runs:
        place = place_of[run]
        ops += [Op("hold_run", run, place)] if features.hold else []
        ops += [Op("edit", run, place)] if features.edit else []
        ops += [Op("send_now", run, place)] if features.send_now and may_cancel else []
        if features.move:
            others = ["", *(each for each in runs if each != run and place_of[each] == place)]
            ops += [Op("move", run, place, other=other) for other in others]
    return ops


def _can_follow(first: Op, second: Op) -> bool:
    return first != second and not (first.run and first.run == second.run)
