"""Whether a rank's shards are still those that its manifests describe, by sizes, headers and times alone.

Cheap enough for each look at a node; `engram verify` reads rows. Nothing of the checkpoint is touched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from trispark_node import engine_drift, engram_place, shard_check, shard_format
from trispark_node.plain_json import parse_json
from trispark_node.regular_file import open_regular, read_bounded
from trispark_node.shard_manifest import MAX_BYTES
from trispark_node.spec import DIRECTORY_TOKENS, Spec


def differences(procfs: Path, spec: Spec, layers: Sequence[int]) -> list[dict[str, str]]:
    """[{"what", "expected", "observed"}] for the shards of this rank; empty when nothing differs."""
    sources = [
        Path(mount.source)
        for mount in spec.container.mounts
        if mount.read_only and not mount.source.startswith(DIRECTORY_TOKENS)
    ]
    # The shards lie on the node itself; a network file system may not answer.
    local = [path for path in sources if engram_place.network(procfs, path, 0) is None]
    directories = [path for path in local or sources if path.is_dir()]
    if not directories:
        return []
    return [found for layer in layers for found in _of_layer(directories, spec, layer)]


def _of_layer(directories: Sequence[Path], spec: Spec, layer: int) -> Iterator[dict[str, str]]:
    name = f"engram-l{layer}-r{spec.rank}of{spec.world_size}.bin"
    paths = [path for path in (directory / name for directory in directories) if path.exists()]
    if not paths:
        yield engine_drift.item(f"shard {name}", "present", f"absent in {', '.join(map(str, directories))}")
        return
    path = paths[0]
    difference = _difference(path)
    if difference is not None:
        yield engine_drift.item(f"shard {path}", *difference)


def _difference(path: Path) -> tuple[str, str] | None:
    """(expected, observed) of the first difference from its manifest; None when there is none."""
    place = shard_check.manifest_path(path)
    try:
        manifest = parse_json(read_bounded(place, MAX_BYTES))
        size, header = int(manifest["size"]), dict(manifest["header"])
        written = place.stat().st_mtime_ns
    except FileNotFoundError:
        return "a manifest beside it", "none"
    except (OSError, ValueError, TypeError, KeyError) as error:
        return "a manifest that can be read", " ".join(str(error).split()) or type(error).__name__
    descriptor = open_regular(path, os.O_NOFOLLOW)
    try:
        facts = os.fstat(descriptor)
        start = os.pread(descriptor, shard_format.HEADER_BYTES, 0)
    finally:
        os.close(descriptor)
    if facts.st_size != size:
        return f"{size} bytes, by its manifest", f"{facts.st_size} bytes"
    if len(start) < shard_format.HEADER_BYTES or shard_format.fields_of(start) != header:
        return "the header of its manifest", "another one"
    # The manifest is written last.
    if facts.st_mtime_ns > written:
        return "not changed after its manifest was written", "changed later"
    return None
