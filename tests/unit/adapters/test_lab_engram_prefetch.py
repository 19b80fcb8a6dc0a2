import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from trispark.logparse import lines_matching
from trispark_hooks.lab_engram_prefetch import Prefetch
from trispark_lab import engram
from trispark_lab.engram import Lookup
from trispark_lab.errors import EngramFailure

ROOT = Path(__file__).resolve().parents[3]


class Store:
    """Rows are made from ids; `fetch` says in which thread it ran, waits for `gate` and fails when told."""

    def __init__(self, layer: int) -> None:
        self.shard = SimpleNamespace(layer=layer)
        self.threads: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.failures: list[BaseException] = []
        self.twist = 0

    def fetch(self, ids: np.ndarray) -> np.ndarray:
        name = threading.current_thread().name
        self.threads.append(name)
        self.begun.set()
        assert self.gate.wait(30)
        if self.failures and name == "engram-prefetch":
            raise self.failures.pop()
        return rows_of(ids) + np.uint8(self.twist if name == "engram-prefetch" else 0)


def rows_of(ids: np.ndarray) -> np.ndarray:
    return np.repeat((ids % 251).astype(np.uint8)[:, None], 264, axis=1)


class Harness:
    def __init__(self, check: bool = False) -> None:
        self.said: list[str] = []
        self.stores = [Store(1), Store(14)]
        module: Any = SimpleNamespace(attach=engram.attach, ids_known=engram.ids_known, gather=engram.gather)
        self.time = 0.0
        self.prefetch = Prefetch(module, check, self.said.append, lambda: self.time)
        self.prefetch.attach(self.stores)  # type: ignore[arg-type]

    def lookups(self, *ids: list[int]) -> list[Lookup]:
        return [Lookup(store, np.array(each)) for store, each in zip(self.stores, ids, strict=True)]  # type: ignore[arg-type]

    def forward(self, *ids: list[int]) -> None:
        lookups = self.lookups(*ids)
        self.prefetch.ids_known(lookups)
        for lookup in lookups:
            assert np.array_equal(self.prefetch.gather(lookup), rows_of(lookup.ids))

    def counts(self) -> tuple[int, int]:
        return self.prefetch.served, self.prefetch.synchronous


MakeHarness = Callable[..., Harness]


def evidence(name: str, said: list[str]) -> bool:
    document = yaml.safe_load((ROOT / "experiments/evidence.yml").read_text(encoding="utf-8"))
    return bool(lines_matching(document["evidence"][name]["pattern"], "\n".join(said)))


def served(count: int, hidden: str = "0.000", exposed: str = "0.000") -> str:
    return f"DSV41 Engram prefetch served={count} synchronous=0 hidden_ms={hidden} exposed_ms={exposed}"


def test_reads_begin_before_they_are_gathered() -> None:
    harness = Harness()
    assert harness.said == ["DSV41 Engram prefetch ARMED: layers [1, 14], reads start when the row ids are known"]
    lookups = harness.lookups([1, 2], [3])
    harness.prefetch.ids_known(lookups)
    assert all(store.begun.wait(30) for store in harness.stores)
    assert [np.array_equal(harness.prefetch.gather(each), rows_of(each.ids)) for each in lookups] == [True, True]
    assert [store.threads for store in harness.stores] == [["engram-prefetch"]] * 2
    assert harness.counts() == (2, 0)


def test_gather_waits_for_its_read() -> None:
    harness = Harness()
    (lookup, _) = lookups = harness.lookups([5], [6])
    harness.stores[0].gate.clear()
    harness.prefetch.ids_known(lookups)
    assert harness.stores[0].begun.wait(30)
    threading.Timer(0.05, harness.stores[0].gate.set).start()
    assert np.array_equal(harness.prefetch.gather(lookup), rows_of(lookup.ids))
    assert harness.stores[0].threads == ["engram-prefetch"]


@pytest.mark.parametrize("other", [[1, 3], [1], [2, 1]])
def test_other_ids_are_read_synchronously(other: list[int]) -> None:
    harness = Harness()
    harness.prefetch.ids_known(harness.lookups([1, 2], [3]))
    wanted = harness.lookups(other, [3])[0]
    assert np.array_equal(harness.prefetch.gather(wanted), rows_of(wanted.ids))
    assert harness.counts() == (0, 1)
    harness.forward([7], [8])  # and it goes on
    assert harness.counts() == (2, 1)


def test_rows_of_the_forward_before_are_never_used() -> None:
    harness = Harness()
    harness.prefetch.ids_known(harness.lookups([1], [2]))
    harness.prefetch.ids_known([])
    lookup = harness.lookups([1], [2])[0]
    assert np.array_equal(harness.prefetch.gather(lookup), rows_of(lookup.ids))
    assert harness.counts() == (0, 1)


@pytest.mark.parametrize("error", [OSError("no more"), EngramFailure("short read of x"), MemoryError()])
def test_an_error_disables_it_visibly_and_the_rows_stay_right(error: BaseException) -> None:
    harness = Harness()
    harness.forward([1], [2])
    harness.stores[0].failures = [error]
    harness.forward([3], [4])
    harness.forward([5], [6])
    assert harness.counts() == (2, 4)
    disabled = [line for line in harness.said if "disabled after error" in line]
    assert disabled == [f"DSV41 Engram prefetch disabled after error: {type(error).__name__}: {error}"]
    assert evidence("prefetch.disabled", harness.said)
    assert not evidence("prefetch.disabled", harness.said[:1])


def test_an_error_of_the_disk_still_ends_the_rank() -> None:
    harness = Harness()

    def broken(ids: np.ndarray) -> np.ndarray:
        raise EngramFailure("short read of x")

    harness.stores[0].fetch = broken  # type: ignore[method-assign]
    lookups = harness.lookups([1], [2])
    harness.prefetch.ids_known(lookups)
    with pytest.raises(EngramFailure):
        harness.prefetch.gather(lookups[0])


def test_check_compares_and_counts() -> None:
    harness = Harness(check=True)
    assert harness.said[0].endswith(", CHECK")
    tail = "CHECK: gathers differing from the synchronous path per layer ="
    assert harness.prefetch.lines(True)[1] == f"DSV41 Engram prefetch {tail} [-1, -1]"
    harness.forward([1], [2])
    lines = harness.prefetch.lines(False)
    assert lines == [served(2), f"DSV41 Engram prefetch {tail} [0, 0]"]
    assert evidence("prefetch.served", lines)
    assert not evidence("prefetch.differs", lines)
    harness.stores[1].twist = 1
    lookups = harness.lookups([3], [4])
    harness.prefetch.ids_known(lookups)
    for lookup in lookups:
        harness.prefetch.gather(lookup)
    lines = harness.prefetch.lines(False)
    assert lines[1] == f"DSV41 Engram prefetch {tail} [0, 1]"
    assert evidence("prefetch.differs", lines)


@pytest.mark.parametrize(
    ("counts", "differs"),
    [("[-1, -1]", False), ("[0, 0]", False), ("[1, 0]", True), ("[0, 12]", True), ("[-1, 3]", True), ("[10, 0]", True)],
)
def test_the_check_line_is_read_right(counts: str, differs: bool) -> None:
    line = f"[t TP0 EP0] DSV41 Engram prefetch CHECK: gathers differing from the synchronous path per layer = {counts}"
    assert evidence("prefetch.differs", [line]) is differs


def test_lines_are_deltas_and_zero_is_no_evidence() -> None:
    harness = Harness()
    assert harness.prefetch.lines(False) == []
    harness.forward([1], [2])
    assert harness.prefetch.lines(False) == [served(2)]
    final = harness.prefetch.lines(True)
    assert final == [served(0)]
    assert not evidence("prefetch.served", final)


def read_of(harness: Harness, layer: int) -> Any:
    return harness.prefetch._pending[layer]


def test_a_read_that_is_over_before_its_join_is_hidden_and_nothing_of_it_exposed() -> None:
    harness = Harness()
    harness.time = 10.0
    harness.stores[0].gate.clear()
    lookups = harness.lookups([1], [2])
    harness.prefetch.ids_known(lookups)
    assert harness.stores[0].begun.wait(30)
    harness.time = 13.0
    reads = [read_of(harness, 1), read_of(harness, 14)]
    harness.stores[0].gate.set()
    assert all(read.done.wait(30) for read in reads)
    harness.time = 20.0
    for lookup in lookups:
        harness.prefetch.gather(lookup)
    assert harness.prefetch.lines(False) == [served(2, hidden="3000.000")]
    assert harness.prefetch.lines(True) == [served(0)], "times are those since the line before"


def test_what_a_gather_waits_is_exposed_and_only_the_rest_hidden() -> None:
    harness = Harness()
    harness.time = 30.0
    harness.stores[0].gate.clear()
    lookups = harness.lookups([1], [2])
    harness.prefetch.ids_known(lookups)
    assert harness.stores[0].begun.wait(30)

    class Opening(threading.Event):
        """The read ends four seconds after it began, while the gather waits."""

        def wait(self, timeout: float | None = None) -> bool:
            harness.time = 34.0
            harness.stores[0].gate.set()
            return super().wait(timeout)

    read_of(harness, 1).done = Opening()
    harness.time = 32.0
    harness.prefetch.gather(lookups[0])
    assert (harness.prefetch.hidden_s, harness.prefetch.exposed_s) == (2.0, 2.0)


def test_a_read_that_failed_hid_nothing() -> None:
    harness = Harness()
    harness.stores[0].failures = [OSError("no more")]
    harness.forward([3], [4])
    assert harness.prefetch.hidden_s == 0.0
