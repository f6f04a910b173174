"""Judges what was seen in chaos: by callers, by onlookers of the event stream, by runners, and on the ledger.

A restore begins another life of the ledger, with what the backup knew. So everything is judged against a
life: calls by whether they are certainly part of it, onlookers by the order of its RunCompletes.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from chaos_ledger import Completed, Life
from turngate import RunComplete
from turngate.durable.feed._completions import LedgerCursor
from turngate.server._cursor import parsed
from turngate_verify.ledger_judge import problems

Line = dict[str, Any]


class Window(NamedTuple):
    """A life in time: when it began and ended, and when the backup of the next one was made."""

    began: float
    ended: float = float("inf")
    backup_began: float = 0.0
    backup_ended: float = 0.0


@dataclass
class Call:
    """A call as its caller saw it."""

    op: str
    line: Line
    began: float
    ended: float = float("inf")
    result: str = "unknown"
    answer: Line = field(default_factory=dict)

    @property
    def about(self) -> str:
        """The session or the run that it is about."""
        about: str = self.line["about"]
        return about


def calls_in(log: Iterable[Line]) -> list[Call]:
    """Return the calls of a log, with their results."""
    found: dict[str, Call] = {}
    for line in log:
        if line["event"] == "call":
            found[line["call"]] = Call(line["op"], line, line["at"])
        elif line["event"] in ("answered", "refused"):
            call = found[line["call"]]
            call.ended, call.result, call.answer = line["at"], line["event"], line
    return [*found.values()]


class Parts(NamedTuple):
    """The calls that are part of a life for certain, and those that may be."""

    certain: list[Call]
    possible: list[Call]


def parts_of(calls: Sequence[Call], windows: Sequence[Window]) -> list[Parts]:
    """Sort calls out by lives. What was refused has changed nothing, and is part of none."""
    made = [call for call in calls if call.result != "refused"]
    found: list[Parts] = []
    for number, window in enumerate(windows):
        certain: dict[int, Call] = {}
        possible: dict[int, Call] = {}
        if number:
            before = windows[number - 1]
            certain = {id(call): call for call in found[-1].certain if call.ended < before.backup_began}
            for call in (*found[-1].certain, *found[-1].possible):
                if id(call) not in certain and call.began < before.backup_ended:
                    possible[id(call)] = call
        for call in made:
            if call.began > window.ended or call.ended < window.began or id(call) in certain:
                continue
            within = window.began <= call.began and call.ended <= window.ended
            if within and call.result == "answered":
                certain[id(call)] = call
            else:
                possible[id(call)] = call
        found.append(Parts([*certain.values()], [*possible.values()]))
    return found


# The ledger.


async def judge_life(life: Life, parts: Parts, *, is_last: bool) -> list[str]:
    """Judge what a ledger has come to, and every answer that belongs to it."""
    accepted = [call.line["run"] for call in parts.certain if call.op == "submit"]
    wrong = await problems(life, accepted, over=is_last)  # type: ignore[arg-type]
    known = {*life.runs, *life.in_flight}
    wrong += [f"DURABLE: run {run} was acknowledged and is not known" for run in accepted if run not in known]
    wrong += judge_answers(life, parts.certain)
    wrong += judge_counts(history_of(life), parts)
    wrong += judge_edits(life, parts)
    return wrong


def history_of(life: Life) -> list[Line]:
    """Return the recorded history of a life."""
    return [entry for step in life.steps for entry in step.entries]


def judge_answers(life: Life, certain: Iterable[Call]) -> list[str]:
    """Judge what callers were told of outcomes."""
    wrong = []
    runs = life.runs
    for call in certain:
        if call.op == "wait" and call.answer.get("complete") is not None:
            told = RunComplete(*call.answer["complete"])
            found = runs.get(told.run_id)
            if found is None or found.complete != told:
                wrong.append(f"EXACTLY_ONE_COMPLETE: a caller was told {told}, and the ledger has {found}")
        elif call.op in ("cancel", "cancel_run", "stop", "send_now"):
            for run in call.answer.get("runs", ()):
                if run in runs and not runs[run].complete.cancelled:
                    wrong.append(f"FULL_COVERAGE: {run} was covered by {call.line}, and is not cancelled")
                if run not in runs and run not in life.in_flight:
                    wrong.append(f"DURABLE: {run} was covered by {call.line}, and is not known")
        if call.op == "send_now" and call.about in call.answer.get("runs", ()):
            wrong.append(f"R-NOW-1: {call.line} has covered the run that it sent")
    return wrong


COUNTED = {
    "cancel": ("cancel", None),
    "clear_queue": ("clear", None),
    "hold": ("hold", None),
    "resume": ("resume", None),
    "stop": ("hold", None),
    "hold_run": ("hold", "runs"),
    "resume_run": ("resume", "runs"),
    "send_now": ("resume", "runs"),
    "edit": ("edit", "run"),
    "move": ("move", "run"),
}
"""What each operation writes into the history: the event, and by what it names the run that it is about."""


def judge_counts(history: Sequence[Line], parts: Parts) -> list[str]:
    """Expect each acknowledged operation once in the history, and no other that was not asked for."""
    counted: Counter[tuple[str, str]] = Counter()
    session_of: dict[str, str] = {}
    for line in history:
        event = line["event"]
        if event == "accept":
            session_of[line["run"]] = line["session"]
        if event in ("edit", "move"):
            counted[event, line["run"]] += 1
        elif event in ("cancel", "clear", "hold", "resume"):
            runs = line.get("runs")
            if runs is None:
                counted[event, line["session"]] += 1
            elif event in ("hold", "resume"):
                counted[event, runs[0]] += 1
    least: Counter[tuple[str, str]] = Counter()
    most: Counter[tuple[str, str]] = Counter()
    for call, certain in [(call, True) for call in parts.certain] + [
        (call, False) for call in parts.possible
    ]:
        if call.op in COUNTED:
            key = COUNTED[call.op][0], call.about
            most[key] += 1
            least[key] += certain and _has_changed(call)
        if call.op == "send_now":  # it moves the run as well, unless that was the first in line
            most["move", call.about] += 1
        elif call.op == "submit" and call.line.get("when_busy") == "interrupt":
            most["cancel", call.line["session"]] += 1
    wrong = []
    for key in {*counted, *least}:
        if not least[key] <= counted[key] <= most[key]:
            times = (
                f"{counted[key]} times in the history, and was asked for {least[key]} to {most[key]} times"
            )
            wrong.append(f"{key[0]} of {key[1]} is {times}")
    return wrong


def _has_changed(call: Call) -> bool:
    """Return whether an answer shows that the operation was one, and not without any effect."""
    if call.op in ("hold", "hold_run", "resume", "resume_run", "clear_queue"):
        return bool(call.answer.get("runs"))
    # Others may find that everything is so already, and then nothing is saved.
    return call.op == "edit" or bool(call.answer.get("held"))


def judge_edits(life: Life, parts: Parts) -> list[str]:
    """Expect of every run that had a turn the prompt that the last acknowledged edit has left."""
    edits: dict[str, list[tuple[Call, bool]]] = defaultdict(list)
    sent: dict[str, str] = {}
    for call, certain in [(call, True) for call in parts.certain] + [
        (call, False) for call in parts.possible
    ]:
        if call.op == "edit":
            edits[call.about].append((call, certain))
        elif call.op == "submit":
            sent[call.line["run"]] = call.line["prompt"]
    given = {
        message.run_id: message.text
        for messages in life.messages.values()
        for message in messages
        if message.role == "user"
    }
    wrong = []
    for run, prompt in given.items():
        if run not in sent:
            continue
        of_run = edits.get(run, [])
        last_began = max((call.began for call, certain in of_run if certain), default=None)
        allowed = {call.line["prompt"] for call, certain in of_run}
        for call, certain in of_run:
            if certain and any(other and call.ended < each.began for each, other in of_run):
                allowed.discard(call.line["prompt"])  # another was made after it
        if last_began is None:
            allowed.add(sent[run])
        if prompt not in allowed:
            wrong.append(f"AS_EDITED: run {run} was given {prompt!r}, and not one of {sorted(allowed)}")
    return wrong


def judge_runners(life: Life, log: Iterable[Line], pids: frozenset[int]) -> list[str]:
    """Expect that a runner was given what the messages say, in the processes of a life."""
    kept = {
        message.run_id: message
        for messages in life.messages.values()
        for message in messages
        if message.role == "user"
    }
    wrong = []
    for line in log:
        if line["event"] in ("start", "fold") and line["pid"] in pids:
            for run, prompt, data in line["given"]:
                if run in kept and (kept[run].text, kept[run].data) != (prompt, data):
                    wrong.append(f"AS_EDITED: a runner was given {prompt!r} and {data} of {kept[run]}")
    return wrong


# Onlookers.


class Order:
    """The RunCompletes of a life, session by session in their order."""

    def __init__(self, life: Life) -> None:
        self.completed = life.runs
        self.of_session: dict[str, list[Completed]] = defaultdict(list)
        self.number: dict[str, int] = {}
        self.accepted_at: dict[str, float] = {}
        for each in life.completed:
            of_session = self.of_session[each.complete.session_id]
            self.number[each.complete.run_id] = len(of_session)
            of_session.append(each)
        for step in life.steps:
            for entry in step.entries:
                if entry["event"] == "accept":
                    self.accepted_at[entry["run"]] = step.at
        self.purged = sorted((each.purged_at, each.place) for each in life.completed if each.purged_at)


class _Stretch:
    """What an onlooker has heard since it was last told how everything is."""

    def __init__(self, began: float, in_flight: dict[str, list[str]], session: str | None) -> None:
        self.began = began
        self.in_flight = in_flight
        self.session = session
        self.next: dict[str, int] = {}
        self.heard: list[RunComplete] = []
        self.complete: set[str] = set()

    def hear(self, complete: RunComplete, order: Order) -> list[str]:
        """Judge a RunComplete: the ledger has it so, and it is the next of its session."""
        self.heard.append(complete)
        run, session = complete.run_id, complete.session_id
        twice = run in self.complete
        self.complete.add(run)
        if twice:
            return [f"the RunComplete of {run} comes twice"]
        found = order.completed.get(run)
        if found is None or found.complete != complete:
            return [f"{complete} is told, and the ledger has {found}"]
        if self.session not in (None, session):
            return [f"{run} is of session {session}"]
        number, expected = order.number[run], self.next.get(session)
        self.next[session] = number + 1
        if expected is not None and number != expected:
            missing = [each.complete.run_id for each in order.of_session[session][expected:number]]
            return [f"before the RunComplete of {run} those of {missing} are missing"]
        if expected is None:
            missing = [
                each.complete.run_id for each in order.of_session[session][:number] if self._owes(each, order)
            ]
            return [f"the RunCompletes of {missing} are missing, and {run} is told"] if missing else []
        return []

    def _owes(self, each: Completed, order: Order) -> bool:
        run = each.complete.run_id
        was_there = run in self.in_flight.get(each.complete.session_id, ())
        return was_there or order.accepted_at.get(run, 0.0) > self.began

    def again(self, order: Order) -> tuple[_Stretch, list[str]]:
        """Judge the same against another life."""
        made = _Stretch(self.began, self.in_flight, self.session)
        wrong = [problem for complete in self.heard for problem in made.hear(complete, order)]
        return made, wrong


class Seen(NamedTuple):
    """What an onlooker has seen, counted, and what is wrong with it."""

    wrong: list[str]
    counts: Counter[str]


def judge_onlooker(lines: Sequence[Line], session: str | None, orders: Sequence[Order]) -> Seen:
    """Judge what an onlooker has written down, in the lives of the ledger one after the other."""
    judge = _Onlooker(session, orders)
    for number, line in enumerate(lines, 1):
        judge.judge(number, line)
    if not lines or lines[-1]["kind"] != "done":
        judge.wrong.append("it never came to the end")
    return Seen(judge.wrong, judge.counts)


class _Onlooker:
    """Goes through what an onlooker has written down, line by line."""

    def __init__(self, session: str | None, orders: Sequence[Order]) -> None:
        self.wrong: list[str] = []
        self.counts: Counter[str] = Counter()
        self._session = session
        self._orders = orders
        self._branch: list[tuple[int, int, Line]] = []
        """The lines that led to where it is now, with their numbers and lives: it may have gone back."""
        self._stretch: _Stretch | None = None
        self._life = 0
        self._is_other_life = False
        """Whether nothing has been heard since the ledger was restored."""
        self._is_anew = False
        self._place: str | None = None
        """The cursor that it came with last."""
        self._number = 0

    def judge(self, number: int, line: Line) -> None:
        """Judge a line."""
        self._number = number
        match line["kind"]:
            case "done":
                self.counts["came to the end"] += 1
            case "refused":
                self._blame(f"refused: {line['why']}")
            case "life":
                self._life, self._is_other_life = self._life + 1, True
            case "anew":
                self.counts["streams"] += 1
                self._branch, self._stretch, self._place = [], None, None
                self._is_anew, self._is_other_life = True, False
            case "from":
                self._go_back(line["lines"])
            case _:
                self._hear(line)

    def _blame(self, *problems: str) -> None:
        self.wrong += [f"line {self._number}: {problem}" for problem in problems]

    @property
    def _order(self) -> Order:
        return self._orders[self._life]

    def _go_back(self, lines: int) -> None:
        """Go on where it was after this number of lines."""
        self.counts["streams"] += 1
        self.counts["reconnections with a cursor"] += 1
        if self._branch and self._branch[-1][0] > lines:
            self.counts["reconnections from further back"] += 1
            while self._branch and self._branch[-1][0] > lines:
                self._branch.pop()
            self._stretch = self._rebuilt()
        if self._branch:
            _, life, last = self._branch[-1]
            self._place, self._is_other_life = last["cursor"], life != self._life

    def _rebuilt(self) -> _Stretch | None:
        """Build the stretch from the lines that led here."""
        made: _Stretch | None = None
        for _, _, line in self._branch:
            if line["kind"] == "snapshot" and (made is None or line["reset"]):
                made = _Stretch(line["wall"], line["in_flight"], self._session)
            elif line["kind"] == "complete" and made is not None:
                made.hear(RunComplete(*line["complete"]), self._order)
        return made

    def _hear(self, line: Line) -> None:
        kind = line["kind"]
        begins = kind == "snapshot" and (line["reset"] or self._stretch is None)
        if self._is_other_life and kind != "gap" and not begins:
            self._is_other_life = False
            if self._stretch is not None:
                self._stretch, found = self._stretch.again(self._order)
                self._blame(*(f"after a restore: {problem}" for problem in found))
                self.counts["went on after a restore"] += 1
        self._branch.append((self._number, self._life, line))
        if kind == "gap":
            self.counts["gaps"] += 1
        elif kind == "snapshot":
            self._see(line, begins=begins)
        elif self._stretch is None:
            self._blame(f"{kind} comes before a snapshot")
        elif kind == "complete":
            self.counts["RunCompletes heard"] += 1
            self._blame(*self._stretch.hear(RunComplete(*line["complete"]), self._order))
        elif line["run"] in self._stretch.complete:
            self._blame(f"LAST_WORD: {line['what']} of {line['run']}, which is complete")
        self._place = line["cursor"] or self._place

    def _see(self, line: Line, *, begins: bool) -> None:
        """Judge a snapshot."""
        if line["reset"]:
            self.counts["begun again after a purge or a restore"] += 1
            if self._is_anew:
                self._blame("a reset, and there was no cursor")
            elif not self._is_other_life and not _is_justified(self._place, line, self._order):
                self._blame(f"a reset behind {self._place}, and no purge has passed it")
        self._is_anew = False
        if begins:
            self._stretch = _Stretch(line["wall"], line["in_flight"], self._session)
            self._is_other_life = False
        elif self._stretch is not None:
            ended = {run for runs in line["in_flight"].values() for run in runs} & self._stretch.complete
            self._blame(*(f"{run} is complete, and in flight again" for run in sorted(ended)))


def _is_justified(place: str | None, line: Line, order: Order) -> bool:
    """Return whether a purge has passed the place of a reader when it was told to begin again."""
    cursor = None if place is None else parsed(place)
    if cursor is None:
        return False
    at = LedgerCursor.parse(cursor.completions).at
    return any(purged_at <= line["wall"] and where > at for purged_at, where in order.purged)


# Turns that overlap.


class _Span(NamedTuple):
    """When a runner ran, in which process, under which fence, and what ended it."""

    start: int
    end: int
    pid: int
    fence: int
    ended: str


def overlaps(log: Iterable[Line], ended_at: dict[int, int], frozen: frozenset[int]) -> tuple[int, list[str]]:
    """Return how many turns there were, and those that ran at the same time.

    `ended_at` says when processes were killed. Turns of those in `frozen` were stopped beyond their lease.
    """
    told = [*log]
    # One that killed itself was found dead only later.
    ended = ended_at | {line["pid"]: line["at"] for line in told if line["event"] == "dies"}
    began: dict[tuple[int, str, int], int] = {}
    turns: dict[str, list[_Span]] = defaultdict(list)
    for line in told:
        if line["event"] == "start":
            began[line["pid"], line["session"], line["fence"]] = line["at"]
        elif line["event"] == "stop":
            key = line["pid"], line["session"], line["fence"]
            turns[line["session"]].append(_Span(began.pop(key), line["at"], key[0], key[2], "stopped"))
    for (pid, session, fence), at in began.items():
        turns[session].append(_Span(at, ended[pid], pid, fence, "died"))
    wrong = []
    for session, spans in turns.items():
        for one, other in pairwise(sorted(span for span in spans if span.pid not in frozen)):
            if other.start < one.end:
                by = (one.end - other.start) / 1e6
                wrong.append(f"ONE_TURN: turns of {session} overlap by {by:.1f} ms: {one} and {other}")
    return sum(map(len, turns.values())), wrong


def read(path: Any) -> list[Line]:
    """Return the lines of a log."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
