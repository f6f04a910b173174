"""Known-bad designs of the line, built into the real dispatcher, are found by the rules."""

from __future__ import annotations

import pytest

from turngate_model import LINE_DESIGNS
from turngate_verify.cli.verify import look_for
from turngate_verify.drivers.line_sabotage import LINE_SABOTAGES

QUICK = {
    "hold-flag-consumed", "hold-poisons-new", "held-escapes-cancel", "stop-in-two", "edit-after-start",
}  # fmt: skip


def test_every_design_is_built_in() -> None:
    assert list(LINE_SABOTAGES) == list(LINE_DESIGNS)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.deep) for name in LINE_DESIGNS],
)
def test_the_rules_find_it(name: str) -> None:
    rules = look_for(name, seed=0)
    assert rules.violation is not None
    assert rules.violation.property in LINE_SABOTAGES[name].breaks
