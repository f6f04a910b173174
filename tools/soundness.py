"""A campaign for soundness: the conformance kit plays on right dispatchers and must accuse none of them.

Run it with: python tools/soundness.py --executions 50000

Every right dispatcher of tests/support/flights.py and other_flights.py, behind two adapters, and of
line_flights.py, whose callers also hold, move and edit what waits, is checked with one seed after the other
until the number of executions is reached. If the kit accuses one, the tool prints the program that replays it
and exits with 1.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import flights
import line_flights
import other_flights
from turngate_verify.conform import AsyncioSubject, Conformance, Effort, check


def executions(result: Conformance) -> int:
    """Return how many programs were played: short, mid-flight, drills and random ones."""
    long = max(result.drills.values(), default=0) + max(result.examples.values(), default=0)
    return result.played + result.mid_flight.executions + long


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, and print what was played."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--executions", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=40.0, help="for one check of one dispatcher")
    parser.add_argument("--only", default="", help="dispatchers with this in their name")
    parser.add_argument("--programs", type=int, default=4000, help="short programs for one check")
    parser.add_argument("--examples", type=int, default=200, help="random programs for one check")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    asked = parser.parse_args(arguments)
    subjects: list[type[AsyncioSubject]] = [
        flights.flight(kind, adapter)
        for adapter in (flights.Flight, flights.Awaited)
        for kind in flights.RIGHT
    ]
    subjects += other_flights.RIGHT
    subjects += [line_flights.line_flight(kind) for kind in line_flights.RIGHT]
    if asked.only:
        subjects = [make for make in subjects if asked.only in make.__name__]
    if not subjects:
        parser.error(f"no right dispatcher has {asked.only!r} in its name")
    total, accused, began = 0, 0, time.monotonic()
    for seed in itertools.count(asked.seed):
        for make in subjects:
            effort = Effort(
                programs=asked.programs, examples=asked.examples, seed=seed, seconds=asked.seconds
            )
            result = check(make, make.__name__, effort=effort)
            total += executions(result)
            wrong = [
                *result.replays.items(),
                *((each, found.program) for each, found in result.flaky.items()),
            ]
            for each, program in wrong:
                accused += 1
                print(f"ACCUSED {make.__name__}: {each}: {program}", flush=True)
            if result.failed:
                accused += 1
                print(f"FAILED {make.__name__}: {result.failed.what}", flush=True)
            print(f"seed {seed} {make.__name__}: {executions(result)}, in all {total}", flush=True)
        if total >= asked.executions:
            break
    seconds = time.monotonic() - began
    print(f"{total:,} executions, {len(subjects)} subjects, {accused} accusations, {seconds:.0f} s")
    return int(accused > 0)


if __name__ == "__main__":
    sys.exit(main())
