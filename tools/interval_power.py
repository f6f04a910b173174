"""Measures the judge of intervals: what it finds of wrong histories, and how fast it judges right ones.

python tools/interval_power.py            measure, which takes minutes, and print the tables
python tools/interval_power.py --write    write them into the verification report
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from interval_histories import WRONG, WRONG_REMOTELY, Lines, Spoil, outside, recorded, remote, widened
from turngate_verify.intervals import JudgedHistory, judge_files
from verification_report import here, write

BEGIN, END = "<!-- begin interval figures -->\n", "<!-- end interval figures -->"
WIDTHS = (0.0, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0)
LATENCIES = (0.01, 0.1, 0.3, 1.0, 3.0)
CALLERS = (2, 8, 16)
HISTORIES = 10
LIMIT = 3_000
"""The most configurations of one segment."""


def judged(lines: Lines) -> JudgedHistory:
    """Judge a history, without a search for the smallest part that shows a breach."""
    return judge_files([("", [json.dumps(line) for line in lines])], limit=LIMIT, shrink=False, tell=False)


def power(
    wrong: Sequence[Spoil], make: Callable[[int, float, Spoil], Lines | None], at: Sequence[float]
) -> Iterator[str]:
    """Yield a row for each way to be wrong: how many histories are found, at each width or latency."""
    for spoil in wrong:
        cells = []
        for each in at:
            histories = [lines for seed in range(HISTORIES) if (lines := make(seed, each, spoil))]
            verdicts = Counter(judged(lines).verdict for lines in histories)
            unknown = f" ({verdicts['unknown']} unknown)" if verdicts["unknown"] else ""
            cells.append(f"{verdicts['violated']} of {len(histories)}{unknown}")
        what = (spoil.__doc__ or "").rstrip(".")
        print(what, cells, flush=True)
        yield f"| {what} | {' | '.join(cells)} |"


def near(seed: int, width: float, spoil: Spoil) -> Lines | None:
    """Return a wrong history whose lines are widened."""
    lines = spoil(recorded(seed, callers=8, prompts=5), random.Random(seed))
    return None if lines is None else widened(outside(lines), width, seed)


def far(seed: int, latency: float, spoil: Spoil) -> Lines | None:
    """Return a wrong history of callers over a network."""
    return spoil(remote(seed, callers=8, prompts=5, latency=latency), random.Random(seed))


def speed() -> Iterator[str]:
    """Yield a row for each number of callers: events per second of CPU time, of right histories."""
    for callers in CALLERS:
        cells = []
        for width in WIDTHS:
            events, spent, verdicts = 0, 0.0, Counter[str]()
            for seed in range(4):
                lines = recorded(seed, callers=callers, prompts=max(2, 64 // callers))
                wide = widened(outside(lines), width, seed)
                began = time.process_time()
                found = judged(wide)
                spent += time.process_time() - began
                events += found.events
                verdicts[found.verdict] += 1
            if verdicts["violated"]:
                raise SystemExit(f"accused a right history: {callers} callers, width {width:g}")
            unknown = f" ({verdicts['unknown']} of 4 unknown)" if verdicts["unknown"] else ""
            cells.append(f"{events / spent:,.0f}{unknown}")
        print(callers, cells, flush=True)
        yield f"| {callers} | {' | '.join(cells)} |"


def table(head: str, at: Sequence[float], rows: Iterator[str]) -> str:
    """Return a table."""
    columns = " | ".join(f"{each:g}" for each in at)
    return "\n".join([f"| {head} | {columns} |", "| --- |" + " --- |" * len(at), *rows]) + "\n"


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    stand = here()
    text = "\n".join(
        [
            f"{stand['when']}, commit `{stand['commit']}`, {stand['machine']}.",
            "",
            table("wrong, by width in events", WIDTHS, power(WRONG, near, WIDTHS)),
            table("wrong, by latency in turns", LATENCIES, power(WRONG_REMOTELY, far, LATENCIES)),
            table("right, by callers: events per second of CPU time, by width", WIDTHS, speed()),
        ]
    )
    if asked.write:
        write(BEGIN, text, END)
    else:
        print(text)


if __name__ == "__main__":
    main()
