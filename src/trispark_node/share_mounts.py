"""What is mounted where on this node, who uses it, and the programs that mount and unmount the checkpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from trispark_node.errors import request_error
from trispark_node.fields import Fields

LOCAL, NFS, FUSE = "local", "nfs", "fuse"
FSTYPES = {NFS: ("nfs4", "nfs"), FUSE: ("fuse.sshfs",)}
LABEL = "trispark:"
"""Begins the source of a FUSE mount of ours in the node's mount table."""
NFS_OPTIONS = "ro,nfsvers=4.2,nconnect=8,rsize=1048576,wsize=1048576,hard,timeo=600"
"""field 1.9. `hard`: an engine that reads waits for the server instead of getting a short file."""
EXPORT_OPTIONS = "ro,sync,no_subtree_check,no_root_squash,insecure,fsid=0"
"""field 1.9. With fsid=0 a client mounts the root of what is exported; a path below it is not found (I33)."""
SSH_OPTIONS = (
    "BatchMode=yes",
    "ConnectTimeout=10",
    "GlobalKnownHostsFile=/dev/null",
    "IdentitiesOnly=yes",
    "PasswordAuthentication=no",
    "ServerAliveCountMax=3",
    "ServerAliveInterval=5",
    "StrictHostKeyChecking=yes",
)
_PLAIN = re.compile(r"/[A-Za-z0-9._+@-]+(/[A-Za-z0-9._+@-]+)*")
"""A path that needs no quoting in a mount option, an exports file or an sftp address."""
_HOST = re.compile(r"[0-9a-fA-F.:]+")
_USER = re.compile(r"[a-z_][a-z0-9_-]*")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Share:
    """How this node sees the checkpoint. `server` is the head's address as this worker reaches it, None on the head and
    where every node has a copy of its own; `clients` are the workers' addresses, on the head only."""

    kind: str
    directory: str
    server: str | None
    clients: tuple[str, ...]
    managed: bool
    user: str
    port: int
    identity_file: str
    known_hosts_file: str

    @classmethod
    def parse(cls, fields: Fields) -> Share:
        kind = fields.text("kind", pattern=re.compile(f"{LOCAL}|{NFS}|{FUSE}"))
        directory = fields.absolute_path("directory")
        if kind != LOCAL and not _PLAIN.fullmatch(directory):
            raise request_error(
                "directory has the wrong form",
                where=f"{fields.where}.directory",
                expected=f"a path like {_PLAIN.pattern}",
                observed=directory,
            )
        clients = fields.texts("clients", [])
        for client in clients:
            if not _HOST.fullmatch(client):
                raise request_error(
                    "clients has the wrong form",
                    where=f"{fields.where}.clients",
                    expected="IP addresses",
                    observed=client,
                )
        fuse = kind == FUSE
        share = cls(
            kind=kind,
            directory=directory,
            server=fields.optional_text("server", pattern=_HOST),
            clients=clients,
            managed=fields.boolean("managed", False),
            user=fields.text("user", pattern=_USER) if fuse else "",
            port=fields.integer("port", low=1, high=65535) if fuse else 0,
            identity_file=fields.text("identity_file", pattern=_PLAIN) if fuse else "",
            known_hosts_file=fields.text("known_hosts_file", pattern=_PLAIN) if fuse else "",
        )
        fields.done()
        return share

    @property
    def source(self) -> str:
        """As the mount table shows it."""
        host = f"[{self.server}]" if ":" in (self.server or "") else self.server
        return f"{host}:/" if self.kind == NFS else f"{LABEL}{self.user}@{host}:{self.directory}"

    def mount_argv(self) -> list[str]:
        if self.kind == NFS:
            return ["mount", "-t", "nfs4", "-o", NFS_OPTIONS, self.source, self.directory]
        options = [
            "ro",
            "allow_other",  # the engine's user in its container is another one
            "dir_cache=no",  # what is verified is what the head has now
            f"fsname={self.source}",
            f"port={self.port}",
            f"IdentityFile={self.identity_file}",
            f"UserKnownHostsFile={self.known_hosts_file}",
            *SSH_OPTIONS,
        ]
        remote = self.source.removeprefix(LABEL)
        return ["sshfs", "-F", "/dev/null", remote, self.directory, "-o", ",".join(options)]

    def export_text(self) -> str:
        """The file below /etc/exports.d on the head."""
        clients = " ".join(f"{client}({EXPORT_OPTIONS})" for client in self.clients)
        return f"# Written by trispark: the checkpoint for its workers.\n{self.directory} {clients}\n"


@dataclass(frozen=True)
class Mounted:
    """One line of a mount table. `private`: mounting and unmounting elsewhere does not reach it."""

    device: str
    target: str
    fstype: str
    source: str
    read_only: bool
    private: bool


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)


def parse_mounts(text: str) -> list[Mounted]:
    """/proc/PID/mountinfo, in its order: of several mounts on one place the last one is seen."""
    found = []
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not separator or len(left) < 6 or len(right) < 3:
            continue
        options = {*left[5].split(","), *right[2].split(",")}
        found.append(
            Mounted(left[2], _unescaped(left[4]), right[0], _unescaped(right[1]), "ro" in options, left[6:] == []),
        )
    return found


def mounted_at(procfs: Path, directory: str) -> Mounted | None:
    """What is mounted exactly there; read from the kernel's table alone, so that a dead server cannot hold it up."""
    text = (procfs / "self" / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    there = [mount for mount in parse_mounts(text) if mount.target == directory]
    return there[-1] if there else None


def users(procfs: Path, device: str) -> list[int]:
    """PIDs of other mount namespaces, such as containers, that hold this file system by a mount of their own.

    Services of the system have namespaces, too, in which mounts of the node come and go by themselves; those do not
    hold it, and the kernel refuses to unmount what one of them is reading.
    """
    own = _namespace(procfs / "self")
    found = []
    for entry in procfs.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if _namespace(entry) == own:
                continue
            text = (entry / "mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:  # it ended meanwhile
            continue
        if any(mount.device == device and mount.private for mount in parse_mounts(text)):
            found.append(int(entry.name))
    return sorted(found)


def _namespace(process: Path) -> str:
    return str((process / "ns" / "mnt").readlink())
