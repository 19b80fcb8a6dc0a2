"""The manifest beside a shard, `<name>.manifest.json`: what the shard was when it was written, and what it was made of.

One JSON object in canonical form with a line end. Written after the shard is durable, in one step; so a shard without a
manifest is one whose packing was cut off between the two, or one of another tool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trispark_node import VERSION, native_library, native_pack, ownership
from trispark_node.canonical import canonical_json
from trispark_node.engram_tables import Table
from trispark_node.errors import AgentError
from trispark_node.fields import NOTHING, Fields
from trispark_node.plain_json import parse_json
from trispark_node.shard_format import Shard

FORMAT_VERSION = 1
PACKED, ADOPTED = "packed", "adopted"
MAX_BYTES = 4 * 2**20
"""A manifest of 4 TB of rows; more is not read."""
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Origin:
    """What a rank's shard is made of and for: everything in its manifest that is known before a byte of it is read.

    `revision` is what the site declares, None when it declares nothing; `config_sha256` None without a config.json.
    """

    shard: Shard
    table: Table
    layout: str
    config_sha256: str | None
    revision: str | None

    def facts(self) -> dict[str, Any]:
        """The part of the manifest that follows from this."""
        return {
            "format_version": FORMAT_VERSION,
            "file": self.shard.name,
            "header": self.shard.fields(),
            "size": self.shard.size,
            "chunk_bytes": native_pack.CHUNK_BYTES,
            "source": {
                "file": self.table.path.name,
                "size": self.table.size,
                "weight_offset": self.table.weight_offset,
                "scale_offset": self.table.scale_offset,
            },
            "checkpoint": {"config_sha256": self.config_sha256, "revision": self.revision},
            "ownership": {
                "layout": self.layout,
                "version": ownership.VERSIONS[self.layout],
                "rank": self.shard.rank,
                "tp": self.shard.tp,
            },
        }


@dataclass(frozen=True)
class Manifest:
    """A manifest that is whole in itself: right types, as many chunks as the size has, and their hash."""

    values: Mapping[str, Any]

    @property
    def origin(self) -> str:
        return str(self.values["origin"])

    @property
    def chunks(self) -> tuple[str, ...]:
        return tuple(self.values["chunks"])

    def content(self) -> bytes:
        return canonical_json(self.values) + b"\n"

    def difference(self, expected: Origin) -> str | None:
        """What it says otherwise than the shard's place, the checkpoint and the site; None when nothing."""
        facts = expected.facts()
        if expected.revision is None:  # declared by nobody: what was declared earlier says nothing against it
            facts["checkpoint"]["revision"] = self.values["checkpoint"].get("revision")
        for part, wanted in facts.items():
            found = self.values[part]
            if found == wanted:
                continue
            if isinstance(wanted, dict):
                key = next(key for key in wanted if found.get(key) != wanted[key])
                return f"{part}.{key} is {found.get(key)}, not {wanted[key]}"
            return f"{part} is {found}, not {wanted}"
        return None


def make(origin: Origin, chunks: tuple[str, ...], how: str) -> Manifest:
    """`how`: PACKED or ADOPTED."""
    packer = {"agent": VERSION, "library": native_library.taken().sha256}
    return Manifest({**origin.facts(), "chunks": list(chunks), "whole": whole(chunks), "packer": packer, "origin": how})


def whole(chunks: tuple[str, ...]) -> str:
    """BLAKE3 of the chunks' hashes, 32 bytes each, one after the other."""
    return native_pack.blake3(bytes.fromhex("".join(chunks)))


def parse(content: bytes) -> Manifest:
    """Raises ValueError for anything but a whole manifest of this format in its canonical form."""
    try:
        values = parse_json(content)
    except ValueError as error:
        raise ValueError(f"it is no JSON object: {error}") from None
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    manifest = Manifest(values)
    # One form alone: no name twice, no NaN, nothing that another reader would take otherwise.
    if manifest.content() != content:
        raise ValueError("it is not in canonical form")
    try:
        _check(Fields(values, "manifest"))
    except AgentError as error:
        raise ValueError(_said(error)) from None
    if len(manifest.chunks) != -(-values["size"] // values["chunk_bytes"]):
        raise ValueError(f"{len(manifest.chunks)} chunks for {values['size']} bytes")
    if values["whole"] != whole(manifest.chunks):
        raise ValueError("whole is not the hash of its chunks")
    return manifest


def _said(error: AgentError) -> str:
    """A refusal of `Fields`, for who has a file before him and sent no request."""
    key = error.where.partition(".")[2]
    if error.observed == NOTHING:
        return f"it lacks the key {key}"
    return f"{key or 'it'} has the wrong form: expected {error.expected}, found {error.observed}"


def _check(fields: Fields) -> None:
    version = fields.integer("format_version")
    if version != FORMAT_VERSION:
        raise ValueError(f"format {version}, this agent reads {FORMAT_VERSION}")
    fields.text("file")
    fields.integer("size", low=1)
    fields.integer("chunk_bytes", low=1)
    fields.text("whole", pattern=_HEX)
    fields.text("origin", pattern=re.compile(f"{PACKED}|{ADOPTED}"))
    for digest in fields.texts("chunks"):
        if _HEX.fullmatch(digest) is None:
            raise ValueError("a chunk's hash is not 64 hexadecimal digits")
    _numbers(fields.inner("header"), "magic", "layer", "first_row", "end_row", "total_rows", "row_bytes")
    source = fields.inner("source")
    source.text("file")
    _numbers(source, "size", "weight_offset", "scale_offset")
    checkpoint = fields.inner("checkpoint")
    checkpoint.optional_text("config_sha256", pattern=_HEX)
    checkpoint.optional_text("revision")
    checkpoint.done()
    layout = fields.inner("ownership")
    layout.text("layout")
    _numbers(layout, "version", "rank", "tp")
    packer = fields.inner("packer")
    packer.text("agent")
    packer.text("library")
    packer.done()
    fields.done()


def _numbers(fields: Fields, *names: str) -> None:
    for name in names:
        fields.integer(name)
    fields.done()
