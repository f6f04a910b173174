"""Plays the test vectors of Turngate on a dispatcher in any language that speaks the JSON lines of the port.

    python turngate_vectors.py minimal.jsonl -- node my-dispatcher.mjs

Prints each difference. The exit code is 0 if there is none, 1 if there is one, 2 if the vectors, the command
or its answers are unusable, and 3 if the dispatcher has the features of no vector. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

VERSION = 1
TAKING_IN = ("accept", "interrupt", "reject")

Event = dict[str, Any]
Ask = Callable[..., dict[str, Any]]
"""Asks a question, `ask("accept", session="s1", run="a")`, and returns the answer."""


class Unusable(Exception):
    """The vectors, the command or its answers cannot be used."""


class Difference(NamedTuple):
    """Where a dispatcher shows what a vector does not allow."""

    program: str
    nth: int
    may: list[list[Event]]
    shown: list[Event]

    def __str__(self) -> str:
        return (
            f"{self.program}\n  after operation {self.nth + 1} may be seen: "
            + " or ".join(json.dumps(each) for each in self.may)
            + f"\n  is seen: {json.dumps(self.shown)}"
        )


def read(path: str) -> list[dict[str, Any]]:
    """Return the vectors of a file that `turngate vectors` has written."""
    try:
        with open(path, encoding="utf-8") as file:
            heading, *vectors = map(json.loads, file)
    except (OSError, ValueError) as wrong:
        raise Unusable(f"{path} has no vectors: {wrong}") from None
    if not isinstance(heading, dict) or heading.get("vectors") != VERSION:
        raise Unusable(f"{path} does not begin with a heading of vectors, version {VERSION}")
    return vectors


def can_play(features: Sequence[str], vector: dict[str, Any]) -> bool:
    """Return whether a dispatcher has every feature that a vector needs."""
    return set(vector["needs"]) <= set(features)


def play(ask: Ask, features: Sequence[str], vector: dict[str, Any]) -> Difference | None:
    """Play a vector on a fresh dispatcher; return the first difference, or None."""
    ask("reset")
    for nth, step in enumerate(vector["steps"]):
        question = {key: value for key, value in step.items() if key not in ("op", "may")}
        shown = ask(step["op"], **question)["events"]
        enters = step["op"] in TAKING_IN and "two_phase" in features and "two_phase" not in vector["needs"]
        if enters and all(event["event"] != "refused" for event in shown):
            shown = shown + ask("enter", run=step["run"])["events"]
        unasked = ("given",) if "messages" in vector["needs"] else ("given", "wrote")
        shown = [event for event in shown if event["event"] not in unasked]
        if not any(_is_seen(should, shown) for should in step["may"]):
            return Difference(vector["program"], nth, step["may"], shown)
    return None


def _play_all(ask: Ask, vectors: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Difference]]:
    """Return the vectors that the dispatcher can play, and where it differs."""
    features = ask("hello", port=1).get("features", [])
    if "real_time" in features:
        raise Unusable("vectors need a dispatcher that comes to rest; turngate conform takes real_time")
    playable = [each for each in vectors if can_play(features, each)]
    return playable, [found for each in playable if (found := play(ask, features, each))]


def _is_seen(should: list[Event], shown: list[Event]) -> bool:
    """Return whether these are the same events in the same order; an event may have other keys as well."""
    return len(should) == len(shown) and all(
        expected.items() <= event.items() for expected, event in zip(should, shown, strict=True)
    )


@contextmanager
def started(command: Sequence[str], patience: float = 60.0) -> Iterator[Ask]:
    """Start a command that speaks JSON lines; give a function that asks it, and end it afterwards."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
    except OSError as wrong:
        raise Unusable(f"{command[0]} cannot be started: {wrong.strerror}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    into, out = process.stdin, process.stdout
    asked = 0

    def ask(op: str, **arguments: Any) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        limit = threading.Timer(patience, process.kill)
        limit.start()
        try:
            into.write(json.dumps({"id": asked, "op": op, **arguments}) + "\n")
            into.flush()
            line = out.readline()
        except BrokenPipeError:
            line = ""
        finally:
            limit.cancel()
        if not line:
            raise Unusable(f"the command ended, or did not answer {op} within {patience:g} s")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict) or answer.get("id") != asked:
            raise Unusable(f"the answer to {op} is not JSON with the id {asked}: {line.strip()[:200]!r}")
        if op != "hello" and not _are_events(answer.get("events")):
            raise Unusable(f"the answer to {op} has no list of events: {line.strip()[:200]!r}")
        return answer

    try:
        yield ask
    finally:
        process.kill()
        process.wait()
        with suppress(BrokenPipeError):  # what it has not read
            into.close()
        out.close()


def _are_events(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, dict) and "event" in each for each in value)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play the vectors of a file on a command, and print the differences."""
    parser = argparse.ArgumentParser(
        prog="turngate-vectors", description="Play test vectors on a dispatcher."
    )
    parser.add_argument("vectors", help="a file that `turngate vectors` has written")
    parser.add_argument(
        "command", nargs="+", help="after --: a dispatcher that speaks the JSON lines of the port"
    )
    options = parser.parse_args(arguments)
    try:
        vectors = read(options.vectors)
        with started(options.command) as ask:
            playable, differences = _play_all(ask, vectors)
    except Unusable as wrong:
        print(f"turngate-vectors: {wrong}", file=sys.stderr)
        return 2
    for difference in differences:
        print(difference)
    print(f"{len(playable)} of {len(vectors)} vectors played, {len(differences)} with a difference")
    return 1 if differences else 0 if playable else 3


if __name__ == "__main__":
    sys.exit(main())
