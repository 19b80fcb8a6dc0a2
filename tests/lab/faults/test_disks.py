"""Faults of disks and shards: full, read-only, forbidden; truncated, swapped and changed shards.

A full or read-only file system is a small one in memory that is mounted over the directory, with the same content.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fault_lab import (
    BOOT,
    ROLLBACK,
    SERVING,
    STATE,
    Matrix,
    current,
    front,
    require_serving,
    require_stopped,
    running,
    shell,
)

pytestmark = pytest.mark.lab
NODE = "spark1"
SHARDS = "/srv/engram"


@contextmanager
def small_disk(lab: Any, directory: str, extra_kib: int = 64) -> Iterator[None]:
    """`directory` on a file system of its own that has only `extra_kib` left; its content is kept, also afterwards."""
    shell(
        lab,
        NODE,
        f"size=$(du -sk {directory} | cut -f1); mkdir -p /run/kept; cp -a {directory}/. /run/kept/; "
        f"mount -t tmpfs -o size=$((size + size / 4 + {extra_kib} + 1024))k tmpfs {directory}; "
        f"cp -a /run/kept/. {directory}/; rm -rf /run/kept",
    )
    try:
        yield
    finally:
        shell(
            lab,
            NODE,
            f"rm -f {directory}/filler; mkdir -p /run/kept; cp -a {directory}/. /run/kept/; umount -l {directory}; "
            f"cp -a /run/kept/. {directory}/; rm -rf /run/kept",
        )


def fill(lab: Any, directory: str) -> None:
    shell(lab, NODE, f"dd if=/dev/zero of={directory}/filler bs=4k 2>/dev/null || true; sync")
    assert shell(lab, NODE, f"df --output=avail {directory} | tail -n 1").strip() == "0"


def test_the_disk_of_the_state_is_full(ready: Any, matrix: Matrix) -> None:
    """Generations, journal, epoch and link: the reserve makes room for a rollback."""
    promised = "stopped, repointed and recorded as far as there is room, from the reserve; the target serves"
    with matrix.row(
        "disk full on generation store", "no byte free below /var/lib/trispark of rank 1", SERVING, promised
    ) as row:
        with small_disk(ready, STATE):
            fill(ready, STATE)
            ran = front(ready, "rollback")
            assert "stopped and repointed on all nodes" in ran.output, ran.output[-2500:]
            assert all(running(ready.inspect(name)) for name in ready.nodes), ran.output[-2500:]
            row.seconds = ran.seconds
            said = "and it is said that the record did not reach the node" if ran.rc else "and its record found room"
            row.observed = f"stopped and repointed from the reserve, the target serves, {said}"
            assert ran.rc == 0 or "TS-" in ran.output
        assert front(ready, "rollback").rc == 0
        require_serving(ready)


def test_the_disk_of_the_records_is_full(ready: Any, matrix: Matrix) -> None:
    promised = "the target serves; that the record did not reach the node is said; it gets it with the next boot"
    with matrix.row("disk full on records", "no byte free in records/ of rank 1", ROLLBACK, promised) as row:
        with small_disk(ready, f"{STATE}/records", extra_kib=0):
            fill(ready, f"{STATE}/records")
            ran = front(ready, "rollback")
            assert ran.rc != 0
            assert "TS-RECORD-APPEND" in ran.output, ran.output[-2500:]
            assert all(running(ready.inspect(name)) for name in ready.nodes)
        again = front(ready, "rollback")
        assert again.rc == 0, again.output[-2000:]
        require_serving(ready)
        chains = {name: ready.node(name, "ls", f"{STATE}/records") for name in ready.nodes}
        assert len(set(chains.values())) == 1, "the node has every record again"
        row.seconds = ran.seconds
        row.observed = "TS-RECORD-APPEND names the node, the target serves; the next boot gave it the record"


def test_the_disk_of_the_shards_is_full(ready: Any, matrix: Matrix) -> None:
    promised = "packing is refused before it writes, with the room that lacks; a rollback needs no room there"
    with matrix.row(
        "disk full on shards", "no byte free in the shards' directory of rank 1, one shard gone", BOOT, promised
    ) as row:
        shard = shell(ready, NODE, f"ls {SHARDS} | grep -v manifest | head -n 1").strip()
        with small_disk(ready, SHARDS, extra_kib=0):
            shell(ready, NODE, f"mv {SHARDS}/{shard} /run/aside-shard")
            fill(ready, SHARDS)
            ran = front(ready, "play", "shards")
            assert ran.rc != 0
            assert "TS-ENGRAM-DISK" in ran.output or "TS-ENGRAM-SPACE" in ran.output, ran.output[-2000:]
            shell(ready, NODE, f"rm {SHARDS}/filler; mv /run/aside-shard {SHARDS}/{shard}")
            fill(ready, SHARDS)
            assert front(ready, "rollback").rc == 0
        require_serving(ready)
        row.observed = "packing refused by name, nothing written; the rollback served on the full disk"
        # The engine has the shards of the small disk open: it is started anew on the node's own.
        assert front(ready, "rollback").rc == 0


def test_the_file_system_is_read_only(ready: Any, matrix: Matrix) -> None:
    promised = "every engine is stopped, the node is named and nothing serves; writable again, the same rollback serves"
    with matrix.row("read-only file system", "/var/lib/trispark of rank 1 mounted read-only", SERVING, promised) as row:
        with small_disk(ready, STATE):
            shell(ready, NODE, f"mount -o remount,ro {STATE}")
            try:
                ran = front(ready, "rollback")
            finally:
                shell(ready, NODE, f"mount -o remount,rw {STATE}")
            assert ran.rc != 0
            assert NODE in ran.output
            for name in ready.nodes:
                assert not running(ready.inspect(name)), f"{name} is stopped"
            row.seconds = ran.seconds
            row.observed = f"{ran.rollback['state']}: {ran.rollback['nodes'][NODE][:90]}; nothing runs"
            again = front(ready, "rollback")
            assert again.rc == 0, again.output[-2000:]
        require_serving(ready)


def test_the_right_to_be_root_is_gone(ready: Any, matrix: Matrix) -> None:
    promised = "the node is named with what lacks; the others are stopped and repointed"
    with matrix.row("permission denied", "sudo of Ansible's user taken away on rank 1", SERVING, promised) as row:
        shell(ready, NODE, "mv /etc/sudoers.d/trispark /run/sudoers-aside")
        try:
            ran = front(ready, "rollback")
            assert ran.rc != 0
            assert ran.rollback["state"] in ("DEGRADED", "FAILED")
            assert NODE in ran.output
            require_stopped(ready, "spark0", "spark2")
            row.seconds = ran.seconds
            row.observed = f"{ran.rollback['state']} after {ran.seconds:.1f} s: {ran.rollback['nodes'][NODE][:90]}"
        finally:
            shell(ready, NODE, "mv /run/sudoers-aside /etc/sudoers.d/trispark")
        again = front(ready, "rollback")
        assert again.rc == 0, again.output[-2000:]
        require_serving(ready)


def the_shards(lab: Any) -> list[str]:
    return shell(lab, NODE, f"ls {SHARDS} | grep -v manifest").split()


@pytest.mark.parametrize(
    ("fault", "injected", "script"),
    [
        ("truncated shard", "the last 1000 bytes of a shard of rank 1 gone", "truncate -s -1000 {first}"),
        (
            "swapped shard",
            "the two shards of rank 1 under each other's names",
            "mv {first} x; mv {second} {first}; mv x {second}",
        ),
        (
            "changed shard",
            "one byte of a shard of rank 1 changed",
            "printf '\\377' | dd of={first} bs=1 seek=4200 conv=notrunc 2>/dev/null",
        ),
    ],
)
def test_a_shard_is_not_what_was_packed(ready: Any, matrix: Matrix, fault: str, injected: str, script: str) -> None:
    promised = "no engine starts with it: the shard is named; repaired, the same rollback serves"
    with matrix.row(fault, injected, ROLLBACK, promised) as row:
        first, second = the_shards(ready)[:2]
        shell(ready, NODE, f"mkdir -p /run/shards && cp -a {SHARDS}/. /run/shards/")
        shell(ready, NODE, f"cd {SHARDS} && {script.format(first=first, second=second)}")
        try:
            ran = front(ready, "rollback")
            drift = front(ready, "status").said["nodes"][NODE]["drift"]
            assert ran.rc != 0, ran.output[-2000:]
            assert "TS-ENGRAM" in ran.output, ran.output[-2000:]
            assert {current(ready, name) for name in ready.nodes} == {ran.rollback["generation"]}
            require_stopped(ready, *ready.nodes)
            named = next(word for word in ran.output.split() if word.startswith("TS-ENGRAM")).strip(":;,")
            row.observed = f"{named}, nothing runs; status: {'drift' if drift else 'no drift'}"
            row.seconds = ran.seconds
        finally:
            shell(ready, NODE, f"cp -a /run/shards/. {SHARDS}/ && rm -r /run/shards")
        again = front(ready, "rollback")
        assert again.rc == 0, again.output[-2000:]
        require_serving(ready)
