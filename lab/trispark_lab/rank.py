"""What all ranks do at start: meet, attach rows, load weights; and what they hold afterwards."""

from collections.abc import Callable
from dataclasses import dataclass

from . import __version__, autotune
from .build_id import build_id
from .collective import Collective
from .config import EngineConfig, ModelConfig, load_model_config
from .experts import WorkLines
from .logs import EngineLog
from .model import RankModel, load_model
from .readers import ReaderPool
from .rendezvous import Meeting, meet
from .row_store import CounterLines, RowCacheSwitch
from .stats import PeriodicStats
from .switches import RankSwitches, registered
from .tokenizer import Tokenizer

MEET_DEADLINE_S = 45.0
STEP_DEADLINE_S = 10.0


@dataclass
class Rank:
    """One started rank."""

    engine: EngineConfig
    model_config: ModelConfig
    tokenizer: Tokenizer
    collective: Collective
    model: RankModel
    stats: PeriodicStats
    switches: RankSwitches


def speculation_lines(engine: EngineConfig) -> list[str]:
    """What is armed in drafting and verification, in the adapters' shapes; nothing when all of it is off."""
    lines = []
    if engine.draft_tau != 1:
        lines.append(f"[draft_tau] draft temperature x{engine.draft_tau:g}")
    if engine.block_verify:
        lines.append("[block_verify] armed: joint acceptance of sampled blocks")
    if engine.verify_cap.armed:
        lines.append(f"[verify_cap] armed ({engine.verify_cap.spec}): dead verify rows are copies of the anchor")
        rows = engine.block_size + 1
        for count in range(1, engine.max_running_requests + 1):
            lines.append(f"[verify_cap] in-place remap captured into the verify graph for M={rows * count}")
    if engine.verify_cap.by_confidence:
        lines.append("[verify_cap] draft confidence head built: True")
    if engine.step_delay_pct:
        lines.append(f"[lab_step_delay] armed: a decode step waits {engine.step_delay_pct} % of its time more")
    return lines


def start_rank(engine: EngineConfig, log: EngineLog, connected: Callable[[], None] = lambda: None) -> Rank:
    """Start this rank up to loaded weights. EngineError, RankFailure or EngramFailure when it can not."""
    log.rank_line(f"Engine build: {build_id()} (trispark_lab {__version__})")
    log.rank_line(f"server_args={engine.server_args()}")
    for name, value in engine.inert:
        log.rank_line(f"{name}={value} is inert in this engine")
    config = load_model_config(engine.model_path)
    tokenizer = Tokenizer.load(engine.model_path / "tokenizer.json")
    collective = Collective(None)
    if engine.tp > 1:
        log.rank_line("Init torch distributed begin.")
        meeting = Meeting(
            engine.rank,
            engine.tp,
            engine.rendezvous_host,
            engine.rendezvous_port,
            engine.pair_links,
            {"version": __version__, "world": engine.tp, "rows": list(config.rows), "vocab": config.vocab_size},
            MEET_DEADLINE_S,
            STEP_DEADLINE_S,
        )
        collective = Collective(
            meet(meeting, lambda port: log.rank_line(f"Rendezvous on {engine.rendezvous_host}:{port}"))
        )
        log.rank_line("Init torch distributed ends.")
    connected()
    pool = ReaderPool(engine.io_threads)
    model = load_model(engine, config, tokenizer, collective, pool, log.rank_line)
    cache = autotune.cache_of(engine, config.vocab_size, config.o_rank)
    model.head_plan = autotune.run(model.head, cache, collective, engine.autotune_keep, log.rank_line)
    stats = PeriodicStats(engine.stats_seconds, log.rank_line)
    stores = [layer.store for layer in model.layers]
    stats.add(CounterLines(stores, engine.cache_gib, engine.cache_ways, engine.io_threads))
    if model.block is not None:
        stats.add(WorkLines(model.block, engine.rank, engine.ep_size))
    log.rank_line(
        "Initialized DSpark draft runner. attention_backend=none, model=TrisparkLabMarkovDraft, "
        f"gamma={engine.block_size}, verify_num_draft_tokens={engine.block_size + 1}, "
        f"query_token_num={engine.block_size}, sample_from_anchor=True, markov_head=TrisparkLabMarkovHead"
    )
    for line in speculation_lines(engine):
        log.rank_line(line)
    log.rank_line(
        f"max_total_num_tokens={engine.max_total_tokens}, chunked_prefill_size={engine.chunked_prefill_size}, "
        f"max_running_requests={engine.max_running_requests}, context_len={engine.context_length}"
    )
    switches = RankSwitches({**registered(), **RowCacheSwitch.of(stores)}, log.rank_line)
    collective.barrier("load of the weights")
    stats.start()
    return Rank(engine, config, tokenizer, collective, model, stats, switches)
