"""For all tests: hypothesis gives the same examples every time, and a busy machine fails no example for being slow.

Tests run in several processes. There is one lab on a machine, so all tests that use it stay in one process and begin
first, for they take longest; of the others each file stays together with its fixtures.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "trispark", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("trispark")

# Before anything imports NumPy: several ranks share few cores, and products that spread over all of them wait for each
# other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not uses_lab(item))
    for item in items:
        item.add_marker(pytest.mark.xdist_group("lab" if uses_lab(item) else str(item.path)))


def uses_lab(item: pytest.Item) -> bool:
    return item.get_closest_marker("lab") is not None
