"""Known-bad designs of the limbs, each put into the real client, feed or ledger, are found."""

from __future__ import annotations

import importlib.util

import pytest

from turngate_model import LIMB_DESIGNS
from turngate_verify.drivers.limb_sabotage import LIMB_SABOTAGES, find_limb_sabotage
from turngate_verify.ledger_judge import property_named


def test_every_design_is_built_in() -> None:
    assert list(LIMB_SABOTAGES) == list(LIMB_DESIGNS)


@pytest.mark.parametrize("name", LIMB_DESIGNS)
def test_its_check_finds_it_and_accuses_nothing_else(name: str) -> None:
    found = find_limb_sabotage(name)
    if importlib.util.find_spec("httpx2") is None and found.lacking:
        pytest.skip(found.lacking)  # on the other Pythons of make matrix, which do not have the client
    assert found.lacking == ""
    assert found.without == []
    assert property_named(found.within[0]) in LIMB_DESIGNS[name].breaks
