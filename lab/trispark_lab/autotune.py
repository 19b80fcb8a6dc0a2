"""Which blocking of the output head's product is quickest on this rank, timed at start, and the cache of that choice.

All variants give the same bits, since every value is a small integer; the choice moves time alone. The cache is
declared state: it lies below the state folder, one file a rank, with a sidecar that says for which launch it was made.
All ranks reuse, or all tune again. Without DSV41_AUTOTUNE_KEEP the rule is the field engine's own: the files must be
equal on all ranks, and as they hold each rank's timings, they never are. With it, they must be loadable for the same
launch.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import __version__
from .collective import Collective
from .config import EngineConfig
from .errors import EngineError

Floats = npt.NDArray[np.float32]
Log = Callable[[str], None]

VARIANTS: dict[str, tuple[int, int]] = {
    "whole": (0, 0),
    "columns512": (0, 512),
    "columns1024": (0, 1024),
    "rows256": (256, 0),
}
"""(rows, columns) of a block of the weight; 0 is all of them."""
TUNED_ROWS = (1, 8, 32)
REPEATS = 3
PER_RANK = frozenset({"dist_init_addr", "host", "port", "node_rank"})
"""Launch arguments that do not belong to the fingerprint: they differ by rank or by boot."""


@dataclass(frozen=True)
class HeadPlan:
    """Variant by number of rows; a number that was not tuned takes the next larger one's, else the largest one's."""

    variants: Mapping[int, str]

    def product(self, hidden: Floats, head: Floats) -> Floats:
        """[R, K] @ [K, V]."""
        rows = next((size for size in TUNED_ROWS if size >= len(hidden)), TUNED_ROWS[-1])
        return product(hidden, head, self.variants.get(rows, "whole"))


def product(hidden: Floats, head: Floats, variant: str) -> Floats:
    """[R, K] @ [K, V] in the blocks of a variant."""
    rows, columns = VARIANTS[variant]
    if columns:
        result = np.empty((len(hidden), head.shape[1]), dtype=np.float32)
        for left in range(0, head.shape[1], columns):
            np.matmul(hidden, head[:, left : left + columns], out=result[:, left : left + columns])
        return result
    if rows:
        result = hidden[:, :rows] @ head[:rows]
        for top in range(rows, len(head), rows):
            result += hidden[:, top : top + rows] @ head[top : top + rows]
        return result
    return np.asarray(hidden @ head)


def tune(head: Floats | None) -> tuple[HeadPlan, dict[str, dict[str, float]]]:
    """(plan, best microseconds by rows and variant); a rank without a head has nothing to time."""
    if head is None:
        return HeadPlan(dict.fromkeys(TUNED_ROWS, "whole")), {}
    plan: dict[int, str] = {}
    timings: dict[str, dict[str, float]] = {}
    for rows in TUNED_ROWS:
        hidden = np.random.default_rng(rows).integers(-99, 100, (rows, len(head))).astype(np.float32)
        reference = product(hidden, head, "whole")
        seen: dict[str, float] = {}
        for name in VARIANTS:
            if not np.array_equal(product(hidden, head, name), reference):
                continue  # a variant that is not exact here is never taken
            seen[name] = min(_microseconds(hidden, head, name) for _ in range(REPEATS))
        plan[rows] = min(seen, key=lambda name: seen[name])
        timings[str(rows)] = seen
    return HeadPlan(plan), timings


def _microseconds(hidden: Floats, head: Floats, variant: str) -> float:
    begin = time.perf_counter()
    product(hidden, head, variant)
    return round(1e6 * (time.perf_counter() - begin), 1)


@dataclass(frozen=True)
class Cache:
    """One rank's file and its sidecar. `launch` is the fingerprint of everything that must not have changed."""

    path: Path
    launch: str
    keep: bool

    @property
    def name(self) -> str:
        """Folder and file, for the log."""
        return f"{self.path.parent.name}/{self.path.name}"

    def load(self, log: Log) -> tuple[HeadPlan, str] | None:
        """(plan, what must be equal on all ranks); None when there is nothing usable. A stale file is deleted."""
        try:
            content = self.path.read_bytes()
            launch = self._sidecar.read_text(encoding="utf-8").strip()
        except OSError:
            return None
        if self.keep and launch != self.launch:
            log(f"[autotune_keep] {self.name} was made for another launch, deleted")
            self.discard()
            return None
        plan = _plan_of(content)
        if plan is None:
            log(f"FlashInfer autotune: {self.name} can not be used, deleted")
            self.discard()
            return None
        return plan, launch if self.keep else hashlib.sha256(content).hexdigest()

    def save(self, plan: HeadPlan, timings: Mapping[str, Mapping[str, float]]) -> None:
        """Write file and sidecar, the sidecar last. EngineError when the state folder can not be written."""
        document = {"version": __version__, "head": {str(k): v for k, v in plan.variants.items()}, "us": timings}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.discard()
            _write(self.path, json.dumps(document, indent=1, sort_keys=True) + "\n")
            _write(self._sidecar, self.launch + "\n")
        except OSError as error:
            raise EngineError(
                "TS-ENGINE-STATE",
                "autotune cache can not be written",
                where=str(self.path),
                expected="a writable state folder",
                observed=error.strerror or str(error),
                remedy="check the mount of --state-dir or STATE_PATH, or leave both out",
            ) from error

    def discard(self) -> None:
        """Remove sidecar and file."""
        self._sidecar.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)

    @property
    def _sidecar(self) -> Path:
        return self.path.with_suffix(".launch")


def _write(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _plan_of(content: bytes) -> HeadPlan | None:
    try:
        document = json.loads(content)
        plan = {int(rows): variant for rows, variant in document["head"].items()}
        fits = (
            document["version"] == __version__ and set(plan) == set(TUNED_ROWS) and set(plan.values()) <= set(VARIANTS)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return HeadPlan(plan) if fits else None


def fingerprint(engine: EngineConfig, shapes: tuple[int, ...]) -> str:
    """sha256 of version, shapes, launch arguments and environment, without what differs by rank or is volatile."""
    arguments = {name: str(value) for name, value in engine.server_args().items() if name not in PER_RANK}
    document = [__version__, shapes, sorted(arguments.items()), engine.tuned_environment]
    return hashlib.sha256(json.dumps(document).encode()).hexdigest()


def cache_of(engine: EngineConfig, vocab_size: int, width: int) -> Cache | None:
    """The cache of this rank; None without a state folder. The folder's key omits what the sidecar checks."""
    if engine.state_dir is None:
        return None
    shapes = (vocab_size, width, engine.tp, engine.ep_size)
    key = hashlib.sha256(json.dumps(shapes).encode()).hexdigest()[:16]
    path = engine.state_dir / "autotune" / __version__ / key / f"rank_tp{engine.rank}.json"
    return Cache(path, fingerprint(engine, shapes), engine.autotune_keep)


def run(head: Floats | None, cache: Cache | None, collective: Collective, keep: bool, log: Log) -> HeadPlan:
    """The plan of this rank: reused when every rank can, else tuned. A collective: every rank must call it."""
    if keep:
        log("[autotune_keep] armed" + ("" if cache is not None else ", without effect: no state folder"))
    log(f"Running FlashInfer autotune {f'with cache: {cache.path}' if cache is not None else 'without cache'}")
    found = cache.load(log) if cache is not None else None
    usable, agreed = _exchange(collective, found[1] if found is not None else None)
    if found is not None and agreed and len(usable) == collective.world:
        plan, how = found[0], "reused"
    else:
        if usable:
            what = "differ" if len(usable) == collective.world else f"are usable on ranks {usable} alone"
            log(f"FlashInfer autotune: per-rank caches disagree, discarding them: they {what}")
        plan, timings = tune(head)
        how = "tuned"
        if cache is not None:
            cache.save(plan, timings)
            how = "tuned and saved"
    if cache is not None and keep:
        log(f"[autotune_keep] {how} {cache.name}")
    chosen = " ".join(f"{rows}={plan.variants[rows]}" for rows in TUNED_ROWS)
    log(f"FlashInfer autotune completed. {how}: head rows {chosen}")
    return plan


def _exchange(collective: Collective, digest: str | None) -> tuple[list[int], bool]:
    """(ranks that have a usable cache, whether their digests are equal)."""
    table = np.zeros((collective.world, 17), dtype=np.float32)
    if digest is not None:
        table[collective.rank, 0] = 1
        table[collective.rank, 1:] = np.frombuffer(bytes.fromhex(digest), dtype=np.uint16)
    table = collective.all_reduce("autotune state", table)
    usable = np.flatnonzero(table[:, 0])
    return usable.tolist(), len(np.unique(table[usable], axis=0)) <= 1
