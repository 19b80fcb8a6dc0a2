"""Rank 0: HTTP API in the main thread, engine in a thread of its own."""

import asyncio
import signal
import threading
import time

from aiohttp import web

from . import __version__, projection
from .api import ApiState, make_app
from .api_key import read_key
from .api_switches import Administration
from .build_id import build_id
from .checkpoint import Checkpoint
from .config import EngineConfig, ModelConfig
from .counters import SampledLines
from .draft import MarkovDraft
from .engine_metrics import engine_metrics
from .health import port_error
from .induction import CopyHead
from .logs import EngineLog
from .metrics import Metric
from .rank import Rank, start_rank
from .requests import Request
from .sampling import GREEDY, Sampling
from .scheduler import Limits, Scheduler, Speculation, StepDelay
from .steps import StepRunner
from .switches import SwitchBoard

STOP_DEADLINE_S = 8.0
WARMUP_WORDS = (12, 48)
WARMUP_TOKENS = 16
_WARMUP_TEXT = "The keeper climbed the stairs every evening and counted the seconds between two flashes of the light. "


def limits_of(engine: EngineConfig, config: ModelConfig) -> Limits:
    """The scheduler's sizes by the launch arguments and the model."""
    return Limits(
        max_running=engine.max_running_requests,
        chunk=engine.chunked_prefill_size,
        max_total_tokens=engine.max_total_tokens,
        block_size=engine.block_size,
        log_interval=engine.decode_log_interval,
        history=config.max_ngram - 1,
        eos=config.eos_token,
        pad=config.engram_pad_token,
        max_queued=engine.max_queued_requests,
        min_free_slots=engine.min_free_slots_delay,
    )


def speculation_of(engine: EngineConfig) -> Speculation:
    """The switches of drafting and verification by the environment."""
    return Speculation(engine.draft_tau, engine.block_verify, engine.verify_cap)


def delay_of(engine: EngineConfig) -> StepDelay:
    """The planted slow-down; none at 0 per cent."""
    return StepDelay(engine.step_delay_pct / 100)


class Head:
    """State shared by API and engine thread."""

    def __init__(self, engine: EngineConfig, log: EngineLog) -> None:
        self._engine = engine
        self._log = log
        self._rank: Rank | None = None
        self._scheduler: Scheduler | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._startup_time: float | None = None
        self._board: SwitchBoard | None = None
        self.port = engine.port
        self.api = ApiState(
            engine.served_model_name,
            engine.context_length,
            engine.max_total_tokens,
            self._server_info,
            int(time.time()),
            metrics=self._metrics if engine.enable_metrics else None,
            load=self._load,
            api_key=read_key(engine.api_key_file) if engine.api_key_file is not None else None,
            capped=engine.verify_cap.armed,
        )

    async def run(self) -> int:
        """Serve until SIGTERM (0). A failure of the engine is raised again here."""
        loop = asyncio.get_running_loop()
        asked, ended = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, asked.set)
        runner = web.AppRunner(make_app(self.api), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._engine.host, self._engine.port)
            try:
                await site.start()
            except OSError as error:
                raise port_error(self._engine.host, self._engine.port, error) from error
            self.port = int(runner.addresses[0][1])
            thread = threading.Thread(
                target=self._work, args=(lambda: loop.call_soon_threadsafe(ended.set),), daemon=True
            )
            thread.start()
            waits = [asyncio.ensure_future(event.wait()) for event in (asked, ended)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            self._stop()
            if not ended.is_set():
                # A rank that is still waiting for its peers has nobody to say goodbye to.
                await asyncio.wait(waits[1:], timeout=STOP_DEADLINE_S if self._rank is not None else 0)
            for wait in waits:
                wait.cancel()
        finally:
            await runner.cleanup()
        if self._failure is not None:
            raise self._failure
        return 0

    def _stop(self) -> None:
        self.api.engine = self.api.administration = None
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.stop()

    def _work(self, ended: object) -> None:
        try:
            self._serve()
        except BaseException as error:  # handed to the main thread, which reports it and ends the process
            self._failure = error
        finally:
            if self._rank is not None:
                self._rank.stats.close()
                self._rank.collective.close()
            assert callable(ended)
            ended()

    def _serve(self) -> None:
        begin = time.perf_counter()
        rank = self._rank = start_rank(self._engine, self._log)
        draft = MarkovDraft.load(Checkpoint(self._engine.model_path), rank.model_config)
        runner = StepRunner(rank.model, rank.collective)
        copy_head = CopyHead.of(rank.tokenizer)
        board = SwitchBoard(rank.switches, lambda order: runner.switch(rank.switches, order))
        scheduler = self._scheduler = Scheduler(
            limits_of(self._engine, rank.model_config),
            runner,
            draft,
            self._log.rank_line,
            speculation_of(self._engine),
            copy_head,
            delay_of(self._engine),
            board.expire,
        )
        self._board = board
        rank.stats.add(SampledLines(scheduler.totals, self._engine.draft_tau, self._engine.block_verify))
        loaded = time.perf_counter()
        self._log.head_line(f"Engine startup timings (s): scheduler_e2e={loaded - begin:.2f}")
        try:
            if not self._stopping.is_set():
                self._warm_up(scheduler, rank)
                runner.warmed()
                self.api.tokenizer = rank.tokenizer
                self._startup_time = time.perf_counter() - begin
                self.api.engine = scheduler
                self.api.administration = Administration(
                    board.state,
                    lambda name, on, hold_s: scheduler.at_boundary(lambda: board.turn(name, on, hold_s)),
                )
                self._log.head_line("The server is fired up and ready to roll!")
                self._log.bare(f"Ready: API on port {self.port} (rank 0)")
                if self._stopping.is_set():
                    self._stop()
                scheduler.run()
            runner.goodbye()
        finally:
            self.api.engine = self.api.administration = None
            scheduler.abort_all()

    def _warm_up(self, scheduler: Scheduler, rank: Rank) -> None:
        begin = time.perf_counter()
        words = (_WARMUP_TEXT * 12).split(" ")
        prompts = [tuple(rank.tokenizer.encode(" ".join(words[:count]))) for count in WARMUP_WORDS]
        for prompt in prompts:
            scheduler.submit(_warm_request(prompt))
            scheduler.drain()
        for _ in range(self._engine.max_running_requests):
            scheduler.submit(_warm_request(prompts[0]))
        scheduler.drain()
        sampled = self._engine.block_verify or not self._engine.verify_cap.by_confidence
        if sampled:
            scheduler.submit(_warm_request(prompts[0], Sampling(temperature=1.0)))
            scheduler.drain()
        seconds = time.perf_counter() - begin
        self._log.bare(
            f"Warm-up done in {seconds:.1f}s "
            f"({len(prompts)} prompt sizes + one batch of {self._engine.max_running_requests}"
            f"{' + one sampled' if sampled else ''})"
        )

    def _metrics(self) -> list[Metric]:
        return engine_metrics(self._scheduler) if self._scheduler is not None else []

    def _load(self) -> dict[str, float]:
        if self._scheduler is None:
            return {}
        load = self._scheduler.load()
        return {
            **load,
            "max_total_num_tokens": self._engine.max_total_tokens,
            "token_usage": load["num_used_tokens"] / self._engine.max_total_tokens,
            "gen_throughput": self._scheduler.line.last.throughput,
        }

    def _server_info(self) -> dict[str, object]:
        state: dict[str, object] = {"wo_a_calls": dict(projection.CALLS)}
        if self._rank is not None:
            state["engram"] = {
                str(layer.store.shard.layer): {
                    "lookups": layer.store.counts.lookups,
                    "hits": layer.store.counts.hits,
                    "reads": layer.store.counts.reads,
                    "wait_s": layer.wait_s,
                    "packed": layer.store.packed,
                }
                for layer in self._rank.model.layers
            }
        if self._board is not None:
            state["switches"] = self._board.state()
        if self._scheduler is not None:
            totals, load = self._scheduler.totals, self._scheduler.load()
            state["forward_steps"] = totals.forward_steps
            state["avg_spec_accept_length"] = totals.accept_length()
            state["step_wall_s"] = totals.step_wall_s
            state["last_gen_throughput"] = self._scheduler.line.last.throughput
            state["verify_steps"] = totals.verify_count
            state["generation_tokens"] = totals.generated_tokens
            state["finished_requests"] = totals.finished_requests
            state["running"], state["queued"] = load["num_running_reqs"], load["num_waiting_reqs"]
            state["mixed_steps"] = totals.mixed_steps
            state["verify_cap"] = {
                "spec": self._engine.verify_cap.spec,
                "avg_cap_length": totals.cap_length(),
                "remapped_rows": totals.remapped,
            }
        return {
            **self._engine.server_args(),
            "version": __version__,
            "build": build_id(),
            "startup_time": self._startup_time,
            "status": "ready" if self.api.engine else "starting",
            "internal_states": [state],
        }


def _warm_request(prompt: tuple[int, ...], sampling: Sampling = GREEDY) -> Request:
    return Request(prompt, WARMUP_TOKENS, True, lambda tokens, reason: None, sampling)


def run_head(engine: EngineConfig, log: EngineLog) -> int:
    """Serve as rank 0."""
    return asyncio.run(Head(engine, log).run())
