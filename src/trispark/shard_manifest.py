"""The published form of the manifest beside a packed shard; the node agent writes and reads it without this model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from trispark.plainyaml import Strict

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0)]


class ShardHeader(Strict):
    """The six fields of the shard's header."""

    magic: _Count
    layer: _Count
    first_row: _Count
    end_row: _Count
    total_rows: _Count
    row_bytes: _Count


class ShardSource(Strict):
    """The checkpoint's file; byte offsets of row 0 of the weights and of the scales in it."""

    file: str
    size: _Count
    weight_offset: _Count
    scale_offset: _Count


class ShardCheckpoint(Strict):
    """SHA-256 of config.json, null without one; the revision that the site declared, null when it declared none."""

    config_sha256: _Digest | None
    revision: str | None


class ShardPacker(Strict):
    """Version of the agent, SHA-256 of its packing library."""

    agent: str
    library: _Digest


class ShardOwnership(Strict):
    """By which layout the rows belong to this rank of `tp`."""

    layout: Literal["even", "column"]
    version: Annotated[int, Field(ge=1)]
    rank: _Count
    tp: Annotated[int, Field(ge=1)]


class ShardManifest(Strict):
    """`<name>.manifest.json`: one line of canonical JSON.

    chunks   BLAKE3 of the file's bytes, `chunk_bytes` at a time, the header included; the last chunk may be shorter
    whole    BLAKE3 of the chunks' hashes, 32 bytes each, one after the other
    origin   `packed` by this project, or `adopted`: the file was there without a manifest and was hashed later
    """

    format_version: Literal[1]
    file: str
    header: ShardHeader
    size: Annotated[int, Field(ge=1)]
    chunk_bytes: Annotated[int, Field(ge=1)]
    chunks: tuple[_Digest, ...]
    whole: _Digest
    source: ShardSource
    checkpoint: ShardCheckpoint
    packer: ShardPacker
    ownership: ShardOwnership
    origin: Literal["packed", "adopted"]

    @model_validator(mode="after")
    def _as_many_chunks_as_bytes(self) -> ShardManifest:
        if len(self.chunks) != -(-self.size // self.chunk_bytes):
            raise ValueError(f"{len(self.chunks)} chunks do not make {self.size} bytes")
        return self
