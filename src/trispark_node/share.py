"""Verb `share`: how this node sees the checkpoint. Exported on the head, mounted read-only on a worker, compared with
what the head itself reads, and removed when nothing uses it any more.

Whatever touches the share itself runs with a bound (share_bounded): after a reboot of the head a read may never return.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trispark_node import share_bounded, share_mounts, share_read
from trispark_node.canonical import canonical_json
from trispark_node.containers import ROLE_ENGINE, own
from trispark_node.errors import AgentError, request_error
from trispark_node.fields import Fields
from trispark_node.layout import SHARED_DIRECTORY_MODE, SHARED_FILE_MODE
from trispark_node.mutation import Mode, Plan, mutate
from trispark_node.node import Node
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_regular
from trispark_node.share_mounts import FSTYPES, LOCAL, NFS, Mounted, Share

ACTIONS = ("export", "mount", "read", "verify", "withdraw", "remove")
EXPORTS = Path("/etc/exports.d/trispark-checkpoint.exports")
FOREIGN_EXPORTS = (Path("/etc/exports"), Path("/etc/exports.d"))
PROBE_S = 5.0
"""For looking whether a mount answers at all, before anything else is asked of it."""


@dataclass(frozen=True)
class ShareRequest:
    action: str
    rank: int
    share: Share
    deadline_s: float
    seed: str
    ranges: int
    reference: tuple[share_read.File, ...]

    @classmethod
    def parse(cls, fields: Fields) -> ShareRequest:
        action = fields.text("action")
        if action not in ACTIONS:
            raise request_error(
                "action has the wrong form", where="request.action", expected=", ".join(ACTIONS), observed=action
            )
        request = cls(
            action=action,
            rank=fields.integer("rank", high=1023),
            share=Share.parse(fields.inner("share")),
            deadline_s=fields.seconds("deadline_s", 60, high=3600),
            seed=fields.text("seed", "trispark"),
            ranges=fields.integer("ranges", 8, low=1, high=share_read.MAX_RANGES),
            reference=share_read.parse_files(fields.inner("reference")) if action == "verify" else (),
        )
        if request.share.kind != LOCAL and (request.share.server is None) != (request.rank == 0):
            raise request_error(
                "the server has the wrong form",
                where="request.share.server",
                expected="the head's address on a worker, none on the head",
                observed=f"{request.share.server} on rank {request.rank}",
            )
        return request

    def refuse(self, error_id: str, what: str, file: str, expected: str, observed: str, remedy: str) -> AgentError:
        """`file`: one of the share's files, empty for the whole."""
        where = f"rank {self.rank}, {self.share.directory}{f'/{file}' if file else ''}"
        return AgentError(error_id, what, where=where, expected=expected, observed=observed, remedy=remedy)


def changes(request: ShareRequest) -> bool:
    """Whether it exports, mounts or removes anything."""
    return request.action not in ("read", "verify")


def share(node: Node, request: ShareRequest, mode: Mode) -> dict[str, Any]:
    """read and verify change nothing; the others are under a lock of their own: a stop never waits for a server."""
    if request.action == "read":
        return _read(request)
    if request.action == "verify":
        return _verify(node, request)
    plans = {"export": plan_export, "mount": plan_mount, "withdraw": plan_withdraw, "remove": plan_remove}
    return mutate(node, "share", mode, lambda: plans[request.action](node, request), area="share")


def _read(request: ShareRequest) -> dict[str, Any]:
    """What the others must read, too."""
    directory = request.share.directory
    found = _bounded(request, lambda: share_read.read_all(directory, request.seed, request.ranges), head=True)
    files = share_read.parse_files(Fields(found, "read"))
    names = [file.name for file in files]
    if share_read.CONFIG not in names or not any(name.endswith(share_read.WEIGHTS) for name in names):
        raise request.refuse(
            "TS-SHARE-SOURCE",
            "the head has no checkpoint to share",
            "",
            f"{share_read.CONFIG} and files that end with {share_read.WEIGHTS}",
            ", ".join(names[:3]) or "no file of a checkpoint",
            "put the checkpoint there, or correct site_checkpoint_dir",
        )
    return {
        "changed": False,
        "files": found["files"],
        "revision": share_read.revision(files),
        "bytes": sum(file.size for file in files),
    }


def _bounded(request: ShareRequest, work: Callable[[], Any], *, head: bool = False) -> Any:
    """The result of `work` on the share, or the refusal that its failure is."""
    try:
        return share_bounded.call(work, request.deadline_s)
    except share_bounded.Late as late:
        raise request.refuse(
            "TS-SHARE-TIMEOUT",
            "reading the checkpoint has no end",
            "",
            f"an answer within {late.seconds:g} s",
            "none; the read was left to itself",
            "see that the head is up and exports; then ./trispark play stop and ./trispark play share",
        ) from late
    except OSError as error:
        said = f"{errno.errorcode.get(error.errno or 0, error.errno)}: {error.strerror}, {error.filename}"
        if head or request.share.kind == LOCAL:
            raise request.refuse(
                "TS-SHARE-SOURCE",
                "this node's copy of the checkpoint cannot be read",
                "",
                "a directory with the checkpoint's files",
                said,
                "put the checkpoint there, or correct site_checkpoint_dir",
            ) from error
        if error.errno in share_read.STALE:
            raise request.refuse(
                "TS-SHARE-STALE",
                "the share is mounted, but its server is gone or has forgotten it",
                "",
                "the checkpoint's files",
                said,
                "./trispark play stop where an engine runs, then ./trispark play share (it mounts anew)",
            ) from error
        raise request.refuse(
            "TS-SHARE-READ",
            "the share is mounted, but not readable",
            "",
            "the checkpoint's files",
            said,
            "see the file's mode and owner on the head, then ./trispark play share",
        ) from error


def _verify(node: Node, request: ShareRequest) -> dict[str, Any]:
    _require_there(node, request)
    directory = request.share.directory
    found = _bounded(request, lambda: share_read.read_again(directory, request.reference))
    listed = found.pop("listed")
    files = share_read.parse_files(Fields(found, "read"))
    difference = share_read.compare(request.reference, listed, files)
    if difference is not None:
        raise _differs(request, difference)
    return {
        "changed": False,
        "revision": share_read.revision(files),
        "files": len(files),
        "ranges": sum(len(file.ranges) for file in files),
        "bytes_read": sum(piece.length for file in files for piece in file.ranges),
    }


def _require_there(node: Node, request: ShareRequest) -> None:
    """Only the mount table is asked of a mount: what lies behind it may not answer."""
    share = request.share
    if request.rank == 0:
        return
    mount = share_mounts.mounted_at(node.procfs, share.directory)
    if share.kind == LOCAL:
        if mount is not None and _ours(node, share.directory, mount):
            raise request.refuse(
                "TS-SHARE-LEFTOVER",
                "a share is still mounted where a copy is declared",
                "",
                "a directory of this node",
                mount.source,
                "./trispark play share -e remove=true",
            )
        return
    if mount is None:
        raise request.refuse(
            "TS-SHARE-MISSING",
            "the checkpoint is not mounted",
            "",
            f"{share.source} mounted there",
            _unmounted(share.directory),
            "./trispark play share; a mount is lost with a reboot of its node, over ssh with one of the head, too",
        )
    if not _as_declared(share, mount):
        raise request.refuse(
            "TS-SHARE-EXPORT",
            "something else than the declared export is mounted",
            "",
            f"{share.source} ({FSTYPES[share.kind][0]})",
            f"{mount.source} ({mount.fstype})",
            "unmount it, or correct site_checkpoint_share; then ./trispark play share",
        )
    if not mount.read_only:
        raise request.refuse(
            "TS-SHARE-WRITABLE",
            "the checkpoint is mounted for writing",
            "",
            "a read-only mount",
            f"{mount.source} mounted rw",
            "unmount it, then ./trispark play share",
        )


def _unmounted(directory: str) -> str:
    """In words; no mount is there, so that looking cannot hang."""
    try:
        names = share_read.listing(directory)
    except FileNotFoundError:
        return "no such directory"
    except OSError as error:
        return error.strerror or str(error)
    if not names:
        return "an empty directory, as Docker makes one in place of a missing source"
    return f"a directory of this node with {len(names)} entries"


def _as_declared(share: Share, mount: Mounted) -> bool:
    return mount.source == share.source and mount.fstype in FSTYPES[share.kind]


def _differs(request: ShareRequest, difference: share_read.Difference) -> AgentError:
    local = request.share.kind == LOCAL
    file, observed = difference.where, difference.observed
    expected = f"{difference.expected}, as the head reads it"
    remedy = "copy the checkpoint of the head again" if local else "see what the head exports; ./trispark play share"
    if difference.kind == "export" and local:
        return request.refuse(
            "TS-SHARE-MISSING", "this node has no copy of the checkpoint", file, expected, observed, remedy
        )
    if difference.kind == "export":
        return request.refuse(
            "TS-SHARE-EXPORT",
            "another directory is shared, not the head's checkpoint",
            file,
            expected,
            observed,
            "see what the head exports; ./trispark play share",
        )
    if difference.kind == "revision":
        return request.refuse(
            "TS-SHARE-REVISION", "this node sees another checkpoint than the head", file, expected, observed, remedy
        )
    return request.refuse(
        "TS-SHARE-CONTENT",
        "this node reads other bytes of the checkpoint than the head",
        file,
        expected,
        observed,
        remedy,
    )


def plan_export(node: Node, request: ShareRequest) -> Plan:
    """On the head: what the workers will mount exists and, where it is ours to do, is exported to them alone."""
    share = request.share
    found = _bounded(request, lambda: share_read.CONFIG in share_read.listing(share.directory), head=True)
    if not found:
        raise request.refuse(
            "TS-SHARE-SOURCE",
            "the head has no checkpoint to share",
            "",
            share_read.CONFIG,
            "no such file",
            "put the checkpoint there, or correct site_checkpoint_dir",
        )
    if not _exports(share):
        return Plan(None, {"exported": share.kind == NFS})
    _require_server(node, request)
    _refuse_other_root(request)
    text = share.export_text()
    before = _text(EXPORTS)
    if before == text:
        return Plan(None, {"exported": True})

    def apply() -> dict[str, Any]:
        node.disk.make_directory(EXPORTS.parent, SHARED_DIRECTORY_MODE)
        node.disk.replace(EXPORTS, text.encode(), SHARED_FILE_MODE)
        _command(request, ["exportfs", "-ra"], "the export cannot be made known to the server")
        return {}

    return Plan(apply, {"exported": True}, {"exports": str(EXPORTS)}, (before, text))


def _text(path: Path) -> str:
    try:
        return read_regular(path).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _require_server(node: Node, request: ShareRequest) -> None:
    try:
        threads = (node.procfs / "fs" / "nfsd" / "threads").read_text(encoding="ascii").strip()
    except OSError:
        threads = "0"
    if threads == "0":
        raise request.refuse(
            "TS-SHARE-SERVER",
            "the head's kernel serves no NFS",
            "",
            "a running NFS server",
            "no nfsd thread",
            "install and enable nfs-kernel-server on the head; where a container serves NFS already, set managed: "
            "false and let that one export the checkpoint",
        )


def _refuse_other_root(request: ShareRequest) -> None:
    """There is one root (fsid=0) of what a kernel exports; a second one would take the first one's place."""
    files = [
        file
        for place in FOREIGN_EXPORTS
        for file in (sorted(place.glob("*.exports")) if place.is_dir() else [place])
        if file != EXPORTS
    ]
    for file in files:
        lines = [line for line in _text(file).splitlines() if not line.lstrip().startswith("#")]
        if any("fsid=0" in line or "fsid=root" in line for line in lines):
            raise request.refuse(
                "TS-SHARE-FOREIGN",
                "the head exports another root already",
                "",
                "no export with fsid=0 but ours",
                str(file),
                "take that export away, or set managed: false and export the checkpoint yourself",
            )


def plan_mount(node: Node, request: ShareRequest) -> Plan:
    share = request.share
    if share.kind == LOCAL or request.rank == 0:
        return Plan(None, {"mounted": False})
    result = {"mounted": True, "source": share.source}
    mount = share_mounts.mounted_at(node.procfs, share.directory)
    if mount is None:
        _refuse_occupied(request)
    elif not _ours(node, share.directory, mount):
        if not _as_declared(share, mount):
            raise _foreign(request, mount)
        return Plan(None, {**result, "by": "someone else"})
    elif _as_declared(share, mount) and _answers(share):
        return Plan(None, {**result, "by": "trispark"})
    else:
        _refuse_used(node, request, mount)

    def apply() -> dict[str, Any]:
        if mount is not None:
            _unmount(node, request, mount)
        _mount(node, request)
        return {"by": "trispark"}

    before = f"{share.directory} {mount.source}\n" if mount else f"{share.directory} not mounted\n"
    after = f"{share.directory} {share.source}\n"
    return Plan(apply, result, {"directory": share.directory, "source": share.source}, (before, after))


def _refuse_occupied(request: ShareRequest) -> None:
    """Files of this node would be hidden by the mount, and come back into view when it is lost."""
    directory = Path(request.share.directory)
    occupied = directory.is_symlink() or (directory.exists() and (not directory.is_dir() or any(directory.iterdir())))
    if occupied:
        raise request.refuse(
            "TS-SHARE-OCCUPIED",
            "files of this node are where the share belongs",
            "",
            "no such directory, or an empty one",
            _unmounted(request.share.directory),
            "move them away; or declare kind: local where every node has a copy",
        )


def _foreign(request: ShareRequest, mount: Mounted) -> AgentError:
    return request.refuse(
        "TS-SHARE-FOREIGN",
        "someone else mounted something where the share belongs; it is left alone",
        "",
        f"nothing, or {request.share.source}",
        f"{mount.source} ({mount.fstype})",
        "let its owner unmount it, then ./trispark play share",
    )


def _ours(node: Node, directory: str, mount: Mounted) -> bool:
    """Of this boot of the node's kernel: a mount that another one finds there is somebody else's."""
    try:
        kept = parse_json(read_regular(node.layout.share))
    except (FileNotFoundError, ValueError):
        return False
    return bool(kept == _identity(node, directory, mount))


def _identity(node: Node, directory: str, mount: Mounted) -> dict[str, Any]:
    try:
        boot = (node.procfs / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = ""
    return {"boot_id": boot, "device": mount.device, "directory": directory, "source": mount.source}


def _answers(share: Share) -> bool:
    try:
        return bool(share_bounded.call(lambda: bool(share_read.listing(share.directory)), PROBE_S))
    except (share_bounded.Late, OSError):
        return False


def _refuse_used(node: Node, request: ShareRequest, mount: Mounted) -> None:
    """An engine that has the share open would wait for it in the kernel for good (I35)."""
    engines = [container.name for container in own(node.docker, ROLE_ENGINE) if container.alive]
    pids = share_mounts.users(node.procfs, mount.device)
    if engines or pids:
        used = [*(f"container {name}" for name in engines)]
        used += [f"PIDs {', '.join(map(str, pids[:8]))}"] if pids else []
        raise request.refuse(
            "TS-SHARE-INUSE",
            "the share is in use; it stays as it is",
            "",
            "no engine, and no container that has it mounted",
            "; ".join(used),
            "./trispark play stop first; a container of someone else is its owner's to stop",
        )


def _mount(node: Node, request: ShareRequest) -> None:
    share = request.share
    node.disk.make_directory(Path(share.directory), SHARED_DIRECTORY_MODE)
    _command(request, share.mount_argv(), "the share cannot be mounted")
    mount = share_mounts.mounted_at(node.procfs, share.directory)
    if mount is None or not _as_declared(share, mount):
        raise request.refuse(
            "TS-SHARE-MOUNT",
            "the share is not mounted although its program said so",
            "",
            share.source,
            f"{mount.source} ({mount.fstype})" if mount else "nothing",
            "see the node's kernel log",
        )
    node.disk.replace(node.layout.share, canonical_json(_identity(node, share.directory, mount)) + b"\n")


def _unmount(node: Node, request: ShareRequest, mount: Mounted) -> None:
    force = ["-f"] if mount.fstype in FSTYPES[NFS] else []  # never lazily: what is still open would be out of sight
    _command(request, ["umount", *force, request.share.directory], "the share cannot be unmounted")
    node.disk.remove_file(node.layout.share)


def _command(request: ShareRequest, argv: list[str], what: str) -> None:
    try:
        ended = share_bounded.command(argv, request.deadline_s)
    except FileNotFoundError as error:
        package = {"sshfs": "sshfs", "exportfs": "nfs-kernel-server"}.get(argv[0], "mount and nfs-common")
        raise request.refuse(
            "TS-SHARE-PROGRAM",
            f"{argv[0]} is not on this node",
            "",
            f"the program of the package {package}",
            "no such program",
            f"install {package} on the node",
        ) from error
    except share_bounded.Late as late:
        raise request.refuse(
            "TS-SHARE-TIMEOUT",
            what,
            "",
            f"the end of {argv[0]} within {late.seconds:g} s",
            "none; it was killed",
            "see that the head is up and exports, then ./trispark play share",
        ) from late
    if ended.status != 0:
        raise request.refuse(
            "TS-SHARE-MOUNT",
            what,
            "",
            f"{argv[0]} to end with 0",
            f"{ended.status}: {ended.said or 'nothing said'}",
            "mend what it says, see that the head exports on that network, then ./trispark play share",
        )


def plan_remove(node: Node, request: ShareRequest) -> Plan:
    """Unmount what we mounted, on the head take back the export that we made. The directory itself stays."""
    share = request.share
    if request.rank == 0:
        return _plan_unexport(node, request)
    mount = share_mounts.mounted_at(node.procfs, share.directory)
    if mount is None:
        return Plan(None, {"mounted": False})
    if not _ours(node, share.directory, mount):
        raise _foreign(request, mount)
    _refuse_used(node, request, mount)

    def apply() -> dict[str, Any]:
        _unmount(node, request, mount)
        return {}

    before = f"{share.directory} {mount.source}\n"
    return Plan(apply, {"mounted": False}, {"directory": share.directory}, (before, f"{share.directory} not mounted\n"))


def plan_withdraw(node: Node, request: ShareRequest) -> Plan:
    """On the head: an export that we made under another declaration is taken back. After the workers have mounted what
    is declared now: a server that goes away under a mount leaves its readers waiting."""
    if request.rank != 0 or _exports(request.share):
        return Plan(None, {})
    return _plan_unexport(node, request)


def _exports(share: Share) -> bool:
    return share.kind == NFS and share.managed


def _plan_unexport(node: Node, request: ShareRequest) -> Plan:
    """Whatever is declared now: the file with our name is ours, and what it says holds until it is gone."""
    before = _text(EXPORTS)
    if not before:
        return Plan(None, {"exported": False})

    def apply() -> dict[str, Any]:
        node.disk.remove_file(EXPORTS)
        _command(request, ["exportfs", "-ra"], "the server cannot be told that the export is gone")
        return {}

    return Plan(apply, {"exported": False}, {"exports": str(EXPORTS)}, (before, ""))
