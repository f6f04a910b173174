"""The pytest plugin, as pytest finds it: it does nothing in a run that does not use the conformance kit.

It is loaded into every pytest run of an environment that Turngate is installed
in, so it is a package of its own and imports neither the kit, nor what the kit
needs, nor the dispatcher, whose coverage a user may be about to measure.
"""

from __future__ import annotations

import sys
from typing import Any


def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> Any:
    """Collect an adapter as one test per property, in a module that has imported the kit."""
    kit = sys.modules.get("turngate_verify.conform")
    return None if kit is None else kit.collect(collector, name, obj)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Report for each subject what its tests tried and what they did not."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    said = {
        value: None
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "turngate conform"
    }
    if said:
        terminalreporter.section("turngate conform")
    for line in said:
        terminalreporter.line(line)
