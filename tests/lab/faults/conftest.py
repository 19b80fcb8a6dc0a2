"""Rows of the fault matrix, and the fleet that each fault finds.

A start of the fleet is most of the time here. So the tests are put in an order in which one that begins with a fleet in
any state follows one that leaves it stopped; which one that is makes no difference to what either shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_lab import Matrix, boot_of, engines, front, running

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "leaves_stopped: the fleet does not serve after it (tests/lab/faults)")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of what is to run, from a fleet that serves first what leaves it stopped; then all that need no fleet and start
    none; then one that starts it again."""
    places = [place for place, item in enumerate(items) if item.path.parent == HERE and "matrix" in fixtures(item)]
    left = [items[place] for place in places]
    serves, ordered = True, []
    while left:
        wanted = min(left, key=lambda item: _rank(item, serves))
        left.remove(wanted)
        ordered.append(wanted)
        serves = not _stops(wanted)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


def fixtures(item: pytest.Item) -> list[str]:
    return list(getattr(item, "fixturenames", ()))


def _needs(item: pytest.Item) -> bool:
    return "ready" in fixtures(item)


def _stops(item: pytest.Item) -> bool:
    return item.get_closest_marker("leaves_stopped") is not None


def _rank(item: pytest.Item, serves: bool) -> int:
    """What comes first: 0. Of equals the first of the file."""
    if serves:
        return 0 if _needs(item) and _stops(item) else 1 if _needs(item) else 2
    return 0 if not _needs(item) and _stops(item) else 1 if not _needs(item) else 2


@pytest.fixture(scope="session")
def matrix(lab: Any) -> Iterator[Matrix]:
    """Written to .trispark/lab/faults.json."""
    found = Matrix(lab.root / ".trispark" / "lab" / "faults.json")
    yield found
    if found.unserved:
        roll_back(lab, found)


def roll_back(lab: Any, matrix: Matrix) -> None:
    done = front(lab, "rollback")
    assert done.rc == 0, done.output[-3000:]
    matrix.served(lab)


@pytest.fixture
def ready(known: Any, matrix: Matrix) -> Any:
    """The lab, serving its last good generation; brought there by the verb that an operator would use."""
    states = engines(known)
    boots = {boot_of(state) for state in states.values() if running(state)}
    left = [name for name in known.nodes if known.node(name, "ls", "/var/lib/trispark/rollback.json", check=False)]
    if len(boots) != 1 or not all(running(state) for state in states.values()) or left or matrix.unserved:
        roll_back(known, matrix)
    return known


@pytest.fixture
def stopped(known: Any) -> Any:
    """The lab without an engine."""
    if any(engines(known).values()):
        done = front(known, "play", "stop")
        assert done.rc == 0, done.output[-2000:]
    return known
