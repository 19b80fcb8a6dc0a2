"""Launch flags, environment values and the model's config.json, checked and typed."""

import argparse
import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from . import __version__
from .environment import check_environment, tuned_environment
from .errors import EngineError
from .verify_cap import VerifyCap, parse_cap


@dataclass(frozen=True)
class PairLink:
    """The network between this rank and one peer."""

    peer: int
    local: str
    remote: str


@dataclass(frozen=True)
class EngineConfig:
    """Everything the engine was told; addresses as given, `block_size` is k."""

    model_path: Path
    served_model_name: str
    tp: int
    ep_size: int
    host: str
    port: int
    nnodes: int
    rank: int
    rendezvous_host: str
    rendezvous_port: int
    max_running_requests: int
    chunked_prefill_size: int
    context_length: int
    max_total_tokens: int
    mem_fraction_static: float
    random_seed: int
    speculative_algorithm: str
    block_size: int
    decode_log_interval: int
    max_queued_requests: int
    min_free_slots_delay: int
    enable_metrics: bool
    api_key_file: Path | None
    draft_tau: float
    block_verify: bool
    verify_cap: VerifyCap
    step_delay_pct: int
    pair_links: tuple[PairLink, ...]
    source: Path
    packed_dir: Path
    cache_gib: float
    cache_ways: int
    io_threads: int
    stats_seconds: float
    inert: tuple[tuple[str, str], ...]
    state_dir: Path | None
    autotune_keep: bool
    tuned_environment: tuple[tuple[str, str], ...]

    def server_args(self) -> dict[str, object]:
        """Launch arguments as the log line and /server_info show them."""
        return {
            "model_path": str(self.model_path),
            "context_length": self.context_length,
            "mem_fraction_static": self.mem_fraction_static,
            "max_running_requests": self.max_running_requests,
            "max_total_tokens": self.max_total_tokens,
            "chunked_prefill_size": self.chunked_prefill_size,
            "dist_init_addr": f"{self.rendezvous_host}:{self.rendezvous_port}",
            "nnodes": self.nnodes,
            "node_rank": self.rank,
            "tp_size": self.tp,
            "ep_size": self.ep_size,
            "host": self.host,
            "port": self.port,
            "served_model_name": self.served_model_name,
            "random_seed": self.random_seed,
            "decode_log_interval": self.decode_log_interval,
            "max_queued_requests": self.max_queued_requests,
            "min_free_slots_delay": self.min_free_slots_delay,
            "enable_metrics": self.enable_metrics,
            "api_key": self.api_key_file is not None,
            "speculative_algorithm": self.speculative_algorithm,
            "speculative_num_steps": 1,
            "speculative_num_draft_tokens": self.block_size + 1,
            "speculative_dspark_block_size": self.block_size,
        }


def flag_error(what: str, expected: str, observed: str) -> EngineError:
    """TS-ENGINE-FLAG: the command line can not be used."""
    return EngineError(
        "TS-ENGINE-FLAG",
        what,
        where="command line",
        expected=expected,
        observed=observed,
        remedy="correct the launch arguments",
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise flag_error("launch arguments refused", "the flags of --help", message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="trispark_lab", description="Miniature engine of the trispark lab.", allow_abbrev=False)
    add = parser.add_argument
    parser.add_argument("--version", action="version", version=f"trispark_lab {__version__}")
    add("--model-path", type=Path, required=True)
    add("--served-model-name", default="deepseek-v4.1-flash")
    add("--tp", type=int, default=1)
    add("--ep-size", type=int, default=1)
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8888)
    add("--nnodes", type=int, default=1)
    add("--node-rank", type=int, default=0)
    add("--dist-init-addr", default="127.0.0.1:0")
    add("--max-running-requests", type=int, default=4)
    add("--chunked-prefill-size", type=int, default=1024)
    add("--context-length", type=int, default=262144)
    add("--max-total-tokens", type=int, default=750000)
    add("--mem-fraction-static", type=float, default=0.95)
    add("--random-seed", type=int, default=0)
    add("--speculative-algorithm", choices=["DSPARK"], default="DSPARK")
    add("--speculative-dspark-block-size", type=int)
    add("--decode-log-interval", type=int, default=40)
    add("--max-queued-requests", type=int, default=256)
    add("--min-free-slots-delay", type=int, choices=[0, 1], default=0)
    add("--enable-metrics", action="store_true", help="serve /metrics")
    add("--api-key-file", type=Path)
    add("--state-dir", type=Path, help="folder of declared state, else STATE_PATH; without it nothing is kept")
    add("--pair-link", action="append", default=[], metavar="PEER:LOCAL:REMOTE")
    return parser


def _in_range(flag: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise flag_error(f"{flag} out of range", f"{low}..{high}", str(value))


def _pair_links(texts: Sequence[str], rank: int, world: int) -> tuple[PairLink, ...]:
    links: dict[int, PairLink] = {}
    for text in texts:
        match = re.fullmatch(r"([0-9]+):([0-9.]+):([0-9.]+)", text)
        if match is None:
            raise flag_error("--pair-link refused", "PEER:LOCAL:REMOTE with IPv4 addresses", text)
        peer, local, remote = int(match[1]), match[2], match[3]
        try:
            ipaddress.IPv4Address(local)
            ipaddress.IPv4Address(remote)
        except ValueError as error:
            raise flag_error("--pair-link refused", "PEER:LOCAL:REMOTE with IPv4 addresses", text) from error
        if peer in links or peer == rank or peer >= world:
            raise flag_error("--pair-link refused", f"each other rank of {world} once", text)
        links[peer] = PairLink(peer, local, remote)
    missing = [peer for peer in range(world) if peer != rank and peer not in links]
    if missing:
        raise flag_error("--pair-link missing", f"one for each other rank of {world}", f"none for {missing}")
    return tuple(links[peer] for peer in sorted(links))


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or re.fullmatch(r"[0-9]{1,5}", port) is None or int(port) > 65535:
        raise flag_error("--dist-init-addr refused", "HOST:PORT", text)
    return host, int(port)


def _block_size(flag: int | None, environ: Mapping[str, str]) -> int:
    from_env = environ.get("DSPARK_BLOCK_SIZE")
    if flag is not None:
        _in_range("--speculative-dspark-block-size", flag, 1, 7)
    if flag is not None and from_env is not None and flag != int(from_env):
        raise EngineError(
            "TS-ENGINE-BLOCK",
            "block size is told twice and differs",
            where="--speculative-dspark-block-size and DSPARK_BLOCK_SIZE",
            expected="equal values",
            observed=f"{flag} and {from_env}",
            remedy="set both from one source",
        )
    return flag if flag is not None else int(from_env or 3)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> EngineConfig:
    """EngineConfig from flags and environment; EngineError with TS-ENGINE-ENV, -FLAG or -BLOCK when refused."""
    options = _parser().parse_args(argv)
    inert = check_environment(environ)
    if environ.get("OFFLOAD_MODE", "nvme") != "nvme":
        raise EngineError(
            "TS-ENGINE-ENV",
            "value of OFFLOAD_MODE",
            where="environment",
            expected="nvme",
            observed=environ["OFFLOAD_MODE"],
            remedy="tables in memory are refused; set nvme",
        )
    world = options.tp
    _in_range("--tp", world, 1, 8)
    if options.nnodes != world:
        raise flag_error("--nnodes refused", f"--tp {world}: one rank a node", str(options.nnodes))
    _in_range("--node-rank", options.node_rank, 0, world - 1)
    if options.ep_size not in (1, world):
        raise flag_error("--ep-size refused", f"1 or {world}", str(options.ep_size))
    for flag, value, low, high in (
        ("--port", options.port, 0, 65535),
        ("--max-running-requests", options.max_running_requests, 1, 64),
        ("--chunked-prefill-size", options.chunked_prefill_size, 1, 32768),
        ("--context-length", options.context_length, 64, 1048576),
        ("--max-total-tokens", options.max_total_tokens, 256, 1 << 31),
        ("--mem-fraction-static", options.mem_fraction_static, 0.0, 1.0),
        ("--decode-log-interval", options.decode_log_interval, 1, 1_000_000),
        ("--max-queued-requests", options.max_queued_requests, 1, 65536),
    ):
        _in_range(flag, value, low, high)
    host, port = _address(options.dist_init_addr)
    block_size = _block_size(options.speculative_dspark_block_size, environ)
    return EngineConfig(
        model_path=options.model_path,
        served_model_name=options.served_model_name,
        tp=world,
        ep_size=options.ep_size,
        host=options.host,
        port=options.port,
        nnodes=options.nnodes,
        rank=options.node_rank,
        rendezvous_host=host,
        rendezvous_port=port,
        max_running_requests=options.max_running_requests,
        chunked_prefill_size=options.chunked_prefill_size,
        context_length=options.context_length,
        max_total_tokens=options.max_total_tokens // 256 * 256,
        mem_fraction_static=options.mem_fraction_static,
        random_seed=options.random_seed,
        speculative_algorithm=options.speculative_algorithm,
        block_size=block_size,
        decode_log_interval=options.decode_log_interval,
        max_queued_requests=options.max_queued_requests,
        min_free_slots_delay=options.min_free_slots_delay,
        enable_metrics=options.enable_metrics,
        api_key_file=options.api_key_file,
        draft_tau=float(environ.get("DSV41_DRAFT_TAU", "1")),
        block_verify=environ.get("DSV41_BLOCK_VERIFY") == "1",
        step_delay_pct=int(environ.get("DSV41_LAB_STEP_DELAY_PCT", "0")),
        verify_cap=parse_cap(environ.get("DSV41_VERIFY_CAP", "0"), block_size),
        pair_links=_pair_links(options.pair_link, options.node_rank, world),
        source=Path(environ.get("DSV41_SOURCE", str(options.model_path))),
        packed_dir=Path(environ.get("DSV41_PACKED_DIR", "/engram")),
        cache_gib=float(environ.get("DSV41_CACHE_GIB", "0")),
        cache_ways=int(environ.get("DSV41_CACHE_WAYS", "4")),
        io_threads=int(environ.get("DSV41_IO_THREADS", "32")),
        stats_seconds=float(environ.get("DSV41_STATS_SECONDS", "60")),
        inert=tuple(inert),
        state_dir=options.state_dir or (Path(environ["STATE_PATH"]) if environ.get("STATE_PATH") else None),
        autotune_keep=environ.get("DSV41_AUTOTUNE_KEEP") == "1",
        tuned_environment=tuple(tuned_environment(environ)),
    )


@dataclass(frozen=True)
class MoeConfig:
    """Routed block: number of experts, how many a row is sent to, inner columns of an expert, columns of its result."""

    experts: int
    chosen: int
    inner: int
    output: int


@dataclass(frozen=True)
class ModelConfig:
    """Shapes from config.json of the checkpoint."""

    vocab_size: int
    pad_token: int
    eos_token: int
    layers: tuple[int, ...]
    rows: tuple[int, ...]
    max_ngram: int
    heads: int
    head_dim: int
    engram_vocab_size: int
    compressed_vocab_size: int
    engram_pad_token: int
    o_groups: int
    o_rank: int
    block: int
    moe: MoeConfig

    @property
    def columns(self) -> int:
        """Hash columns of a token and layer."""
        return (self.max_ngram - 1) * self.heads


def load_model_config(path: Path) -> ModelConfig:
    """Read config.json. EngineError TS-ENGINE-CHECKPOINT when a key is missing or out of range."""
    try:
        document = json.loads((path / "config.json").read_text(encoding="utf-8"))
        layers, rows = _sizes(document, "engram_layer_ids"), _sizes(document, "engram_num_embeddings")
        block = document["quantization_config"]["weight_block_size"]
        if len(layers) != len(rows) or not layers or len(set(layers)) != len(layers) or block != [32, 32]:
            raise ValueError("engram_layer_ids, engram_num_embeddings or weight_block_size do not fit")
        config = ModelConfig(
            vocab_size=_size(document, "vocab_size", 1 << 20),
            pad_token=_size(document, "pad_token_id", 1 << 20),
            eos_token=_size(document, "eos_token_id", 1 << 20),
            layers=layers,
            rows=rows,
            max_ngram=_size(document, "engram_max_ngram_size", 8),
            heads=_size(document, "engram_n_heads", 64),
            head_dim=_size(document, "engram_head_dim", 4096),
            engram_vocab_size=_size(document, "engram_vocab_size", 1 << 40),
            compressed_vocab_size=_size(document, "engram_compressed_vocab_size", 1 << 20),
            engram_pad_token=_size(document, "engram_pad_token_id", 1 << 20),
            o_groups=_size(document, "o_groups", 64),
            o_rank=_size(document, "o_lora_rank", 4096),
            block=32,
            moe=MoeConfig(
                experts=_size(document, "n_routed_experts", 1024),
                chosen=_size(document, "num_experts_per_tok", 64),
                inner=_size(document, "moe_intermediate_size", 4096),
                output=_size(document, "moe_output_size", 4096),
            ),
        )
        if not 1 <= config.moe.chosen <= config.moe.experts or config.moe.output > config.o_rank:
            raise ValueError("n_routed_experts, num_experts_per_tok or moe_output_size do not fit")
        if config.max_ngram < 2 or config.heads != config.o_groups or config.head_dim % 32:
            raise ValueError("engram_max_ngram_size, engram_n_heads, o_groups or engram_head_dim do not fit")
        return config
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineError(
            "TS-ENGINE-CHECKPOINT",
            "model configuration can not be used",
            where=str(path / "config.json"),
            expected="config.json of the checkpoint maker",
            observed=f"{type(error).__name__}: {error}",
            remedy="check --model-path and the mount, or make the checkpoint again",
        ) from error


def _size(document: dict[str, Any], key: str, limit: int) -> int:
    value = document[key]
    if type(value) is not int or not 0 <= value <= limit:
        raise ValueError(f"{key} is {value!r}")
    return value


def _sizes(document: dict[str, Any], key: str) -> tuple[int, ...]:
    values = document[key]
    if not isinstance(values, list) or not all(type(value) is int and 0 < value < 1 << 40 for value in values):
        raise ValueError(f"{key} is {values!r}")
    return tuple(values)
