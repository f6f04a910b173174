"""A plug-in of pytest for `tools/mutants.py`: what a process reaches counts for the test that started it."""

from __future__ import annotations

import base64
import json
import os

import pytest

CONFIG = "COVERAGE_PROCESS_CONFIG"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell processes that are started from here on which test they are part of."""
    if CONFIG in os.environ:
        config = json.loads(base64.b64decode(os.environ[CONFIG]))
        config["context"] = f"{item.nodeid}|process"
        os.environ[CONFIG] = base64.b64encode(json.dumps(config).encode()).decode()
