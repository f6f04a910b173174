"""The lines of a recording: one JSON object each, checked for everything that one line alone can show."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from turngate_model.lifecycle import DeclaredState

COMMANDS = ("cancel", "clear", "hold", "resume")
"""The kinds of lines that are about a session, or about some of its runs."""
KINDS = (
    *("accept", "enter", "fold", "handoff", *COMMANDS, "move", "edit"),
    *("complete", "end"),
)
_ENTERED = {
    state.value: state
    for state in (DeclaredState.CANCEL_ON_ENTRY, DeclaredState.QUEUED, DeclaredState.ACTIVE)
}


class BadRecording(Exception):
    """A line that is not an event, or is about something unknown. Names the line."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(f"line {line}: {what}")
        self.line = line
        self.what = what


class RecordedLine(NamedTuple):
    """What one line says. A field that its kind does not have is empty."""

    kind: str
    session: str = ""
    run: str = ""
    state: DeclaredState | None = None
    beside: str = ""
    """The other run that the line names: ``into`` of an accept or a fold, ``before`` of a move."""
    runs: tuple[str, ...] | None = None
    """The runs that a command names; None if it is about the whole session."""
    cancelled: bool = False
    error: str | None = None


def read_line(line: str | bytes, number: int) -> RecordedLine:
    """Return what a line says. Raise BadRecording if it is no event, or lacks something."""
    return _Reading(_parsed(line, number), number).read()


class _Reading:
    """Reads one record."""

    def __init__(self, record: dict[str, Any], number: int) -> None:
        self._record = record
        self._number = number

    def read(self) -> RecordedLine:
        kind = self._record["event"]
        match kind:
            case "accept":
                return RecordedLine(
                    kind, self._name("session"), self._name("run"), beside=self._optional("into")
                )
            case "enter":
                return RecordedLine(kind, self._session(), self._name("run"), self._state())
            case "fold":
                return RecordedLine(kind, self._session(), self._name("run"), beside=self._name("into"))
            case "handoff" | "edit":
                return RecordedLine(kind, self._session(), self._name("run"))
            case "move":
                return RecordedLine(kind, self._session(), self._name("run"), beside=self._optional("before"))
            case "complete":
                return self._complete()
            case "end":
                return RecordedLine(kind)
            case _ if kind in COMMANDS:
                return self._command(kind)
            case _:
                raise self._bad(f"unknown event {kind!r}; there are {', '.join(KINDS)}")

    def _complete(self) -> RecordedLine:
        run = self._name("run")
        cancelled, error = self._record.get("cancelled"), self._record.get("error")
        if not isinstance(cancelled, bool):
            raise self._bad("complete needs cancelled: true or false")
        if error is not None and not isinstance(error, str):
            raise self._bad("error must be a string, or left out")
        return RecordedLine("complete", self._session(), run, cancelled=cancelled, error=error)

    def _command(self, kind: str) -> RecordedLine:
        runs = self._record.get("runs")
        if runs is not None and not (isinstance(runs, list) and all(isinstance(run, str) for run in runs)):
            raise self._bad(f"runs of a {kind} must be a list of run ids")
        nameless = runs and kind in ("hold", "resume") and "session" not in self._record
        session = "" if nameless else self._name("session")
        return RecordedLine(kind, session, runs=None if runs is None else tuple(runs))

    def _session(self) -> str:
        """Return the session of a line that need not name it, because its run does; empty without it."""
        session = self._record.get("session")
        return session if isinstance(session, str) else ""

    def _name(self, key: str) -> str:
        value = self._record.get(key)
        if not isinstance(value, str) or not value:
            raise self._bad(f"{self._record['event']} needs {key}: a string that is not empty")
        return value

    def _optional(self, key: str) -> str:
        return "" if self._record.get(key) is None else self._name(key)

    def _state(self) -> DeclaredState:
        state = self._record.get("state")
        if not isinstance(state, str) or state not in _ENTERED:
            raise self._bad(f"enter needs a state: one of {', '.join(_ENTERED)}")
        return _ENTERED[state]

    def _bad(self, what: str) -> BadRecording:
        return BadRecording(self._number, what)


def _parsed(line: str | bytes, number: int) -> dict[str, Any]:
    try:
        text = line if isinstance(line, str) else line.decode("utf-8-sig" if number == 1 else "utf-8")
        record = _DECODER.decode(text)
    except json.JSONDecodeError as wrong:
        raise BadRecording(number, f"not JSON ({wrong.msg}, at character {wrong.pos + 1})") from None
    except (ValueError, RecursionError) as wrong:
        raise BadRecording(number, f"not JSON ({wrong})") from None
    if not isinstance(record, dict) or not isinstance(record.get("event"), str):
        raise BadRecording(number, 'not an object with the key "event"')
    return record


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Refuse one that has a key twice, because it is unclear which value was meant."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return made


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
"""Made once, because making it takes longer than reading a line."""
