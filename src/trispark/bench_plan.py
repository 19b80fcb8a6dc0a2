"""The load client's input for a site, and what a record keeps of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trispark.canonical import text_sha256
from trispark.site import Site
from trispark.workloads import SHORT, read_corpora

PROTOCOL: Final = 2
"""trispark_bench.plan.PROTOCOL: what is measured and how. Of different protocols, nothing is compared."""

FIRST_PROTOCOL: Final = ("protocol", "repetitions", "max_tokens", "warmup_tokens", "concurrency", "image")
"""What a record of protocol 1 says of its measurement, besides the prompts."""


def client_input(site: Site, root: Path) -> dict[str, Any]:
    """What trispark_bench.plan reads, with every text in full. Raises TS-WORKLOAD-UNKNOWN and TS-WORKLOAD-SCHEMA."""
    bench, corpora = site.bench, read_corpora(root)
    mixed = [
        {"width": width, "prompt": corpora.long_prompt(), "max_tokens": min(bench.max_tokens, bench.warmup_tokens + 1)}
        for width in bench.mixed
    ]
    return {
        "protocol": PROTOCOL,
        "base_url": f"http://{site.head.address}:{site.api_port}",
        "model": site.served_model_name,
        "repetitions": bench.repetitions,
        "max_tokens": bench.max_tokens,
        "warmup_tokens": bench.warmup_tokens,
        "concurrency": list(bench.concurrency),
        "workloads": {name: corpora.workload(name) for name in bench.workloads},
        "contexts": {name: corpora.context(name) for name in bench.contexts},
        "mixed": mixed,
        "seed": bench.seed,
        "thinking": bench.thinking,
        "reasoning_effort": bench.reasoning_effort,
        "deadline_s": bench.deadline_s,
    }


def bench_input(bench: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, so that two boots can be told to have done the same work: texts as hashes.

    `bench`: {"rank", "image", "input": client_input}.
    """
    plan = bench["input"]
    workloads = sorted(plan["workloads"].items())
    return {
        **{name: plan[name] for name in ("protocol", "repetitions", "max_tokens", "warmup_tokens", "seed")},
        "concurrency": list(plan["concurrency"]),
        "rank": bench["rank"],
        "image": bench["image"],
        "workloads": {name: [text_sha256(prompt) for prompt in each["prompts"]] for name, each in workloads},
        "draws": {name: {key: each[key] for key in ("temperature", "top_p")} for name, each in workloads},
        "contexts": {name: text_sha256(text) for name, text in sorted((plan["contexts"] or {SHORT: ""}).items())},
        "mixed": [{**each, "prompt": text_sha256(each["prompt"])} for each in plan["mixed"]],
        "thinking": plan["thinking"],
        "reasoning_effort": plan["reasoning_effort"],
    }


def input_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{what: (then, now)} of two recorded inputs. What a record of an older protocol did not say is not compared."""
    before, after = _flat(then), _flat(now)
    before["protocol"] = then.get("protocol", 1)
    names = {*before, *after}
    if before["protocol"] < PROTOCOL:
        names = {name for name in names if name in FIRST_PROTOCOL or name.startswith("prompts of ")}
    return {name: (before.get(name), after.get(name)) for name in sorted(names) if before.get(name) != after.get(name)}


def _flat(recorded: Mapping[str, Any]) -> dict[str, Any]:
    flat = {name: value for name, value in recorded.items() if name not in ("workloads", "draws", "contexts")}
    for kind, name in (("prompts", "workloads"), ("draw", "draws"), ("context", "contexts")):
        flat |= {f"{kind} of {key}": value for key, value in (recorded.get(name) or {}).items()}
    return flat
