"""Rows of the fault matrix, and a fleet that serves before each fault."""

from __future__ import annotations

from typing import Any

import pytest
from fault_lab import Matrix, boot_of, engines, front, running


@pytest.fixture(scope="session")
def matrix(lab: Any) -> Matrix:
    """Written to .trispark/lab/faults.json."""
    return Matrix(lab.root / ".trispark" / "lab" / "faults.json")


@pytest.fixture
def ready(known: Any) -> Any:
    """The lab, serving its last good generation; brought there by the verb that an operator would use."""
    states = engines(known)
    boots = {boot_of(state) for state in states.values() if running(state)}
    left = [name for name in known.nodes if known.node(name, "ls", "/var/lib/trispark/rollback.json", check=False)]
    if len(boots) != 1 or not all(running(state) for state in states.values()) or left:
        done = front(known, "rollback")
        assert done.rc == 0, done.output[-3000:]
    return known
