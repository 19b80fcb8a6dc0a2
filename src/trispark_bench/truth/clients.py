"""The clients that are judged: how each is started against a server, and what it says afterwards.

Public ones are run as their users run them, from an environment of their own; what they write is read here.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trispark_bench.plan import PROTOCOL
from trispark_bench.truth.judge import Got
from trispark_bench.truth.schedule import MODEL, WARM_UP_TOKENS

OURS = "trispark"
LINE_READER = "aiohttp-lines"
SOURCES = Path(__file__).resolve().parents[2]
DEADLINE_S = 600.0
POLL_S = 0.05
_TOKENIZER = "truth/words"
_REVISION = "0" * 40


class ClientFailed(RuntimeError):
    """A client did not come to its end."""


@dataclass(frozen=True)
class Load:
    """`rounds` times `width` requests to `url`; `folder` is the client's own."""

    url: str
    width: int
    rounds: int
    folder: Path

    @property
    def requests(self) -> int:
        """In all, without warm-up."""
        return self.width * self.rounds


@dataclass(frozen=True)
class Client:
    """`unmeasured`: requests that it sends before those that it tells of."""

    name: str
    run: Callable[[Load], tuple[list[Got], float]]
    version: Callable[[], str | None]
    unmeasured: Callable[[int], int]


def known_clients(public: Path) -> list[Client]:
    """Ours first; `public` is the environment of the public ones."""
    return [
        Client(OURS, _run_ours, lambda: f"protocol {PROTOCOL}", lambda width: width),
        Client(LINE_READER, _run_line_reader, lambda: _version(Path(sys.executable), "aiohttp"), lambda _: 0),
        Client(
            "aiperf",
            lambda load: _run_aiperf(public / "bin" / "aiperf", load),
            lambda: _version(public / "bin" / "python", "aiperf"),
            lambda _: 0,
        ),
        Client(
            "llama-benchy",
            lambda load: _run_benchy(public / "bin" / "llama-benchy", load),
            lambda: _version(public / "bin" / "python", "llama-benchy"),
            lambda _: 0,
        ),
    ]


def _run_ours(load: Load) -> tuple[list[Got], float]:
    plan = {
        "protocol": PROTOCOL,
        "base_url": load.url,
        "model": MODEL,
        "repetitions": load.rounds,
        "max_tokens": 8,
        "warmup_tokens": WARM_UP_TOKENS,
        "concurrency": [load.width],
        "workloads": {"truth": {"prompts": ["x"], "temperature": 0, "top_p": 1}},
        "deadline_s": DEADLINE_S,
        "seed": 1,
        "thinking": False,
        "reasoning_effort": None,
    }
    source, target = load.folder / "input.json", load.folder / "output.json"
    source.write_text(json.dumps(plan), encoding="utf-8")
    share = _run([sys.executable, "-m", "trispark_bench", str(source), str(target)], load.folder)
    return [got_of_row(row) for row in json.loads(target.read_text(encoding="utf-8"))["requests"]], share


def got_of_row(row: dict[str, Any]) -> Got:
    """Of a row of our client's output."""
    text = [place for place, kind in enumerate(row["kinds"]) if kind != "-"]
    at_ns = [row["at_ns"][place] for place in text]
    tokens = row["tokens"]
    seconds = 0.0 if row["ttft_s"] is None else row["total_s"] - row["ttft_s"]
    return Got(
        number=None if row["id"] is None else int(row["id"].rpartition("-")[2]),
        ttft_s=row["ttft_s"],
        gaps_s=tuple((later - earlier) / 1e9 for earlier, later in pairwise(at_ns)),
        tokens=row["completion_tokens"],
        tokens_so_far=None if tokens is None else tuple(tokens[place] for place in text),
        kinds=row["kinds"].replace("-", ""),
        decode_tps=(row["completion_tokens"] - row["first_tokens"]) / seconds if seconds and tokens else None,
        error=row["error"],
    )


def _run_line_reader(load: Load) -> tuple[list[Got], float]:
    module = "trispark_bench.truth.line_reader"
    share = _run([sys.executable, "-m", module, load.url, str(load.width), str(load.rounds)], load.folder)
    rows = [json.loads(line) for line in (load.folder / "stdout").read_text(encoding="utf-8").splitlines()]
    return [
        Got(
            None if row["id"] is None else int(row["id"].rpartition("-")[2]),
            row["ttft_s"],
            None if row["gaps_s"] is None else tuple(row["gaps_s"]),
            row["tokens"],
            error=row["error"],
        )
        for row in rows
    ], share


def _run_aiperf(program: Path, load: Load) -> tuple[list[Got], float]:
    (load.folder / "prompts.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    _write_tokenizer(load.folder / "hub")
    argv = [str(program), "profile", "-m", MODEL, "--url", load.url, "--endpoint-type", "chat", "--streaming"]
    argv += ["--tokenizer", _TOKENIZER, "--use-server-token-count", "--per-chunk-usage"]
    argv += ["--concurrency", str(load.width), "--request-count", str(load.requests)]
    argv += ["--input-file", "prompts.jsonl", "--custom-dataset-type", "single_turn"]
    argv += ["--output-artifact-dir", "out", "--ui", "none"]
    share = _run(argv, load.folder)
    rows = (load.folder / "out" / "profile_export.jsonl").read_text(encoding="utf-8").splitlines()
    return [_got_of_aiperf(json.loads(row)) for row in rows], share


def _got_of_aiperf(row: dict[str, Any]) -> Got:
    def value(name: str) -> Any:
        return (row["metrics"].get(name) or {}).get("value")

    ttft, gaps, tokens = value("time_to_first_token"), value("inter_chunk_latency"), value("usage_completion_tokens")
    return Got(
        None,
        None if ttft is None else ttft / 1e3,
        None if gaps is None else tuple(gap / 1e3 for gap in gaps),
        None if tokens is None else int(tokens),
        error=str(row["error"]) if row.get("error") else None,
    )


def _run_benchy(program: Path, load: Load) -> tuple[list[Got], float]:
    tokenizer = _write_tokenizer(load.folder / "hub")
    argv = [str(program), "--base-url", f"{load.url}/v1", "--model", MODEL, "--tokenizer", str(tokenizer)]
    argv += ["--pp", "16", "--tg", "8", "--runs", str(load.rounds), "--concurrency", str(load.width)]
    argv += ["--no-warmup", "--no-adapt-prompt", "--skip-coherence", "--latency-mode", "none"]
    argv += ["--book-url", f"{load.url}/text", "--emit-progress", "progress.jsonl"]
    argv += ["--save-result", "result.json", "--format", "json"]
    share = _run(argv, load.folder)
    lines = (load.folder / "progress.jsonl").read_text(encoding="utf-8").splitlines()
    return _got_of_benchy([json.loads(line) for line in lines]), share


def _got_of_benchy(lines: Sequence[dict[str, Any]]) -> list[Got]:
    """It writes a line for each event with text, with the wall clock, and for each request its time to first token."""
    ttft: dict[int, float] = {}
    at: dict[int, list[float]] = {}
    tokens: dict[int, int | None] = {}
    for line in lines:
        request = line.get("request_id")
        if request is None:
            continue
        if line["type"] == "request_first_token":
            ttft[request] = line["ttft_s"]
        elif line["type"] == "tokens":
            at.setdefault(request, []).append(line["ts"])
        elif line["type"] == "request_end":
            tokens[request] = line.get("total_tokens")
    return [
        Got(None, ttft.get(request), tuple(later - earlier for earlier, later in pairwise(at.get(request, ()))), count)
        for request, count in tokens.items()
    ]


def _write_tokenizer(hub: Path) -> Path:
    """A tokenizer of a few words in the shape of a hub's cache: clients ask for one although the server counts."""
    snapshot = hub / f"models--{_TOKENIZER.replace('/', '--')}" / "snapshots" / _REVISION
    snapshot.mkdir(parents=True, exist_ok=True)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir(exist_ok=True)
    (refs / "main").write_text(_REVISION, encoding="utf-8")
    words = ["<unk>", "<s>", "</s>", "the", "a", "of", "and", "quay", "bell", "tide", "ferry", "while", "rang", "The"]
    words += [chr(code) for code in range(33, 127) if chr(code) not in words]
    model: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {word: n for n, word in enumerate(words)}, "unk_token": "<unk>"},
    }
    model |= {"truncation": None, "padding": None, "normalizer": None, "post_processor": None, "decoder": None}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "</s>"}
    for name, content in (
        ("tokenizer.json", model),
        ("tokenizer_config.json", config),
        ("config.json", {"model_type": "llama"}),
    ):
        (snapshot / name).write_text(json.dumps(content), encoding="utf-8")
    return snapshot


def _run(argv: Sequence[str], folder: Path) -> float:
    """Run to the end; the processor time of it and its children over its wall time. Raises ClientFailed."""
    env = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "HF_HUB_CACHE": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HOME": str(folder),
        "PATH": f"{Path(argv[0]).parent}:{os.environ.get('PATH', '')}",
    }
    begin = time.monotonic()
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        process = subprocess.Popen(argv, cwd=folder, env=env, stdout=out, stderr=err, start_new_session=True)
    usage = _wait(process, begin + DEADLINE_S)
    wall_s = time.monotonic() - begin
    if process.returncode != 0:
        said = (folder / "stderr").read_text(errors="replace").strip().splitlines()
        raise ClientFailed(f"{Path(argv[0]).name} ended with {process.returncode}: {said[-1] if said else 'no word'}")
    return float((usage.ru_utime + usage.ru_stime) / wall_s)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> Any:
    """What it and its children used. At the deadline it is killed with them."""
    while True:
        found, status, usage = os.wait4(process.pid, os.WNOHANG)
        if found:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage
        if time.monotonic() > deadline:
            os.killpg(process.pid, signal.SIGKILL)
            deadline = float("inf")
        time.sleep(POLL_S)


def _version(python: Path, package: str) -> str | None:
    """Of the installed package; None without one."""
    if not python.exists():
        return None
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None
