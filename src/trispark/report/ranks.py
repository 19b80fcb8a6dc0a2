"""The sections of one trial about its boots: validity, and evidence and memory of every rank."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from trispark.report.measured import ARMS, BootRow, Measured
from trispark.report.page import Block, Cell, Section, Text, Tone, table
from trispark.report.words import NONE, STATES, mebibytes, number, shortened

EVIDENCE: Final = "evidence."
Gate = Mapping[str, Any]
Gates = Mapping[tuple[str, int], Mapping[str, Sequence[Gate]]]
"""{(check id, rank; -1 for all together): {arm: gates of its boots}}."""


def validity_section(trial: Measured, prefix: str) -> Section:
    """Every rule by arm. What nothing probed is "not checked", and stands first."""
    found = [boot for boot in trial.boots if boot.counted]
    if not found:
        return Section(f"{prefix}validity", "Validity", (Text("No boot counts.", "muted"),))
    order = {"failed": 0, "not checked": 1, "passed": 2}
    rows: list[tuple[int, tuple[Cell | str, ...]]] = []
    for rule in (check.rule for check in found[0].checks):
        by_arm = [[_check(boot, rule) for boot in trial.of_arm(arm)] for arm in ARMS]
        states = [check for checks in by_arm for check in checks]
        worst = min(states, key=lambda check: order[check.status])
        shown = [_counts([check.status for check in checks]) for checks in by_arm]
        state = Cell(worst.status, STATES[worst.status])
        rows.append((order[worst.status], (rule, state, *shown, shortened(worst.observed))))
    rows.sort(key=lambda pair: pair[0])
    columns = ("rule", "state", "baseline", "candidate", "observed")
    caption = "Rules by which a boot counts, judged before its speed"
    blocks: list[Block] = [table(f"{prefix}validity-table", caption, columns, [row for _, row in rows])]
    if windows := _windows(found):
        caption = "What the load client could not check, or found wrong, by load"
        blocks.append(table(f"{prefix}windows-table", caption, ("load", "problem", "not checked"), windows))
    unchecked = trial.outcome.get("unchecked") or []
    if unchecked:
        said = f"Not checked, and so not passed: {', '.join(unchecked)}."
        blocks.insert(0, Text(said, "open", notice=True))
    return Section(f"{prefix}validity", "Validity", tuple(blocks))


def _windows(boots: Sequence[BootRow]) -> list[tuple[str, str, str]]:
    """Loads of which some boot has a problem or something that the server did not tell (bench_windows.WindowCheck)."""
    seen: dict[str, tuple[set[str], set[str]]] = {}
    for boot in boots:
        bench = boot.record["bench"] or {}
        for each in bench.get("checks") or ():
            problems, missing = seen.setdefault(str(each.get("tag")), (set(), set()))
            problems.update([str(each["problem"])] if each.get("problem") else [])
            missing.update(str(name) for name in each.get("not_checked") or ())
    return [
        (tag, shortened("; ".join(sorted(problems))) or NONE, ", ".join(sorted(missing)) or NONE)
        for tag, (problems, missing) in sorted(seen.items())
        if problems or missing
    ]


def _check(boot: BootRow, rule: str) -> Any:
    return next(check for check in boot.checks if check.rule == rule)


def _counts(states: Sequence[str]) -> str:
    parts = [f"{states.count(name)} {name}" for name in ("passed", "failed", "not checked") if name in states]
    return ", ".join(parts) or "no boot"


def evidence_section(trial: Measured, prefix: str) -> Section:
    """Gates by rank: those that failed, the evidence in which the arms differ, then all of them."""
    gates = _gates(trial)
    if not gates:
        return Section(f"{prefix}evidence", "Evidence by rank", (Text("No gate was judged.", "muted"),))
    blocks: list[Block] = []
    bad = {key: arms for key, arms in gates.items() if any(not gate["ok"] for each in arms.values() for gate in each)}
    columns = ("check", "rank", "baseline", "candidate", "expected", "observed")
    if bad:
        caption = "Gates that did not pass in every boot"
        blocks.append(table(f"{prefix}failed-table", caption, columns, [_gate_row(key, bad[key]) for key in bad]))
    differing = {key: arms for key, arms in gates.items() if key[0].startswith(EVIDENCE) and _unlike(arms)}
    if differing:
        rows: list[tuple[Cell | str, ...]] = [
            (Cell(key[0], code=True), _rank(key[1]), *(_evidence(arms.get(arm, ())) for arm in ARMS))
            for key, arms in differing.items()
        ]
        caption = "Evidence that tells the arms apart: what the log of each rank has to show"
        blocks.append(table(f"{prefix}evidence-table", caption, ("evidence", "rank", "baseline", "candidate"), rows))
    else:
        blocks.append(Text("No evidence was asked of one arm alone.", "muted"))
    if engram := _engram(trial):
        columns_of = ("rank", "layer", "rows", "packed, baseline", "packed, candidate", "#reads a lookup, baseline",
                      "#reads a lookup, candidate")  # fmt: skip
        caption = "Engram rows of every rank, in the last counted boot of each arm"
        blocks.append(table(f"{prefix}engram-table", caption, columns_of, engram))
    caption = f"All {len(gates)} gates: boots that passed, and what the last boot showed"
    rows_of_all = [_gate_row(key, gates[key]) for key in gates]
    blocks.append(table(f"{prefix}gates-table", caption, columns, rows_of_all, folded=True))
    return Section(f"{prefix}evidence", "Evidence by rank", tuple(blocks))


def _gates(trial: Measured) -> Gates:
    found: dict[tuple[str, int], dict[str, list[Gate]]] = {}
    for boot in trial.boots:
        if boot.record["requested"]["purpose"] != "trial":
            continue
        for gate in boot.record["gates"]:
            rank = -1 if gate["rank"] is None else int(gate["rank"])
            found.setdefault((str(gate["check_id"]), rank), {}).setdefault(boot.arm, []).append(gate)
    return found


def _unlike(arms: Mapping[str, Sequence[Gate]]) -> bool:
    expected = [{gate["expected"] for gate in arms.get(arm, ())} for arm in ARMS]
    return expected[0] != expected[1]


def _rank(rank: int) -> str:
    return "all" if rank < 0 else str(rank)


def _passed(gates: Sequence[Gate]) -> Cell:
    if not gates:
        return Cell("not judged", "muted")
    good = sum(bool(gate["ok"]) for gate in gates)
    return Cell(f"{good} of {len(gates)}", "good" if good == len(gates) else "bad")


def _gate_row(key: tuple[str, int], arms: Mapping[str, Sequence[Gate]]) -> tuple[Cell | str, ...]:
    everything = [gate for arm in ARMS for gate in arms.get(arm, ())]
    shown = next((gate for gate in everything if not gate["ok"]), everything[-1])
    said = shortened(shown["expected"]), shortened(shown["observed"])
    return (Cell(key[0], code=True), _rank(key[1]), *(_passed(arms.get(arm, ())) for arm in ARMS), *said)


def _evidence(gates: Sequence[Gate]) -> Cell:
    if not gates:
        return Cell("not judged", "muted")
    shown = next((gate for gate in gates if not gate["ok"]), gates[-1])
    tone: Tone = "good" if shown["ok"] else "bad"
    good = sum(bool(gate["ok"]) for gate in gates)
    return Cell(f"{good} of {len(gates)}: {shortened(shown['observed'])}", tone)


def _engram(trial: Measured) -> list[tuple[Cell | str, ...]]:
    arms: list[dict[tuple[int, int], Mapping[str, Any]]] = []
    for arm in ARMS:
        boots = trial.of_arm(arm)
        ranks = boots[-1].record["observed"]["ranks"] if boots else []
        arms.append({(rank["rank"], layer["layer"]): layer for rank in ranks for layer in rank["engram"]})

    def packed(layer: Mapping[str, Any] | None) -> Cell:
        state = None if layer is None else layer["packed"]
        return {True: Cell("yes", "good"), False: Cell("no", "bad"), None: Cell("not seen", "open")}[state]

    def reads(layer: Mapping[str, Any] | None) -> str:
        return number(layer["reads"] / layer["lookups"]) if layer and layer["lookups"] else NONE

    rows: list[tuple[Cell | str, ...]] = []
    for key in sorted({*arms[0], *arms[1]}):
        old, new = arms[0].get(key), arms[1].get(key)
        either = new or old or {}
        where = "not seen" if either.get("first_row") is None else f"[{either['first_row']}, {either['end_row']})"
        rows.append((str(key[0]), str(key[1]), where, packed(old), packed(new), reads(old), reads(new)))
    return rows


def memory_section(trial: Measured, prefix: str) -> Section:
    """What the engine held and what the node had left, medians over the counted boots."""
    arms = [_memory(trial.of_arm(arm)) for arm in ARMS]
    keys = sorted({*arms[0], *arms[1]})
    if not keys:
        return Section(f"{prefix}memory", "Memory by rank", (Text("No memory was observed.", "muted"),))
    rows = []
    for key in keys:
        cells = [mebibytes(arm[key][part]) if key in arm else NONE for part in (0, 1) for arm in arms]
        total = next(arm[key][2] for arm in arms if key in arm)
        rows.append((str(key[0]), key[1], *cells, mebibytes(total)))
    columns = ("rank", "node", "#engine, baseline", "#engine, candidate", "#node available, baseline",
               "#node available, candidate", "#node total")  # fmt: skip
    caption = "Memory in MiB after the measurement, medians over the counted boots"
    return Section(f"{prefix}memory", "Memory by rank", (table(f"{prefix}memory-table", caption, columns, rows),))


def _memory(boots: Sequence[BootRow]) -> dict[tuple[int, str], tuple[float, float, float]]:
    seen: dict[tuple[int, str], list[Mapping[str, int]]] = {}
    for boot in boots:
        for rank in boot.record["observed"]["ranks"]:
            if rank["memory"]:
                seen.setdefault((int(rank["rank"]), str(rank["node"])), []).append(rank["memory"])
    names = ("resident_bytes", "memory_available_bytes", "memory_total_bytes")
    return {
        key: (
            float(statistics.median(each[names[0]] for each in found)),
            float(statistics.median(each[names[1]] for each in found)),
            float(statistics.median(each[names[2]] for each in found)),
        )
        for key, found in seen.items()
    }
