"""Three real processes on loopback: start, canary, counters, goodbye, and a rank that dies."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trispark.allowlist import format_value
from trispark.bench_check import bench_problem
from trispark.bench_windows import check_windows
from trispark.catalog import load_catalog
from trispark.logparse import lines_matching, stats_lines
from trispark.quality.evaluate import Answered, code_to_run, compare_all, judge_long, judge_short
from trispark.quality.questions import Asker, Question, requests
from trispark.quality.reference import Likeness, worst
from trispark.quality.sandbox import child_program
from trispark.quality.sandbox_program import run_piece
from trispark.rounds import RoundsPlan as JudgedPlan
from trispark.rounds import effects_of
from trispark_bench.plan import BenchPlan
from trispark_bench.rounds import Rounds, RoundsPlan, run_rounds
from trispark_bench.run import Results, run_plan
from trispark_node.fields import Fields
from trispark_node.http_request import BatchRequest, UrllibClient, perform_batch

ROOT = Path(__file__).resolve().parents[3]
DEADLINE_S = 60


class Process:
    """One rank; its lines are kept, and `expect` waits for one of them."""

    def __init__(self, argv: list[str], environ: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trispark_lab", *argv],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._guard = threading.Timer(DEADLINE_S, self._process.kill)
        self._guard.start()
        self.lines: list[str] = []

    def expect(self, pattern: str) -> re.Match[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))
            match = re.search(pattern, line)
            if match is not None:
                return match
        raise AssertionError(f"no line {pattern!r} in:\n" + "\n".join(self.lines))

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Exit code, after all lines were read."""
        assert self._process.stdout is not None
        self.lines += [line.rstrip("\n") for line in self._process.stdout]
        return self._process.wait()

    def close(self) -> None:
        self._guard.cancel()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


Start = Callable[..., list[Process]]


@pytest.fixture
def start(checkpoint: Path, packed: Path) -> Iterator[Start]:
    running: list[Process] = []

    def run(adapters: bool, ep_size: str = "3", flags: tuple[str, ...] = (), **env: str) -> list[Process]:
        path = [str(ROOT / "lab")] + ([str(ROOT / "adapters")] if adapters else [])
        controlled = ("DSV41_", "DSPARK_", "SGLANG_", "NCCL_")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(controlled)}
        environ |= {
            "PYTHONPATH": os.pathsep.join(path),
            "DSV41_SOURCE": str(checkpoint),
            "DSV41_PACKED_DIR": str(packed),
            "DSV41_IO_THREADS": "4",
            "DSV41_STATS_SECONDS": "600",
            "DSPARK_BLOCK_SIZE": "3",
            "SGLANG_RAGGED_VERIFY_MODE": "static",
            **env,
        }
        port = "0"
        ranks: list[Process] = []
        for rank in range(3):
            argv = ["--model-path", str(checkpoint), "--tp", "3", "--nnodes", "3", "--ep-size", ep_size, "--port", "0"]
            argv += ["--node-rank", str(rank), "--dist-init-addr", f"127.0.0.1:{port}", "--enable-metrics", *flags]
            for peer in sorted({0, 1, 2} - {rank}):
                argv += ["--pair-link", f"{peer}:127.0.0.1:127.0.0.1"]
            ranks.append(Process(argv, environ))
            running.append(ranks[-1])
            if rank == 0:
                port = ranks[0].expect(r"Rendezvous on 127\.0\.0\.1:(\d+)")[1]
        return ranks

    yield run
    for process in running:
        process.close()


def get(port: str, path: str, document: dict[str, Any] | None = None) -> Any:
    data = None if document is None else json.dumps(document).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=DEADLINE_S) as response:
        text = response.read()
        return json.loads(text) if text else response.status


def canary(port: str) -> Any:
    document = {"model": "deepseek-v4.1-flash", "temperature": 0, "messages": [{"role": "user", "content": "19+23="}]}
    choice = get(port, "/v1/chat/completions", document)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"]


def test_start_answer_and_stop(start: Start) -> None:
    ranks = start(adapters=True, DSV41_WO_A_W8="1")
    workers = [process.expect(r"Health endpoint on port (\d+)")[1] for process in ranks[1:]]
    port = ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1]
    assert any(line.endswith("] The server is fired up and ready to roll!") for line in ranks[0].lines)
    assert canary(port) == ("42", "stop")
    assert [get(each, "/health") for each in (port, *workers)] == [200, 200, 200]
    info = get(port, "/server_info")
    assert info["speculative_dspark_block_size"] == 3
    state = info["internal_states"][0]
    for counters in (state["engram"]["1"], state["engram"]["14"]):
        assert counters["lookups"] == counters["reads"] > 0
        assert counters["wait_s"] > 0
    assert state["wo_a_calls"]["twin"] > 0
    assert state["avg_spec_accept_length"] > 1
    ranks[1].signal(signal.SIGTERM)  # a worker waits for rank 0
    assert canary(port) == ("42", "stop")
    ranks[0].signal(signal.SIGTERM)
    assert [process.end() for process in ranks] == [0, 0, 0]
    for number, process in enumerate(ranks):
        tag = rf"^\[\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d TP{number} EP{number}\] "
        text = "\n".join(process.lines)
        for layer in (1, 14):
            assert re.search(rf"{tag}Exact nvme Engram layer={layer} rank={number} rows=.* packed=True$", text, re.M)
            stats = re.findall(rf"{tag}Engram layer={layer} lookups=(\d+) hit_rate=0.0% reads=(\d+) ", text, re.M)
            assert len(stats) == 1
            assert 0 < int(stats[0][0]) == int(stats[0][1])
        assert re.search(rf"{tag}Initialized DSpark draft runner\. .*gamma=3, verify_num_draft_tokens=4,", text, re.M)
        assert re.search(rf"{tag}SGLANG_RAGGED_VERIFY_MODE=static is inert", text, re.M)
        assert re.search(rf"{tag}\[wo_a_w8\] fp8 twins for 2 wo_a weights, 0 left on float32$", text, re.M)
        assert re.search(rf"{tag}\[wo_a_w8\] calls twin=[1-9]\d* dense=[1-9]\d*$", text, re.M)


def test_sampling_capped_blocks_and_metrics_over_three_ranks(start: Start, generator: Any) -> None:
    env = {"DSV41_VERIFY_CAP": "conf:0.1", "DSV41_BLOCK_VERIFY": "1", "DSV41_DRAFT_TAU": "0.8"}
    ranks = start(adapters=False, DSPARK_BLOCK_SIZE="5", **env)
    port = ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1]
    assert canary(port) == ("42", "stop")
    params = {"temperature": 0, "max_new_tokens": 16, "ignore_eos": True}
    prompt = "Write an essay about lighthouses."
    greedy = get(port, "/generate", {"text": prompt, "sampling_params": params})
    assert greedy["text"] == generator.generate([prompt], 16, 3)[0]
    assert sum(greedy["meta_info"]["spec_cap_lens_histogram"]) == greedy["meta_info"]["spec_verify_ct"]
    params |= {"temperature": 1.5, "sampling_seed": 11}
    sampled = [get(port, "/generate", {"text": prompt, "sampling_params": params})["text"] for _ in range(2)]
    assert sampled[0] == sampled[1] != greedy["text"]
    cap = get(port, "/server_info")["internal_states"][0]["verify_cap"]
    assert cap["spec"] == "conf:0.1"
    assert 2 <= cap["avg_cap_length"] < 6
    assert cap["remapped_rows"] > 0
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=DEADLINE_S) as response:
        assert "\nsglang:spec_cap_length{" in response.read().decode()
    assert get(port, "/v1/loads")["loads"][0]["num_running_reqs"] == 0
    ranks[0].signal(signal.SIGTERM)
    assert [process.end() for process in ranks] == [0, 0, 0]
    for process in ranks:
        text = "\n".join(process.lines)
        assert "[verify_cap] armed (conf:0.1): " in text
        assert "[verify_cap] draft confidence head built: True" in text
        assert "[block_verify] armed: " in text
        assert "[draft_tau] draft temperature x0.8" in text
    assert "[verify_cap] confidence present" in "\n".join(ranks[0].lines)


EVERYTHING = {
    **{"EP_SIZE": 1, "DSPARK_BLOCK_SIZE": 5, "DSV41_VERIFY_CAP": "conf:0.1", "DSV41_BLOCK_VERIFY": 1},
    **{"DSV41_WO_A_W8": 1, "DSV41_WO_A_W8_MID": 1, "DSV41_WO_A_W8_DROP": 1, "DSV41_DRAFT_TAU": 0.8},
    **{"DSV41_ENGRAM_PREFETCH": 1, "DSV41_ENGRAM_PREFETCH_CHECK": 1, "DSV41_AUTOTUNE_KEEP": 1},
    **{"DSV41_CACHE_GIB": 0.25, "DSV41_CACHE_WAYS": 16, "MAX_RUNNING_REQUESTS": 8, "MIN_FREE_SLOTS_DELAY": 1},
    **{"CHUNKED_PREFILL_SIZE": 512, "ENGINE_IMAGE": "canary"},
}
"""Every feature that the lab can run, but for those of which a value excludes another."""
OTHERS = {
    **{"DSPARK_BLOCK_SIZE": 2, "DSV41_VERIFY_CAP": "2", "MAX_RUNNING_REQUESTS": 6, "DSV41_CACHE_GIB": 1.0},
    **{"DSV41_CACHE_WAYS": 16, "CHUNKED_PREFILL_SIZE": 768, "DSV41_LAB_STEP_DELAY_PCT": 20},
}


@pytest.mark.parametrize("changes", [{}, EVERYTHING, OTHERS], ids=["baseline", "everything", "others"])
def test_the_engine_prints_the_evidence_of_the_catalog(
    start: Start, tmp_path: Path, changes: dict[str, int | float | str]
) -> None:
    """What the catalog delivers for a configuration, and every line that it must and must not find on each rank."""
    catalog = load_catalog(ROOT)
    settings = {**catalog.baseline, **changes}
    assert [judged.id for judged in catalog.judge_exclusions(settings, {}) if judged.refused] == []
    env, flags = {"STATE_PATH": str(tmp_path)}, list[str]()
    for variable in catalog.allowlist.variables():
        if variable.name not in changes or not variable.reaches("lab", 0):
            continue
        value = variable.check(changes[variable.name], "test")
        env |= {variable.name: format_value(value)} if variable.env else {}
        flags += variable.arguments(value) if variable.name != "EP_SIZE" else []
    # As an image has it: the package, and beside it which build it is.
    shutil.copytree(ROOT / "lab" / "trispark_lab", tmp_path / "image" / "trispark_lab")
    (tmp_path / "image" / "BUILD").write_text(f"{settings['ENGINE_IMAGE']}\n", encoding="utf-8")
    env["PYTHONPATH"] = os.pathsep.join(map(str, (tmp_path / "image", ROOT / "lab", ROOT / "adapters")))
    ranks = start(adapters=True, ep_size=str(settings["EP_SIZE"]), flags=tuple(flags), **env)
    port = ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1]
    assert canary(port) == ("42", "stop")
    assert get(port, "/server_info")["build"] == settings["ENGINE_IMAGE"]
    ranks[0].signal(signal.SIGTERM)
    assert [process.end() for process in ranks] == [0, 0, 0]
    rules = catalog.evidence_rules(settings, 3, "lab")
    active = {name for name in catalog.features if catalog.is_active(name, settings)}
    runnable = {name for name, entry in catalog.features.items() if entry.refusal_on("lab") is None}
    left_out = runnable - active
    if changes is EVERYTHING:
        assert left_out == {"verify_cap_fixed", "lab_step_delay", "none"}, "the lab can run it, and it is not started"
    for rule in rules:
        for rank in rule.ranks:
            found = lines_matching(rule.pattern, "\n".join(ranks[rank].lines))
            assert bool(found) is rule.must_appear, (rule, rank, found)


def test_all_switches_at_once_give_the_same_text(start: Start, generator: Any, tmp_path: Path) -> None:
    names = ("WO_A_W8", "WO_A_W8_MID", "WO_A_W8_DROP", "ENGRAM_PREFETCH", "ENGRAM_PREFETCH_CHECK", "AUTOTUNE_KEEP")
    switches = {f"DSV41_{name}": "1" for name in names} | {"DSV41_CACHE_GIB": "0.001", "STATE_PATH": str(tmp_path)}
    ranks = start(adapters=True, ep_size="1", **switches)
    port = ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1]
    prompt = "Write an essay about lighthouses."
    document = {
        "model": "deepseek-v4.1-flash",
        "temperature": 0,
        "max_tokens": 24,
        "messages": [{"role": "user", "content": prompt}],
    }
    answer = get(port, "/v1/chat/completions", document)["choices"][0]["message"]["content"]
    assert answer == generator.generate([prompt], 24, 3, False)[0]
    assert canary(port) == ("42", "stop")
    ranks[0].signal(signal.SIGTERM)
    assert [process.end() for process in ranks] == [0, 0, 0]
    for number, process in enumerate(ranks):
        text = "\n".join(process.lines)
        counters = stats_lines(text)
        assert {line.layer for line in counters} == {1, 14}
        for line in counters:
            assert line.hits is not None
            assert line.hits > 0
            assert line.expected_reads() == (line.reads, line.reads)
        assert re.search(r" TP\d\] MoE layer=14 rank=\d ep_size=1 .* share=33\.3%$", text, re.M)
        assert f"/rank_tp{number}.json" in text
        assert "per layer = [0, 0]" in text


def test_without_the_adapter_its_switch_has_no_effect_and_a_lost_rank_ends_all(start: Start) -> None:
    ranks = start(adapters=False, DSV41_WO_A_W8="1")
    port = ranks[0].expect(r"^Ready: API on port (\d+)")[1]
    assert canary(port) == ("42", "stop")
    assert get(port, "/server_info")["internal_states"][0]["wo_a_calls"].keys() == {"dense"}
    ranks[2].signal(signal.SIGKILL)
    ranks[2].end()
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        canary(port)
    assert [process.end() for process in ranks[:2]] == [1, 1]
    assert "TS-ENGINE-RANK: rank 2 is gone" in "\n".join(ranks[0].lines)
    assert "TS-ENGINE-RANK: rank" in "\n".join(ranks[1].lines)
    assert not any("wo_a_w8" in line for line in ranks[0].lines)


@pytest.mark.parametrize(
    ("env", "code", "pattern"),
    [
        ({"DSV41_TYPO": "1"}, 2, "^TS-ENGINE-ENV: unknown variable DSV41_TYPO "),
        ({"DSPARK_BLOCK_SIZE": "9"}, 2, "^TS-ENGINE-ENV: .*DSPARK_BLOCK_SIZE"),
    ],
)
def test_a_refused_start_is_one_line(checkpoint: Path, env: dict[str, str], code: int, pattern: str) -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "lab"), **env}
    process = Process(["--model-path", str(checkpoint)], environ)
    assert process.end() == code
    assert len(process.lines) == 1
    assert re.search(pattern, process.lines[0])
    process.close()


def test_a_damaged_shard_ends_the_process(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "engram-l1-r0of1.bin").write_bytes(bytes(8192))
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "lab"), "DSV41_PACKED_DIR": str(tmp_path)}
    process = Process(["--model-path", str(checkpoint), "--port", "0"], environ)
    assert process.end() == 134
    assert process.lines[-1].startswith("Engram retrieval failed: ")
    assert process.lines[-1].endswith("(errno=0)")
    process.close()


def test_version() -> None:
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "lab")}
    process = Process(["--version"], environ)
    assert process.end() == 0
    assert re.fullmatch(r"trispark_lab \d+\.\d+\.\d+", process.lines[0])
    process.close()


def test_the_load_client_and_the_engine_count_the_same(start: Start) -> None:
    """A real measurement: every window is the client's alone, by the metrics and by the internal state."""
    ranks = start(adapters=True)
    port = ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1]
    prompts = {"prose": "Write an essay about lighthouses.", "code": "Write a Python class for a queue."}
    given = {
        "protocol": 2,
        "base_url": f"http://127.0.0.1:{port}",
        "model": "deepseek-v4.1-flash",
        "repetitions": 2,
        "max_tokens": 24,
        "warmup_tokens": 4,
        "concurrency": [1, 3],
        "workloads": {name: {"prompts": [text], "temperature": 0, "top_p": 1} for name, text in prompts.items()},
        "contexts": {"short": ""},
        "mixed": [{"width": 2, "prompt": "the quay " * 20, "max_tokens": 4}],
        "seed": 1,
        "thinking": False,
        "reasoning_effort": None,
        "deadline_s": DEADLINE_S,
    }
    plan = BenchPlan.from_json(given)
    results = Results(plan)
    asyncio.run(run_plan(plan, results))
    output = json.loads(json.dumps(results.as_json()))
    assert bench_problem(given, output) is None
    for counted in (output, {**output, "windows": [{**each, "metrics": [None, None]} for each in output["windows"]]}):
        for check in check_windows(counted):
            assert (check.problem, check.not_checked) == (None, ()), check
            assert check.tokens_per_step is not None
            assert 1 <= check.tokens_per_step <= 4, "a block of three drafts and the token after them"
            assert check.truncated_tokens is not None
            assert 0 <= check.truncated_tokens <= 3 * check.requests
            assert check.step_s is not None
            assert check.step_s > 0
    assert all(row["tokens"][-1] == row["completion_tokens"] for row in output["requests"])
    assert any(len(row["at_ns"]) < row["completion_tokens"] for row in output["requests"]), "blocks of several tokens"
    output["windows"][0]["metrics"][1]["finished_requests"] += 1
    assert "foreign traffic" in (bench_problem(given, output) or "")


class _Api:
    """Questions to a started engine, as the agent sends them: a round at once."""

    def __init__(self, port: str) -> None:
        self.base = f"http://127.0.0.1:{port}"

    def ask(self, rounds: Sequence[Sequence[Question]]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for asked in rounds:
            batch = BatchRequest.parse(Fields({"requests": requests(asked, self.base, 60)}, "request"))
            found += perform_batch(UrllibClient(), batch)["answers"]
        return found


def test_the_engine_passes_the_quality_gates(start: Start) -> None:
    """All questions of both sets over three ranks; code of its own corpus is executed as the sandbox does it."""
    quality = load_catalog(ROOT).quality["lab"]
    ranks = start(adapters=False)
    api = _Api(ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1])
    model = "deepseek-v4.1-flash"
    short = Asker(quality, model, 4).short(True)
    assert [each.line() for each in judge_short(quality, short, api.ask([short]), []) if not each.ok] == []
    repeat = tuple(quality.workloads)
    rounds = Asker(quality, model, 4).rounds(repeat)
    asked = [question for each in rounds for question in each]
    raw = api.ask(rounds)
    ran = {each["id"]: run_piece(each, 5.0, child_program()) for each in code_to_run(quality, asked, raw)}
    results = judge_long(quality, asked, raw, [], repeat, ran)
    assert [each.line() for each in results if not each.ok] == []
    known = Answered.of(asked, raw).starting("logprobs.")
    texts = [each for each in asked if each.name in known]
    assert worst(compare_all(quality, known, texts, api.ask([texts])))[0] is Likeness.IDENTICAL, "also in one batch"
    ranks[0].signal(signal.SIGTERM)
    assert [process.end() for process in ranks] == [0, 0, 0]


def test_a_draft_with_a_cap_passes_the_short_set(start: Start) -> None:
    quality = load_catalog(ROOT).quality["lab"]
    ranks = start(adapters=False, DSPARK_BLOCK_SIZE="5", DSV41_VERIFY_CAP="2")
    api = _Api(ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1])
    short = Asker(quality, "deepseek-v4.1-flash", 4).short(True)
    assert [each.line() for each in judge_short(quality, short, api.ask([short]), []) if not each.ok] == []


def test_a_draft_that_is_never_right_gives_the_same_text_and_fails_the_acceptance_gates_alone(
    start: Start, tmp_path: Path
) -> None:
    """Fluent text at an acceptance of 1.0: greedy verification mends every draft, so nothing else shows it."""
    (tmp_path / "sitecustomize.py").write_text(
        "from trispark_lab.draft import MarkovDraft\nMarkovDraft.propose = lambda self, anchor, count: [0] * count\n",
        encoding="utf-8",
    )
    quality = load_catalog(ROOT).quality["lab"]
    short = Asker(quality, "deepseek-v4.1-flash", 4).short(True)
    answers = []
    for path in (ROOT / "lab", tmp_path):
        ranks = start(adapters=False, PYTHONPATH=os.pathsep.join((str(path), str(ROOT / "lab"))))
        api = _Api(ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1])
        answers.append(api.ask([short]))
        ranks[0].signal(signal.SIGTERM)
        assert [process.end() for process in ranks] == [0, 0, 0]
    whole, broken = answers
    assert [each.line() for each in judge_short(quality, short, whole, []) if not each.ok] == []
    failed = [each for each in judge_short(quality, short, broken, []) if not each.ok]
    assert failed
    assert all(each.check_id.startswith("quality.acceptance.") for each in failed), [each.line() for each in failed]
    assert all(each.observed.startswith("1 ") or each.observed.startswith("1.0") for each in failed)
    assert [text_of(each) for each in broken] == [text_of(each) for each in whole]


def text_of(answer: dict[str, Any]) -> Any:
    """A text, or the functions that are called; the id of a call is drawn."""
    body = answer["body"]
    if "text" in body:
        return body["text"]
    message = body["choices"][0]["message"]
    return message["content"], [call["function"] for call in message.get("tool_calls") or ()]


def turn(port: str, name: str, on: bool, hold_s: float = 60) -> Any:
    return get(port, "/lab/switch", {"name": name, "on": on, "hold_s": hold_s})


def greedy(port: str, prompt: str, tokens: int = 16) -> str:
    document = {"model": "deepseek-v4.1-flash", "temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    answer = get(port, "/v1/chat/completions", {**document, "messages": [{"role": "user", "content": prompt}]})
    text = answer["choices"][0]["message"]["content"]
    assert isinstance(text, str)
    return text


def test_a_running_engine_turns_a_switch_on_all_ranks_and_back_by_itself(start: Start) -> None:
    """Both switches over three processes; in the middle of answers, too, none of which changes."""
    ranks = start(adapters=True, DSV41_ENGRAM_PREFETCH="1", DSV41_CACHE_GIB="0.001")
    port = ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1]
    declared = {"on": True, "declared": True, "epoch": 0}
    assert get(port, "/lab/switches") == {"switches": {"engram_cache": declared, "engram_prefetch": declared}}
    prompts = ["Write about a lighthouse.", "def main("]
    before = [greedy(port, prompt) for prompt in prompts]
    epoch = 0
    for name in ("engram_prefetch", "engram_cache"):
        for on in (False, True, False):
            turned, epoch = turn(port, name, on), epoch + 1
            said = [{"rank": rank, "epoch": epoch, "on": on, "refused": False} for rank in range(3)]
            assert (turned["agreed"], turned["epoch"], turned["acknowledged"]) == (True, epoch, said)
            assert [greedy(port, prompt) for prompt in prompts] == before
    hits = get(port, "/server_info")["internal_states"][0]["engram"]["1"]["hits"]
    assert [greedy(port, prompt) for prompt in prompts] == before
    state = get(port, "/server_info")["internal_states"][0]
    assert state["engram"]["1"]["hits"] == hits > 0, "read past the cache"
    assert state["switches"]["engram_cache"] == {"on": False, "declared": True, "epoch": epoch}

    answers: list[str] = []
    running = threading.Thread(target=lambda: answers.append(greedy(port, prompts[0], 100)))
    running.start()
    for _ in range(4):
        for on in (True, False):
            assert turn(port, "engram_prefetch", on)["agreed"]
    running.join(DEADLINE_S)
    assert answers[0] == greedy(port, prompts[0], 100)

    turn(port, "engram_cache", False, hold_s=0.1)
    turn(port, "engram_prefetch", False, hold_s=0.1)
    end = time.monotonic() + DEADLINE_S
    while not all(each["on"] for each in get(port, "/lab/switches")["switches"].values()):
        assert time.monotonic() < end, "a client that is gone leaves nothing behind"
    with pytest.raises(urllib.error.HTTPError) as caught:
        turn(port, "wo_a", True)
    with caught.value as refusal:
        assert refusal.code == 404
    ranks[0].signal(signal.SIGTERM)
    assert [process.end() for process in ranks] == [0, 0, 0]
    said_by = [[line.partition("[switch] ")[2] for line in each.lines if "[switch] " in line] for each in ranks]
    assert said_by[0] == said_by[1] == said_by[2]
    assert len(said_by[0]) == 6 + 8 + 4
    assert not any("disabled after error" in line for each in ranks for line in each.lines)


@pytest.mark.parametrize("switch", ["engram_prefetch", "engram_cache"])
def test_rounds_of_the_load_client_over_three_ranks(start: Start, switch: str) -> None:
    """Real ranks, the real client, the controller's judgement; no output differs, and the switch is back."""
    ranks = start(adapters=True, DSV41_ENGRAM_PREFETCH="1", DSV41_CACHE_GIB="0.001")
    port = ranks[0].expect(r"^Ready: API on port (\d+) \(rank 0\)$")[1]
    request = {
        "protocol": 1,
        "switch": switch,
        "rounds": 8,
        "world": 3,
        "hold_s": 60,
        "bench": {
            "protocol": 2,
            "base_url": f"http://127.0.0.1:{port}",
            "model": "deepseek-v4.1-flash",
            "repetitions": 1,
            "max_tokens": 8,
            "warmup_tokens": 2,
            "concurrency": [1],
            "workloads": {"prose": {"prompts": ["Write about a lighthouse.", "Why?"], "temperature": 0, "top_p": 1}},
            "deadline_s": DEADLINE_S,
            "seed": 1,
            "thinking": False,
            "reasoning_effort": None,
        },
    }
    results = Rounds()
    asyncio.run(run_rounds(RoundsPlan.from_json(request), results))
    assert results.ended is None
    plan = JudgedPlan("lab", switch, "g0", "b1", "lab", "image", request)
    assert len(effects_of(plan, json.loads(json.dumps(results.as_json())))) == 8
    assert results.restored == {"on": True, "declared": True, "epoch": 37, "verified": True, "why": ""}
    foreign = {**request, "world": 4}
    results = Rounds()
    asyncio.run(run_rounds(RoundsPlan.from_json(foreign), results))
    assert (results.ended or {})["code"] == "acknowledgement"
