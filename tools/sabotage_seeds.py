"""Look for every sabotage with each of ten seeds, and print how many examples it took: `make sabotage`."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor

from turngate_verify.drivers.rules.search import Rules, run_rules
from turngate_verify.drivers.sabotage import EXAMPLES, SABOTAGES

SEEDS = range(10)


def look_for(name: str, seed: int) -> Rules:
    """Run the rules on one sabotage with one seed."""
    return run_rules(EXAMPLES, make=SABOTAGES[name].make, seed=seed, claimed=SABOTAGES[name].breaks)


def main() -> int:
    """Print a line for each sabotage; return 1 if one was not found with some seed."""
    escaped = 0
    print(f"{'design':20} {'found':>8} {'worst':>6} {'median':>7}  of {EXAMPLES} examples; breaks")
    with ProcessPoolExecutor() as pool:
        runs = {name: [pool.submit(look_for, name, seed) for seed in SEEDS] for name in SABOTAGES}
        for name, futures in runs.items():
            results = [future.result() for future in futures]
            properties = sorted({str(each.violation.property) for each in results if each.violation})
            found = sum(each.violation is not None for each in results)
            examples = sorted(each.examples for each in results)
            share = f"{found} of {len(SEEDS)}"
            median = examples[len(examples) // 2]
            print(f"{name:20} {share:>8} {examples[-1]:6} {median:7}  {', '.join(properties)}", flush=True)
            escaped += len(SEEDS) - found
    return 1 if escaped else 0


if __name__ == "__main__":
    sys.exit(main())
