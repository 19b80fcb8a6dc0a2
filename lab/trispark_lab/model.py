"""The target model of one rank: hash, look up, sum over ranks, project, partial logits, sum over ranks."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from . import e4m3, engram, projection, row_store
from .autotune import HeadPlan
from .checkpoint import Checkpoint
from .collective import Collective, to_bf16
from .config import EngineConfig, ModelConfig
from .errors import EngineError
from .experts import RoutedBlock
from .hashing import LayerHash, build_hashes, owned_range
from .readers import ReaderPool
from .row_library import CacheBudget, open_rows
from .row_store import LayerRows
from .tokenizer import Tokenizer

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass
class EngramLayer:
    """One Engram block of this rank; `wait_s` is the time from wanting rows to having their sum."""

    hashes: LayerHash
    store: LayerRows
    wo_a: Floats
    wait_s: float = 0.0


class RankModel:
    """Forward of one rank. Every rank gives the same logits, bit for bit."""

    def __init__(
        self,
        config: ModelConfig,
        layers: list[EngramLayer],
        head: Floats | None,
        compress: Ints,
        collective: Collective,
        block: RoutedBlock | None = None,
    ) -> None:
        self.config = config
        self.layers = layers
        self.block = block
        self.head = head
        self.head_plan = HeadPlan({})
        self._compress = compress
        self._collective = collective
        world, rank = collective.world, collective.rank
        self._local_groups = projection.groups_per_rank(config.o_groups, world)
        self._first_group = rank * self._local_groups

    def forward(self, windows: Ints, logit_rows: Ints) -> Floats:
        """[T, max n-gram] token ids, newest first -> logits [len(logit_rows), V] of those rows."""
        classes = self._compress[windows]
        verify = len(logit_rows) == len(windows)  # a prefill wants logits of few rows, a verification of all
        owned = [self._owned(layer, classes) for layer in self.layers]
        engram.ids_known([lookup for _, lookup in owned if lookup.ids.size])
        hidden: Floats | None = None
        embedded = np.zeros((0, 1, self.config.head_dim), dtype=np.float32)
        for layer, (places, lookup) in zip(self.layers, owned, strict=True):
            embedded = self._embed(layer, places, lookup, len(classes))
            part = projection.project(self._group_inputs(embedded), layer.wo_a, is_target_verify=verify)
            hidden = part if hidden is None else hidden + part
        if hidden is None:
            raise RuntimeError("a model has at least one Engram layer")
        if self.head is None:  # padding groups only
            partial = np.zeros((len(logit_rows), self.config.vocab_size), dtype=np.float32)
        else:
            flat = hidden[logit_rows].reshape(len(logit_rows), self._local_groups * self.config.o_rank)
            partial = self.head_plan.product(flat, self.head)
        if self.block is not None:  # in the last layer; its result joins the hidden state of the wanted rows
            partial += self.block.logits(embedded[logit_rows, 0])
        return self._collective.all_reduce("logits", partial)

    @staticmethod
    def _owned(layer: EngramLayer, classes: Ints) -> tuple[Ints, engram.Lookup]:
        """(places among all hash columns, lookup) of the rows that this rank serves."""
        row_ids = layer.hashes.row_ids(classes).reshape(-1)
        shard = layer.store.shard
        places = np.flatnonzero((row_ids >= shard.first) & (row_ids < shard.end))
        return places, engram.Lookup(layer.store, row_ids[places])

    def _embed(self, layer: EngramLayer, places: Ints, lookup: engram.Lookup, count: int) -> Floats:
        """[T, columns, 256]: rows of all ranks, summed."""
        begin = time.perf_counter()
        config = self.config
        partial = np.zeros((count * config.columns, config.head_dim), dtype=np.uint16)
        if places.size:
            partial[places] = to_bf16(decode_rows(engram.gather(lookup)))
        total = self._collective.all_reduce_bf16(f"engram layer {layer.store.shard.layer}", partial)
        layer.wait_s += time.perf_counter() - begin
        return total.reshape(count, config.columns, config.head_dim)

    def _group_inputs(self, embedded: Floats) -> Floats:
        """[T, columns, 256] -> [T, local groups, sizes * 256]: group g takes head g of each n-gram size."""
        config = self.config
        by_head = embedded.reshape(len(embedded), config.max_ngram - 1, config.heads, config.head_dim).transpose(
            0, 2, 1, 3
        )
        mine = by_head[:, self._first_group : self._first_group + self._local_groups]
        inputs = np.zeros(
            (len(embedded), self._local_groups, (config.max_ngram - 1) * config.head_dim), dtype=np.float32
        )
        inputs[:, : mine.shape[1]] = mine.reshape(len(embedded), mine.shape[1], inputs.shape[2])
        return inputs


def decode_rows(rows: npt.NDArray[np.uint8]) -> Floats:
    """[M, 264] row bytes -> [M, 256] float32."""
    values = e4m3.E4M3_VALUES[rows[:, : row_store.WEIGHT_BYTES]].reshape(len(rows), row_store.SCALE_BYTES, -1)
    scales = e4m3.UE8M0_VALUES[rows[:, row_store.WEIGHT_BYTES :]]
    return np.asarray((values * scales[:, :, None]).reshape(len(rows), row_store.WEIGHT_BYTES), dtype=np.float32)


def load_model(
    engine: EngineConfig,
    config: ModelConfig,
    tokenizer: Tokenizer,
    collective: Collective,
    pool: ReaderPool,
    log: Callable[[str], None],
) -> RankModel:
    """Attach the rows and load the weights of this rank. EngineError or EngramFailure when something does not fit."""
    rank, world = engine.rank, engine.tp
    checkpoint = Checkpoint(engine.model_path)
    source = checkpoint if engine.source == engine.model_path else Checkpoint(engine.source)
    compress = np.array(tokenizer.compressed_ids(), dtype=np.int64)
    if len(compress) != config.vocab_size or int(compress.max()) + 1 != config.compressed_vocab_size:
        raise EngineError(
            "TS-ENGINE-CHECKPOINT",
            "tokenizer and model configuration differ",
            where=str(engine.model_path),
            expected=f"{config.vocab_size} ids in {config.compressed_vocab_size} classes",
            observed=f"{len(compress)} ids in {int(compress.max()) + 1} classes",
            remedy="make or copy the checkpoint again",
        )
    hashes = build_hashes(
        config.layers,
        max_ngram=config.max_ngram,
        heads=config.heads,
        vocab_size=config.engram_vocab_size,
        compressed_vocab_size=config.compressed_vocab_size,
    )
    layers = []
    for layer, rows in zip(config.layers, config.rows, strict=True):
        if hashes[layer].rows != rows:
            raise EngineError(
                "TS-ENGINE-CHECKPOINT",
                "hash layout and table differ",
                where=f"layer {layer}",
                remedy="make the checkpoint again",
                expected=f"{hashes[layer].rows} rows by the hash",
                observed=f"{rows} rows in config.json",
            )
        shard = row_store.Shard(layer, rank, world, *owned_range(rows, rank, world), rows)
        store = open_rows(
            shard,
            engine.packed_dir,
            source.info(f"layers.{layer}.engram.embed.weight", "F8_E4M3", (rows, row_store.WEIGHT_BYTES)),
            source.info(f"layers.{layer}.engram.embed.scale", "F8_E8M0", (rows, row_store.SCALE_BYTES)),
            pool,
            CacheBudget(engine.cache_gib, len(config.layers), engine.cache_ways),
            log,
        )
        log(row_store.start_line(store, engine.cache_gib, engine.cache_ways, engine.io_threads))
        shape = (config.o_groups * config.o_rank, (config.max_ngram - 1) * config.head_dim)
        codes, scales = checkpoint.scaled(f"layers.{layer}.attn.wo_a", shape, config.block)
        # No other name may hold the weight: an adapter can release it.
        layers.append(
            EngramLayer(hashes[layer], store, projection.local_weight(codes, scales, config.o_groups, rank, world))
        )
    engram.attach([layer.store for layer in layers])
    for layer_held, weight in zip(layers, projection.prepare([each.wo_a for each in layers]), strict=True):
        layer_held.wo_a = weight
    block = RoutedBlock.load(checkpoint, config, engine.ep_size, rank, world)
    return RankModel(config, layers, _local_head(checkpoint, config, rank, world), compress, collective, block)


def _local_head(checkpoint: Checkpoint, config: ModelConfig, rank: int, world: int) -> Floats | None:
    """[local groups * o_rank, V] of the output head, zero for padding; None on a rank that has padding alone."""
    codes, scales = checkpoint.scaled("head", (config.vocab_size, config.o_groups * config.o_rank), config.block)
    local = projection.groups_per_rank(config.o_groups, world)
    first, last = min(rank * local, config.o_groups), min((rank + 1) * local, config.o_groups)
    if first == last:
        return None
    span = slice(first * config.o_rank, last * config.o_rank)
    blocks = slice(first * config.o_rank // config.block, last * config.o_rank // config.block)
    weight = np.zeros((local * config.o_rank, config.vocab_size), dtype=np.float32)
    weight[: (last - first) * config.o_rank] = e4m3.dequantise(codes[:, span], scales[:, blocks], config.block).T
    return weight
