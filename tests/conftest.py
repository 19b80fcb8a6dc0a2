"""For all tests: hypothesis gives the same examples every time, and a busy machine fails no example for being slow.

Tests run in several processes. There is one lab on a machine, so all tests that use it stay in one process and begin
first, for they take longest; of the others each file stays together with its fixtures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

settings.register_profile(
    "trispark", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("trispark")

# Before anything imports NumPy: several ranks share few cores, and products that spread over all of them wait for each
# other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


LAB_DIRECTORIES = ("tests/lab/", "tests/molecule/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(LAB_DIRECTORIES))


class FilesAndOneLab(LoadScopeScheduling):
    """Hands out tests by file, and all that use the lab as one."""

    def _split_scope(self, nodeid: str) -> str:
        return "lab" if nodeid.startswith(LAB_DIRECTORIES) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)  # breakages are run without plugins
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesAndOneLab:
    return FilesAndOneLab(config, log)


@pytest.fixture(autouse=True)
def umask_of_the_suite() -> Iterator[None]:
    """Programs set the umask of their process; called in a test, they would set it for the tests that follow."""
    before = os.umask(0o022)
    yield
    os.umask(before)
