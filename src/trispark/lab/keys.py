"""SSH keys of one lab: a client key, a host key for each node, known_hosts. Made once, removed by `lab down`."""

from __future__ import annotations

import hashlib
from pathlib import Path

from trispark.lab.files import write_atomic
from trispark.lab.layout import FUSE, Layout
from trispark.lab.programs import run

HOST_KEY = "ssh_host_ed25519_key"
SHARE_KEY, SHARE_AUTHORIZED, SHARE_KNOWN = "share_key", "share_authorized_keys", "share_known_hosts"
"""Of a lab whose checkpoint is shared over FUSE: the workers' key, who may read on the head, and how it is known."""
KEYGEN_DEADLINE_S = 30


def ensure_keys(directory: Path, layout: Layout) -> str:
    """Make what is missing below `directory`; returns a hash over all public keys, which the nodes carry.

    Layout: id_ed25519(.pub), known_hosts, and for each node a directory NODE/ with its host key and authorized_keys,
    which is mounted into the node. Raises TS-LAB-KEYS.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    client = _key(directory / "id_ed25519", "trispark-lab")
    known, publics = [], [client]
    for node in layout.nodes:
        home = directory / node.name
        home.mkdir(exist_ok=True)
        home.chmod(0o700)
        host = _key(home / HOST_KEY, node.name)
        write_atomic(home / "authorized_keys", client + "\n", mode=0o644)
        kind, value = host.split()[:2]
        known.append(f"[{node.loopback}]:{node.ssh_port} {kind} {value}")
        publics.append(host)
    write_atomic(directory / "known_hosts", "\n".join(known) + "\n", mode=0o644)
    publics += _share_keys(directory, layout)
    return hashlib.sha256("\n".join(publics).encode()).hexdigest()[:16]


def _share_keys(directory: Path, layout: Layout) -> list[str]:
    """Make them, or take them away where nothing is shared; their public keys."""
    homes = {node: directory / node.name for node in layout.nodes}
    if layout.share != FUSE:
        for home in homes.values():
            for name in (SHARE_KEY, f"{SHARE_KEY}.pub", SHARE_AUTHORIZED, SHARE_KNOWN):
                (home / name).unlink(missing_ok=True)
        return []
    head, *workers = layout.nodes
    kind, value = (homes[head] / f"{HOST_KEY}.pub").read_text(encoding="utf-8").split()[:2]
    publics = [_key(homes[worker] / SHARE_KEY, f"trispark-share-{worker.name}") for worker in workers]
    write_atomic(homes[head] / SHARE_AUTHORIZED, "".join(f"restrict {public}\n" for public in publics), mode=0o644)
    addresses = [head.address, *(link.local for link in head.links)]
    known = "".join(f"{address} {kind} {value}\n" for address in addresses)
    for worker in workers:
        write_atomic(homes[worker] / SHARE_KNOWN, known, mode=0o644)
    return publics


def _key(path: Path, comment: str) -> str:
    """Public key of the pair at `path`, made when either half is missing; the private half is renamed last."""
    public = path.with_name(path.name + ".pub")
    if not (path.is_file() and public.is_file()):
        work = path.with_name(path.name + ".partial")
        for leftover in (path, public, work, work.with_name(work.name + ".pub")):
            leftover.unlink(missing_ok=True)
        run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(work)],
            "TS-LAB-KEYS",
            "ssh-keygen did not make a key of the lab",
            timeout_s=KEYGEN_DEADLINE_S,
        )
        work.with_name(work.name + ".pub").replace(public)
        work.replace(path)
    return public.read_text(encoding="utf-8").strip()
