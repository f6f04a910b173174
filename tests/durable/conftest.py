"""What concerns the tests on ledgers: the PostgreSQL that they start is gone when they are over."""

from __future__ import annotations

import postgres


def pytest_sessionfinish() -> None:
    if postgres.cluster.cache_info().currsize:
        postgres.cluster().remove()
