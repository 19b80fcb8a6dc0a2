"""Which rows of an Engram table a rank owns, and the store that reads them: packed, or from the checkpoint.

A packed shard is found by layer, rank and number of ranks; its header must name exactly the rows that the engine owns.
No shard, or a file system without direct reads, means the checkpoint, two reads a row, which the gates refuse by
`packed=False`. A shard that is there and does not fit is an error: it would serve other rows.
Facts: field 2.3 to 2.9.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engram_store import Code, Options, Rows, RowStore, StoreError
from trispark_adapters.engram_tables import find_table
from trispark_hooks.registry import HookError

LAYERS: Final = 2
"""Engram layers of the model, which share the cache's budget."""
MAGIC: Final = 0x31344E4531565344
NOT_PACKED: Final = (Code.OPEN, Code.NO_DIRECT)


@dataclass(frozen=True)
class Placement:
    """Rows [first, end) of the `total` of a layer's table belong to rank `rank` of `world`."""

    layer: int
    rank: int
    world: int
    first: int
    end: int
    total: int

    @property
    def file(self) -> str:
        """Name of the packed shard."""
        return f"engram-l{self.layer}-r{self.rank}of{self.world}.bin"

    @property
    def rows(self) -> Rows:
        return Rows(self.layer, self.first, self.end, self.total)

    @property
    def even(self) -> tuple[int, int]:
        """[first, end) under the equal split, which SGLang up to 0.5.22 uses."""
        return self.total * self.rank // self.world, self.total * (self.rank + 1) // self.world


def layout_of(placement: Placement, bounds: Sequence[int] | None) -> str:
    """ "even" or "column": the layout by which the engine divides. HookError when it is neither.

    `bounds` are first rows of all hash columns and the total, of an engine that knows them (0.5.23).
    """
    owned = (placement.first, placement.end)
    if owned == placement.even:
        return "even"
    columns = column_range(bounds, placement.rank, placement.world) if bounds is not None else None
    if owned == columns:
        return "column"
    raise HookError(
        f"TS-ADAPTER-ENGRAM-ROWS: the engine divides the table in a way that no shard follows [where: layer "
        f"{placement.layer}, rank {placement.rank} of {placement.world}] expected: {placement.even} (even)"
        + (f" or {columns} (column)" if columns is not None else "")
        + f"; observed: {owned}; remedy: use an engine build of the table in docs/adapters.md"
    )


def column_range(bounds: Sequence[int], rank: int, world: int) -> tuple[int, int] | None:
    """[first, end) of the hash columns [C*r//T, C*(r+1)//T); None where T does not divide C."""
    columns = len(bounds) - 1
    if columns < 1 or columns % world:
        return None
    share = columns // world
    return bounds[rank * share], bounds[(rank + 1) * share]


@dataclass(frozen=True)
class Settings:
    """What the environment says of storage: DSV41_PACKED_DIR, _SOURCE, _CACHE_GIB, _CACHE_WAYS, _IO_THREADS, NNODES."""

    packed_dir: Path
    source: Path | None
    cache_gib: float
    ways: int
    threads: int
    nodes: int

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "Settings":
        """HookError TS-ADAPTER-ENGRAM-SETTING names the variable that is wrong."""
        return cls(
            packed_dir=Path(environ.get("DSV41_PACKED_DIR", "") or "/engram"),
            source=Path(environ["DSV41_SOURCE"]) if environ.get("DSV41_SOURCE") else None,
            cache_gib=_number(environ, "DSV41_CACHE_GIB", 4, 0, 64),
            ways=int(_number(environ, "DSV41_CACHE_WAYS", 4, 1, 16, whole=True)),
            threads=int(_number(environ, "DSV41_IO_THREADS", 96, 1, 256, whole=True)),
            nodes=int(_number(environ, "NNODES", 1, 1, 1024, whole=True)),
        )

    def options(self, world: int) -> Options:
        """Of one layer's store: the budget of a host is shared by its ranks and by the layers."""
        ranks = max(world // self.nodes, 1)
        budget = int(self.cache_gib * 2**30) // (LAYERS * ranks)
        return Options(threads=self.threads, ways=self.ways, cache_bytes=budget)


def _number(
    environ: Mapping[str, str], name: str, default: float, low: float, high: float, whole: bool = False
) -> float:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        value = float(int(text) if whole else float(text))
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise HookError(
            f"TS-ADAPTER-ENGRAM-SETTING: a setting of the Engram store is out of range [where: environment] expected: "
            f"{name} from {low:g} to {high:g}; observed: {name}={text!r}; remedy: correct it"
        )
    return value


@dataclass(frozen=True)
class Opened:
    """A store and whether it reads the packed shard; `why` it does not, else empty."""

    store: RowStore
    packed: bool
    why: str


def open_rows(placement: Placement, layout: str, settings: Settings) -> Opened:
    """The packed shard, else the checkpoint. HookError, StoreError: a shard that does not fit, or neither is there."""
    options = settings.options(placement.world)
    path = settings.packed_dir / placement.file
    try:
        return Opened(RowStore.open_packed(path, placement.rows, options), True, "")
    except StoreError as error:
        if error.code == Code.HEADER:
            raise _header_error(path, placement, layout, error) from error
        if error.code not in NOT_PACKED:
            raise
        why = str(error)
    if settings.source is None:
        raise HookError(
            f"TS-ADAPTER-ENGRAM-SOURCE: rows of layer {placement.layer} are nowhere [where: {path}] expected: a packed "
            f"shard, or the checkpoint in DSV41_SOURCE; observed: {why}; remedy: ./trispark engram pack"
        )
    table = find_table(settings.source, placement.layer, placement.total)
    store = RowStore.open_checkpoint(
        table.path, table.weight_at, table.scale_at, placement.rows, options, allow_buffered=True
    )
    return Opened(store, False, why)


def _header_error(path: Path, placement: Placement, layout: str, error: StoreError) -> HookError:
    header = path.open("rb").read(48)
    fields = struct.unpack("<6Q", header) if len(header) == 48 else (0,) * 6
    other = "column" if layout == "even" else "even"
    known = fields[0] == MAGIC and fields[1] == placement.layer and fields[4] == placement.total
    rows = (fields[2], fields[3])
    if known and (rows == placement.even) != (layout == "even") and rows != (placement.first, placement.end):
        what = f"a shard of the other layout ({other})"
    else:
        what = "a shard that does not fit"
    return HookError(
        f"TS-ADAPTER-ENGRAM-LAYOUT: {what} [where: {path}] expected: layer {placement.layer}, rows "
        f"[{placement.first},{placement.end}) of {placement.total}, layout {layout}; observed: layer {fields[1]}, rows "
        f"[{rows[0]},{rows[1]}) of {fields[4]} ({error.id}); remedy: set site_engram_layout to {layout}, then "
        "./trispark engram pack --repair"
    )
