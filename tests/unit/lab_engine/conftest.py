"""One checkpoint and one set of packed shards for all tests of the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_files import WORLDS, pack, ready

from trispark_lab import make_checkpoint, steps
from trispark_lab.checkpoint import Checkpoint
from trispark_lab.collective import Collective
from trispark_lab.config import load_model_config, parse
from trispark_lab.draft import MarkovDraft
from trispark_lab.induction import CopyHead
from trispark_lab.model import RankModel, load_model
from trispark_lab.readers import ReaderPool
from trispark_lab.requests import Request
from trispark_lab.scheduler import Limits, Runner, Scheduler, Speculation
from trispark_lab.steps import StepRunner
from trispark_lab.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = ready("checkpoint")
    if directory is None:
        directory = tmp_path_factory.mktemp("checkpoint")
        make_checkpoint.make(directory)
    return directory


@pytest.fixture(scope="session")
def packed(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards for a world of one and of three."""
    directory = ready("engram")
    if directory is None:
        directory = tmp_path_factory.mktemp("engram")
        for world in WORLDS:
            pack(checkpoint, directory, world)
    return directory


@pytest.fixture(scope="session")
def tokenizer(checkpoint: Path) -> Tokenizer:
    return Tokenizer.load(checkpoint / "tokenizer.json")


@dataclass
class Generator:
    """An engine of one rank in this process."""

    model: RankModel
    draft: MarkovDraft
    tokenizer: Tokenizer
    copy_head: CopyHead
    runner: Runner | None = None

    def scheduler(
        self,
        block_size: int = 3,
        log: Callable[[str], None] = lambda line: None,
        speculation: Speculation | None = None,
        **sizes: int,
    ) -> Scheduler:
        limits = {"max_running": 4, "chunk": 1024, "max_total_tokens": 65536, "log_interval": 40, **sizes}
        config = self.model.config
        return Scheduler(
            Limits(block_size=block_size, history=3, eos=config.eos_token, pad=config.engram_pad_token, **limits),
            self.runner or StepRunner(self.model, Collective(None)),
            self.draft,
            log,
            speculation,
            self.copy_head,
        )

    def generate(
        self, prompts: list[str], max_tokens: int, block_size: int = 3, ignore_eos: bool = True, **options: Any
    ) -> list[str]:
        """Texts of the prompts, run at the same time."""
        scheduler = self.scheduler(block_size, lambda line: None, **options)
        requests = [
            Request(tuple(self.tokenizer.encode(prompt)), max_tokens, ignore_eos, lambda tokens, reason: None)
            for prompt in prompts
        ]
        for request in requests:
            scheduler.submit(request)
        scheduler.drain()
        return [self.tokenizer.decode(request.output) for request in requests]


@pytest.fixture(scope="session")
def make_generator(checkpoint: Path, tokenizer: Tokenizer) -> Callable[..., Generator]:
    """make(folder of shards, more environment)."""

    def make(packed_dir: Path, **env: str) -> Generator:
        environ = {"DSV41_PACKED_DIR": str(packed_dir), "DSV41_IO_THREADS": "8", **env}
        engine = parse(["--model-path", str(checkpoint)], environ)
        config = load_model_config(checkpoint)
        model = load_model(engine, config, tokenizer, Collective(None), ReaderPool(8), lambda line: None)
        return Generator(model, MarkovDraft.load(Checkpoint(checkpoint), config), tokenizer, CopyHead.of(tokenizer))

    return make


class CachedRunner:
    """Runs the model once for each window of tokens. Its logits depend on the window alone, which other tests show;
    so tests of scheduling can run the whole corpus through many schedules."""

    def __init__(self, model: RankModel) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], Any] = {}
        self.steps = 0

    def forward(self, segments: Sequence[steps.Segment]) -> Any:
        """Logits of the wanted rows."""
        self.steps += 1
        windows, wanted = steps.decode(steps.encode(segments), self._model.config.max_ngram - 1)
        keys = [tuple(window) for window in windows[wanted].tolist()]
        missing = list(dict.fromkeys(key for key in keys if key not in self._known))
        if missing:
            logits = self._model.forward(np.array(missing), np.arange(len(missing)))
            self._known.update(zip(missing, logits, strict=True))
        return np.stack([self._known[key] for key in keys]) if keys else np.zeros((0, 0), dtype=np.float32)

    def ping(self) -> None:
        """Nobody to ask."""


@pytest.fixture(scope="session")
def cached_generator(generator: Generator) -> Generator:
    """The generator with remembered logits."""
    return replace(generator, runner=CachedRunner(generator.model))


@pytest.fixture(scope="session")
def generator(make_generator: Callable[[Path], Generator], packed: Path) -> Generator:
    return make_generator(packed)
