"""Writes a shard and its manifest: at any moment the name has its old content or the whole new one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from trispark_node import engram_tables, native_pack, shard_manifest
from trispark_node.disk import Disk
from trispark_node.errors import AgentError
from trispark_node.layout import SHARED_FILE_MODE
from trispark_node.regular_file import open_regular
from trispark_node.shard_check import THREADS, Work, hashes, manifest_path, partial_path
from trispark_node.shard_manifest import Origin


def pack(disk: Disk, directory: Path, origin: Origin, work: Work) -> None:
    """Write `<name>.partial`, sync it, put it in place, then its manifest.

    An old manifest stays until the new one replaces it: with none, a shard that is wrong outside its sample would be
    taken for one of another tool. Raises OSError; TS-ENGRAM-CHECKPOINT when the checkpoint ends early.
    """
    shard = origin.shard
    path = directory / shard.name
    partial = partial_path(path)
    disk.remove_file(partial)
    descriptor = disk.create(partial, SHARED_FILE_MODE)
    try:
        outcome = native_pack.pack(
            origin.table.source,
            shard.header(),
            shard.first_row,
            shard.end_row,
            descriptor,
            threads=THREADS,
            limit_bytes_s=work.limit,
            progress=work.progress(shard.name, "pack"),
        )
        disk.sync_file(descriptor, partial)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except native_pack.ShortRead as short:
        disk.remove_file(partial)
        raise engram_tables.unusable(origin.table.path, "every row of the table", str(short)) from short
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            disk.remove_file(partial)  # it would keep the space from everyone else
        if error.filename is None:
            raise OSError(error.errno, error.strerror, str(partial)) from error
        raise
    finally:
        os.close(descriptor)
    disk.rename(partial, path)
    _write_manifest(disk, path, origin, outcome.chunk_hashes, shard_manifest.PACKED)


def adopt(disk: Disk, directory: Path, origin: Origin, work: Work) -> None:
    """Hash a shard that has no manifest, whose rows were sampled before, and give it one that says so."""
    path = directory / origin.shard.name
    descriptor = open_regular(path, os.O_NOFOLLOW)
    try:
        chunks = hashes(descriptor, origin, work)
        os.fsync(descriptor)  # whoever wrote it may not have
    except native_pack.ShortRead as short:
        raise AgentError(
            "TS-ENGRAM-CHANGED",
            "a shard was changed or replaced while it was looked at",
            where=str(path),
            expected=f"{origin.shard.size} bytes",
            observed=str(short),
            remedy="see what writes there, then run the verb again",
        ) from short
    finally:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    _write_manifest(disk, path, origin, chunks, shard_manifest.ADOPTED)


def _write_manifest(disk: Disk, path: Path, origin: Origin, chunks: tuple[str, ...], how: str) -> None:
    disk.replace(manifest_path(path), shard_manifest.make(origin, chunks, how).content(), SHARED_FILE_MODE)
