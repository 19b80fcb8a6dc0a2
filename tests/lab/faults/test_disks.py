"""Faults of disks and shards: full, read-only, forbidden; truncated, swapped and changed shards.

A full or read-only file system is a small one in memory that is mounted over the directory, with the same content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from textwrap import shorten
from typing import Any

import pytest
from fault_lab import (
    BOOT,
    ROLLBACK,
    SERVING,
    STATE,
    Matrix,
    boot_of,
    current,
    front,
    require_stopped,
    running,
    shell,
)

pytestmark = pytest.mark.lab
NODE, OTHER = "spark1", "spark2"
SHARDS = "/srv/engram"


@contextmanager
def small_disk(lab: Any, directory: str, extra_kib: int = 64, node: str = NODE) -> Iterator[None]:
    """`directory` on a file system of its own that has only `extra_kib` left; its content is kept, also afterwards."""
    shell(
        lab,
        node,
        f"size=$(du -sk {directory} | cut -f1); mkdir -p /run/kept; cp -a {directory}/. /run/kept/; "
        f"mount -t tmpfs -o size=$((size + size / 4 + {extra_kib} + 1024))k tmpfs {directory}; "
        f"cp -a /run/kept/. {directory}/; rm -rf /run/kept",
    )
    try:
        yield
    finally:
        shell(
            lab,
            node,
            f"rm -f {directory}/filler; mkdir -p /run/kept; cp -a {directory}/. /run/kept/; umount -l {directory}; "
            f"cp -a /run/kept/. {directory}/; rm -rf /run/kept",
        )


def fill(lab: Any, directory: str, node: str = NODE) -> None:
    shell(lab, node, f"dd if=/dev/zero of={directory}/filler bs=4k 2>/dev/null || true; sync")
    assert shell(lab, node, f"df --output=avail {directory} | tail -n 1").strip() == "0"


def test_the_disks_of_the_state_and_of_the_records_are_full(ready: Any, matrix: Matrix) -> None:
    """On two nodes at once. Generations, journal, epoch and link: the reserve makes room for a rollback."""
    state = "stopped, repointed and recorded as far as there is room, from the reserve; the target serves"
    records = "the target serves; that the record did not reach the node is said; it gets it with the next boot"
    injected = ("no byte free below /var/lib/trispark of rank 2", "no byte free in records/ of rank 1")
    with (
        matrix.row("disk full on generation store", injected[0], SERVING, state) as stored,
        matrix.row("disk full on records", injected[1], SERVING, records, mended=True) as recorded,
    ):
        with (
            small_disk(ready, STATE, node=OTHER),
            small_disk(ready, f"{STATE}/records", extra_kib=0),
        ):
            fill(ready, STATE, OTHER)
            fill(ready, f"{STATE}/records")
            ran = front(ready, "rollback")
            assert "stopped and repointed on all nodes" in ran.output, ran.output[-2500:]
            assert ran.rc != 0
            assert "TS-RECORD-APPEND" in ran.output, ran.output[-2500:]
            assert NODE in ran.output
            assert all(running(ready.inspect(name)) for name in ready.nodes), ran.output[-2500:]
        kept = {name: set(ready.node(name, "ls", f"{STATE}/records").split()) for name in ready.nodes}
        assert kept[NODE] < kept["spark0"], "it lacks the record"
        stored.seconds = recorded.seconds = ran.seconds
        room = "its record found room" if kept[OTHER] == kept["spark0"] else "the record did not reach the node"
        stored.observed = f"stopped and repointed from the reserve, the target serves, {room}"
        recorded.observed = "TS-RECORD-APPEND names the node, the target serves; every node has every record later"


def test_the_disk_of_the_shards_is_full(known: Any, matrix: Matrix) -> None:
    promised = "packing is refused before it writes, with the room that lacks; a rollback needs no room there"
    with matrix.row(
        "disk full on shards", "no byte free in the shards' directory of rank 1, one shard gone", BOOT, promised
    ) as row:
        shard = shell(known, NODE, f"ls {SHARDS} | grep -v manifest | head -n 1").strip()
        with small_disk(known, SHARDS, extra_kib=0):
            shell(known, NODE, f"mv {SHARDS}/{shard} /run/aside-shard")
            fill(known, SHARDS)
            ran = front(known, "play", "shards")
            assert ran.rc != 0
            assert "TS-ENGRAM-DISK" in ran.output or "TS-ENGRAM-SPACE" in ran.output, ran.output[-2000:]
            shell(known, NODE, f"rm {SHARDS}/filler; mv /run/aside-shard {SHARDS}/{shard}")
            fill(known, SHARDS)
            assert front(known, "rollback").rc == 0
            matrix.served(known)
        row.observed = "packing refused by name, nothing written; the rollback served on the full disk"


@pytest.mark.leaves_stopped
def test_one_file_system_is_read_only_and_one_docker_engine_is_gone(ready: Any, matrix: Matrix) -> None:
    """On two nodes at once, so that each has to be told from the other."""
    read_only = "the node is named, its engine is stopped and nothing serves; writable again, the same rollback serves"
    gone = "that node is named, nothing is called stopped that is not proven; the others are stopped"
    injected = (f"{STATE} of rank 1 mounted read-only", "the Engine's socket taken away on rank 2")
    with (
        matrix.row("read-only file system", injected[0], SERVING, read_only, mended=True) as row,
        matrix.row("Docker Engine stopped", injected[1], SERVING, gone, mended=True) as docker_gone,
        small_disk(ready, STATE),
    ):
        before = boot_of(ready.inspect(OTHER))
        shell(ready, NODE, f"mount -o remount,ro {STATE}")
        shell(ready, OTHER, "mv /run/docker.sock /run/docker.sock.away")
        try:
            ran = front(ready, "rollback")
        finally:
            shell(ready, OTHER, "mv /run/docker.sock.away /run/docker.sock")
            shell(ready, NODE, f"mount -o remount,rw {STATE}")
        said = ran.rollback["nodes"]
        assert ran.rc != 0
        assert ran.rollback["state"] in ("DEGRADED", "FAILED")
        assert "TS-AGENT-DOCKER" in said[OTHER], said
        assert "TS-AGENT-DOCKER" not in said[NODE], said
        assert boot_of(ready.inspect(OTHER)) == before, "nobody could touch it"
        for name in ("spark0", NODE):
            assert not running(ready.inspect(name)), f"{name} is stopped"
        row.seconds = docker_gone.seconds = ran.seconds
        row.observed = f"{ran.rollback['state']}: {shorten(said[NODE], 90, placeholder=' ...')}; its engine is stopped"
        docker_gone.observed = (
            f"{ran.rollback['state']} after {ran.seconds:.1f} s: {shorten(said[OTHER], 100, placeholder=' ...')}"
        )


SHARD_FAULTS = {
    "truncated shard": ("the last 1000 bytes of a shard of rank {rank} gone", "truncate -s -1000 {first}"),
    "swapped shard": (
        "the two shards of rank {rank} under each other's names",
        "mv {first} x; mv {second} {first}; mv x {second}",
    ),
    "changed shard": (
        "one byte of a shard of rank {rank} changed",
        "printf '\\377' | dd of={first} bs=1 seek=4200 conv=notrunc 2>/dev/null",
    ),
}


@pytest.mark.leaves_stopped
def test_no_shard_is_what_was_packed(known: Any, matrix: Matrix) -> None:
    """On each rank another fault at once, so that each has to be told from the others."""
    promised = "no engine starts with it: the shard is named; repaired, the same rollback serves"
    damage = dict(zip(SHARD_FAULTS, known.nodes, strict=True))
    with ExitStack() as stack:
        rows = {}
        for rank, fault in enumerate(SHARD_FAULTS):
            injected = f"{SHARD_FAULTS[fault][0].format(rank=rank)}, while the other ranks have another fault"
            rows[fault] = stack.enter_context(matrix.row(fault, injected, ROLLBACK, promised, mended=True))
        for fault, node in damage.items():
            first, second = shell(known, node, f"ls {SHARDS} | grep -v manifest").split()[:2]
            shell(known, node, f"mkdir -p /run/shards && cp -a {SHARDS}/. /run/shards/")
            shell(known, node, f"cd {SHARDS} && {SHARD_FAULTS[fault][1].format(first=first, second=second)}")
        try:
            ran = front(known, "rollback")
            drift = {name: node["drift"] for name, node in front(known, "status").said["nodes"].items()}
            assert ran.rc != 0, ran.output[-2000:]
            assert {current(known, name) for name in known.nodes} == {ran.rollback["generation"]}
            require_stopped(known, *known.nodes)
            named = {each["node"]: re.findall(r"TS-ENGRAM-\w+", json.dumps(each))[:1] for each in ran.said["failures"]}
            wanted = (["TS-ENGRAM-SIZE"], ["TS-ENGRAM-HEADER"], ["TS-ENGRAM-CONTENT"])
            assert named == dict(zip(known.nodes, wanted, strict=True)), ran.said["failures"]
            for fault, node in damage.items():
                rows[fault].seconds = ran.seconds
                said = "drift" if drift[node] else "no drift"
                rows[fault].observed = f"{named[node][0]} on {node}, nothing runs; status: {said}"
        finally:
            for node in damage.values():
                shell(known, node, f"cp -a /run/shards/. {SHARDS}/ && rm -r /run/shards")
