"""Makes docs/results/gpu-adapters.md from docs/results/gpu-adapters.json, which tests/gpu/run.py wrote.

python -m trispark.gpu_page             write the page
python -m trispark.gpu_page --check     compare, change nothing
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = Path("docs/results/gpu-adapters.json")
PAGE: Final = Path("docs/results/gpu-adapters.md")
WO_A_GOALS: Final[Mapping[str, float]] = {
    **dict.fromkeys(("3", "4", "5", "6", "8"), 1.3),
    **dict.fromkeys(("10", "12", "16", "18", "20", "24"), 1.2),
}
"""Least ratios of wo_a by rows; other row counts are for information."""
HEAD_GOAL: Final = 1.5


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table."""
    return [f"| {' | '.join(map(str, line))} |" for line in (head, ["---"] * len(head), *rows)]


def met(ratio: float, goal: float | None) -> str:
    if goal is None:
        return ""
    return f"at least {goal}: {'yes' if ratio >= goal else 'NO'}"


def ratios(raw: Mapping[str, Any], goals: Mapping[str, float]) -> list[str]:
    """bf16 and twin in turns: medians, quartiles of the twin, ratio, goal."""
    rows = []
    for name in sorted(raw, key=int):
        bf16, twin, ratio = raw[name]["bf16"], raw[name]["twin"], raw[name]["ratio"]
        spread = f"{twin['q1_us']:.2f}-{twin['q3_us']:.2f}"
        times = (f"{bf16['median_us']:.2f}", f"{twin['median_us']:.2f}", spread)
        rows.append((name, *times, f"{ratio:.2f}", met(ratio, goals.get(name))))
    return table(("rows", "bf16 us", "twin us", "its quartiles", "ratio", "goal"), rows)


def projection(found: Mapping[str, Any]) -> list[str]:
    """A product's own work on a GB10, beside its memory's time."""
    inputs = found["inputs"]
    rows = [
        (name, f"{row['resident_us']:.2f}", f"{row['projected_us']:.1f}", "yes" if row["holds"] else "no")
        for name, row in sorted(found["rows"].items(), key=lambda item: int(item[0]))
    ]
    return [
        f"`{found['formula']}`",
        "",
        f"Here {inputs['multiprocessors']} multiprocessors at {inputs['clock_ghz']} GHz, read while the products ran: "
        f"a factor of {inputs['factor']}. A twin has {inputs['twin_bytes']:,} bytes, which a GB10's memory reads in "
        f"{found['memory_us']} us; the bf16 weight takes {found['bf16_memory_us']} us. "
        f"The limit is {found['limit_us']} us.",
        "",
        *table(("rows", "resident us", "projected us", "below the limit"), rows),
    ]


def prefetch(found: Mapping[str, Any]) -> list[str]:
    """Share of the lookup that the compute before the join hides."""
    rows = []
    for each in found["hidden"]:
        times = (f"{each['lookup_ms']:.2f}", f"{each['compute_before_join_ms']:.2f}")
        goal = f"at least {each['goal']:.0%}: {'yes' if each['reached'] else 'NO'}"
        rows.append((each["tokens"], *times, f"{each['hidden_share']:.1%}", goal))
    wrong = sum(sum(row["wrong"].values()) for row in found["rows"])
    replays = sum(row["replays"] for row in found["rows"])
    return [
        "## Engram rows read ahead",
        "",
        f"{wrong} of {replays} replays with other rows than the synchronous path. "
        f"Gather: {found['gather'].split(' ')[0]}; reads: {', '.join(found['reads'])}.",
        "",
        *table(("tokens", "lookup ms", "compute before the join ms", "hidden", "goal"), rows),
        "",
    ]


def acceptance(found: Mapping[str, Any]) -> list[str]:
    """The engine's acceptance and the joint one."""
    checked = [found[name] for name in sorted(found) if name.startswith("correctness_bs")]
    requests = sum(each["requests"] for each in checked)
    wrong = sum(each["wrong_kept"] + each["wrong_token"] for each in checked)
    rows = []
    for name in sorted(found):
        if not name.startswith("times_bs"):
            continue
        each = found[name]
        for kind in ("graph", "eager"):
            engine = min(each["engine"][kind], each["engine_torch_softmax"][kind])
            ratio = each["ratio"][kind]
            goal = f"at most {each['goal']}: {'yes' if ratio <= each['goal'] else 'NO'}"
            ours = f"{each['ours'][kind]:.1f}"
            rows.append((name.removeprefix("times_bs"), kind, f"{engine:.1f}", ours, f"{ratio:.2f}", goal))
    head = ("batch", "how", "engine us", "joint us", "ratio", "goal")
    return [
        "## Block verification",
        "",
        f"k {found['gamma']}, V {found['vocab']:,}; {requests} requests against the rule in float64, {wrong} wrong. "
        "One call of the acceptance, beside the faster of the engine's with its own softmax and with torch's "
        "(flashinfer's is not on this machine).",
        "",
        *(table(head, rows) if rows else ["Times were not taken."]),
        "",
    ]


def cap(found: Mapping[str, Any]) -> list[str]:
    """What the remap of dead rows costs."""
    rows = [
        (name.removeprefix("remap_rows"), f"{each['us_a_layer']:.1f}", each["wrong"])
        for name, each in sorted(found.items(), key=lambda item: (len(item[0]), item[0]))
        if name.startswith("remap_rows")
    ]
    return ["## Verify cap", "", *table(("rows", "remap us a layer", "wrong rows"), rows), ""]


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    device, errors = results["device"], results["errors"]
    checks = sum(results.get("checks", {}).values())
    lines = [
        "# GPU measurements of the adapters",
        "",
        f"    {results['command']}",
        "",
        f"{results['date']}, {device['name']} ({device['gpus']} GPU, compute capability {device['capability']}, "
        f"{device['multiprocessors']} multiprocessors, {device['l2_mib']} MiB of L2, driver {device['driver']}, torch "
        f"{device['torch']}). No result of a Spark: this GPU stands in for one, with about seven times as many bytes "
        "for each cycle of a multiprocessor. Made from `gpu-adapters.json` by `python -m trispark.gpu_page`.",
        "",
        f"{checks} checks of the twins' products, {len(errors)} errors" + (":" if errors else "."),
        *(f"- {error.strip().splitlines()[-1]}" for error in errors),
        "",
    ]
    if "relative_error" in results:
        rows = [(name, f"{error:.2e}") for name, error in sorted(results["relative_error"].items())]
        lines += [
            "## Against float64",
            "",
            "Largest error by the norm over all row counts; rounding the result to bf16 alone makes 1.7e-03. "
            "`as on a GB10`: the kernels and launches that a GB10 gets, on this GPU.",
            "",
            *table(("product", "largest error"), rows),
            "",
        ]
    if "wo_a" in results.get("raw", {}):
        lines += [
            "## wo_a: [rows, 4, 4096] x [4, 1024, 4096]",
            "",
            "`torch.einsum` on bf16 and the twin, each a CUDA graph over 40 distinct layers, in turns; medians "
            "for one layer.",
            "",
            *ratios(results["raw"]["wo_a"], WO_A_GOALS),
            "",
            "Widening a twin, as every other call on a released weight does: "
            f"{results['raw']['widen']['median_us']:.1f} us.",
            "",
            "### On a GB10",
            "",
            *projection(results["gb10_projection"]),
            "",
        ]
    if "draft_head" in results.get("raw", {}):
        goals = dict.fromkeys(results["raw"]["draft_head"], HEAD_GOAL)
        lines += [
            "## Draft head: [rows, 5120] x [43136, 5120]",
            "",
            "`torch.matmul` on bf16 and the twin, each a CUDA graph over 4 distinct heads, replayed in turns.",
            "",
            *ratios(results["raw"]["draft_head"], goals),
            "",
        ]
    if results.get("block_verify", {}).get("correctness_bs1"):
        lines += acceptance(results["block_verify"])
    if any(name.startswith("remap_rows") for name in results.get("verify_cap", {})):
        lines += cap(results["verify_cap"])
    if "engram_prefetch" in results:
        lines += prefetch(results["engram_prefetch"])
    return "\n".join(lines).rstrip() + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """0 when written, or when the page is that of the results."""
    parser = argparse.ArgumentParser(prog="trispark.gpu_page", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare, change nothing")
    given = parser.parse_args(argv)
    text = page(json.loads((ROOT / RESULTS).read_text(encoding="utf-8")))
    if given.check:
        same = (ROOT / PAGE).read_text(encoding="utf-8") == text
        print("the page is that of the results" if same else f"differs: {PAGE}")
        return 0 if same else 1
    (ROOT / PAGE).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
