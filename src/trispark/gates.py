"""The gates of a boot: what was planned is compared with what every rank shows. What was not seen has failed.

Observations are the node agent's answers to `observe`, one a node. Each check gives one result a rank.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from trispark.allowlist import CONTROLLED_PREFIXES
from trispark.gate_result import GateResult
from trispark.images.parity import libraries, trees
from trispark.logparse import (
    READ,
    attach_lines,
    decode_lines,
    lines_matching,
    packed_states,
    stats_lines,
    total_lookups,
)
from trispark.quality.judges import accepted
from trispark.quality.model import ACCEPT_FLOOR
from trispark.quality.short import short_results
from trispark.resolve import Resolution
from trispark.warmup import batch_problems
from trispark_node.spec import CACHE_TOKEN, GENERATION_TOKEN, PORT_TOKEN, STATE_TOKEN

OLD_CANARY: Final[Mapping[str, Any]] = {"max_tokens": 8, "timeout_s": 30, "body": {}}
"""What generations of an older version do not say; a rollback to one must stay possible."""
LABELS: Final = ("trispark.generation", "trispark.boot", "trispark.epoch", "trispark.rank")

READ_LOG: Final = "read the kept log of that rank"
RESTAGE: Final = "stage the generation again on that node and boot"
ONE_IMAGE: Final = (
    "use one image on all nodes, and change no file inside a container; ./trispark images verify shows the chain"
)


def canary_request(resolution: Resolution) -> dict[str, Any]:
    """For the agent's verb `request` on the head: its one right answer shows that all ranks compute together."""
    canary = {**OLD_CANARY, **resolution.resolved["gates"]["canary"]}
    return {
        "url": canary["url"],
        "method": "POST",
        "body": {
            "model": canary["model"],
            "messages": [{"role": "user", "content": canary["prompt"]}],
            "temperature": 0,
            "max_tokens": canary["max_tokens"],
            "stream": False,
            **canary["body"],
        },
        "timeout_s": canary["timeout_s"],
    }


def judged_patterns(resolution: Resolution) -> list[str]:
    """Patterns of the log lines of which gates and record are made; a log may be long, they are few."""
    return sorted({*READ, *(rule.pattern for rule in resolution.evidence)})


def failed(results: list[GateResult]) -> list[GateResult]:
    """The results that are not ok; also what an empty list of results means is a failure (see evaluate)."""
    return [result for result in results if not result.ok]


OwnedRows = Mapping[str, Mapping[int, tuple[int, int]]]
"""{node: {layer: (first row, end row)}}."""


def evaluate(
    resolution: Resolution,
    observations: Mapping[str, Mapping[str, Any] | None],
    canary: Mapping[str, Any] | None,
    engram_rows: Mapping[int, int],
    lookups_before: Mapping[str, Mapping[str, int]] | None = None,
    batch: Sequence[Mapping[str, Any]] | None = None,
    owned: OwnedRows | None = None,
    quality: Sequence[Mapping[str, Any]] | None = None,
) -> list[GateResult]:
    """All checks on all ranks.

    observations    {node: answer of `observe`}; a node that is missing fails every check of its rank
    canary          answer of `request` for canary_request: {"status": int, "body": object or JSON text}
    engram_rows     {layer: rows of the whole table} from the checkpoint's safetensors header
    lookups_before  {node: {"layer": lookups before the canary}}; without it reads only have to exist
    batch           answers to trispark.warmup.batch_requests; None judges no batch
    owned           rows of each rank by its verified shards; without it [N*r//T, N*(r+1)//T) of each layer
    quality         answers to trispark.quality.short.short_requests; None judges none
    """
    gates = _Gates(resolution, observations, canary, engram_rows, lookups_before, owned)
    results: list[GateResult] = []
    for check in (
        gates.image_digest,
        gates.adapters,
        gates.source,
        gates.libraries,
        gates.engine_version,
        gates.generation,
        gates.mounts,
        gates.env_effective,
        gates.env_image_only,
        gates.env_command,
        gates.log_whole,
        gates.engram_packed,
        gates.engram_row_ranges,
        gates.engram_reads,
        gates.canary_text,
        gates.canary_all_ranks,
        gates.evidence,
    ):
        results += check()
    if batch is not None:
        results += gates.warmup_batch(batch)
    if quality is not None:
        results += short_results(resolution.resolved, quality)
    return results


def evaluate_after_load(
    resolution: Resolution,
    observations: Mapping[str, Mapping[str, Any] | None],
    earlier: Mapping[str, Mapping[str, Any] | None],
    engram_rows: Mapping[int, int],
) -> list[GateResult]:
    """What must still be true after the measurement; ids begin with `after_load.`.

    A rank that fell back, restarted or was replaced under load is found here. `earlier`: the observations that passed
    the gates before.
    """
    gates = _Gates(resolution, observations, None, engram_rows, None)
    results = [*gates.same_container(earlier), *gates.accept_length(earlier)]
    for check in (gates.generation, gates.log_whole, gates.engram_packed, gates.engram_reads, gates.evidence):
        results += check()
    return [replace(result, check_id=f"after_load.{result.check_id}") for result in results]


class _Gates:
    """Working state of one evaluation."""

    def __init__(
        self,
        resolution: Resolution,
        observations: Mapping[str, Mapping[str, Any] | None],
        canary: Mapping[str, Any] | None,
        engram_rows: Mapping[int, int],
        lookups_before: Mapping[str, Mapping[str, int]] | None,
        owned: OwnedRows | None = None,
    ) -> None:
        self.resolution = resolution
        self.nodes = dict(sorted(resolution.nodes.items()))
        self.world_size = len(self.nodes)
        self.observed = {rank: observations.get(node) or {} for rank, node in self.nodes.items()}
        self.canary = canary
        self.engram_rows = dict(sorted(engram_rows.items()))
        self.lookups_before = lookups_before
        self.owned = owned
        self.ranks = {entry["rank"]: entry for entry in resolution.resolved["ranks"]}
        # A configuration that an older version resolved does not say what to hash; a rollback to it stays possible.
        self.identity: Mapping[str, Any] | None = resolution.resolved["launch"].get("identity")

    def image_digest(self) -> list[GateResult]:
        """The planned digest among the image's digests, and one image id on all ranks."""
        expected = self.resolution.image_digest
        agreement = self._agreement("image id", lambda seen: _text(seen.get("image_id")))

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            digests = [str(reference).partition("@")[2] for reference in seen.get("image_digests") or []]
            agrees, note = agreement[rank]
            shown = ", ".join(digests) or "no digest"
            return expected in digests and agrees, expected, f"{shown}; {note}"

        return self._each("identity.image_digest", judge, "pull the image by digest on that node and boot again")

    def adapters(self) -> list[GateResult]:
        """Hashes read inside the container equal the planned ones, no file more and none less."""
        planned: Mapping[str, str] = self.resolution.resolved["adapters"]

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            actual = seen.get("adapters")
            expected = f"{len(planned)} files as planned"
            if not isinstance(actual, Mapping):
                return False, expected, "adapters were not read"
            problems = [f"{path} missing" for path in sorted(set(planned) - set(actual))]
            problems += [f"{path} not planned" for path in sorted(set(actual) - set(planned))]
            problems += [
                f"{path} is {str(actual[path])[:12]}, planned {planned[path][:12]}"
                for path in sorted(set(planned) & set(actual))
                if actual[path] != planned[path]
            ]
            return not problems, expected, "; ".join(problems) or expected

        return self._each("identity.adapters", judge, RESTAGE)

    def source(self) -> list[GateResult]:
        """One hash tree of the engine's own Python on all ranks, hashed from outside the containers."""
        if self.identity is None:
            return []
        check = trees("source", {rank: seen.get("identity") or {} for rank, seen in self.observed.items()}, self.nodes)

        def judge(rank: int, _seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            problem = check.problems.get(rank)
            return problem is None, "the same files on all ranks", problem or f"tree {str(check.hashes[rank])[:12]}"

        return self._each("identity.source", judge, ONE_IMAGE)

    def libraries(self) -> list[GateResult]:
        """Native code that several ranks have loaded is the same; what the engine names is loaded by all of them."""
        if self.identity is None:
            return []
        identities = {rank: seen.get("identity") or {} for rank, seen in self.observed.items()}
        needed = self.identity.get("needed", ())  # a generation that was stored before it was asked for has none
        compared, problems = libraries(identities, self.nodes, self.identity["same_set"], needed)

        def judge(rank: int, _seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            said = problems.get(rank) or compared.words(rank, self.nodes[rank])
            count = ((identities[rank].get("libraries") or {}).get("files")) or 0
            return not said, "the same bits of what several ranks have loaded", said or f"{count} libraries"

        return self._each("identity.libraries", judge, ONE_IMAGE)

    def engine_version(self) -> list[GateResult]:
        """One engine version and one set of package versions on all ranks."""
        agreement = self._agreement("engine and packages", _versions)

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            agrees, note = agreement[rank]
            known = _versions(seen) is not None
            return known and agrees, "the same version on all ranks", note if known else "no version"

        return self._each("identity.engine_version", judge, "use one image on all nodes")

    def generation(self) -> list[GateResult]:
        """Labels of the container: this generation, this rank, and one boot and epoch on all ranks."""
        boots = self._agreement("boot and epoch", lambda seen: _boot(seen.get("labels") or {}))

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            labels = seen.get("labels") or {}
            expected = f"{self.resolution.id}, rank {rank}, one boot on all ranks"
            agrees, note = boots[rank]
            same = labels.get("trispark.generation") == self.resolution.id
            same = same and str(labels.get("trispark.rank")) == str(rank)
            observed = f"{labels.get('trispark.generation')}, rank {labels.get('trispark.rank')}, {note}"
            return same and agrees and _boot(labels) is not None, expected, observed

        return self._each("identity.generation", judge, "stop all ranks and boot again")

    def mounts(self) -> list[GateResult]:
        """The container's mounts are the planned ones: source, target and read-only."""

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            planned = {mount["target"]: mount for mount in self.ranks[rank]["mounts"]}
            actual = {str(mount.get("target")): mount for mount in seen.get("mounts") or []}
            problems = [f"{target} not mounted" for target in sorted(set(planned) - set(actual))]
            problems += [f"{target} not planned" for target in sorted(set(actual) - set(planned))]
            for target in sorted(set(planned) & set(actual)):
                source = str(actual[target].get("source"))
                if not _same_source(planned[target]["source"], source, self.resolution.id):
                    problems.append(f"{target} comes from {source}, planned {planned[target]['source']}")
                if actual[target].get("read_only") is not planned[target]["read_only"]:
                    problems.append(f"{target} read_only is {actual[target].get('read_only')}")
            expected = ", ".join(sorted(planned))
            return not problems, expected, "; ".join(problems) or expected

        return self._each("identity.mounts", judge, RESTAGE)

    def env_effective(self) -> list[GateResult]:
        """The image's environment overlaid by the rendered one equals the container's."""

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            image_env, actual = seen.get("image_env"), seen.get("env")
            expected = "the image's environment overlaid by the rendered one"
            if not isinstance(image_env, Mapping) or not isinstance(actual, Mapping):
                return False, expected, "the environment was not read"
            planned = {**image_env, **self._with_port(self.ranks[rank]["env"], seen)}
            problems = [f"{name} missing" for name in sorted(set(planned) - set(actual))]
            problems += [f"{name} not planned" for name in sorted(set(actual) - set(planned))]
            problems += [
                f"{name} differs" for name in sorted(set(planned) & set(actual)) if planned[name] != actual[name]
            ]
            return not problems, expected, "; ".join(problems) or f"{len(planned)} variables as planned"

        return self._each("env.effective", judge, RESTAGE)

    def env_image_only(self) -> list[GateResult]:
        """No variable with a controlled prefix comes from the image alone."""

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            image_env = seen.get("image_env")
            expected = "no variable of " + ", ".join(CONTROLLED_PREFIXES) + " set by the image alone"
            if not isinstance(image_env, Mapping):
                return False, expected, "the image's environment was not read"
            expectable = {*self.ranks[rank]["env"], *self.resolution.resolved["launch"].get("image_env", ())}
            alone = sorted(set(image_env) - expectable)
            alone = [name for name in alone if name.startswith(CONTROLLED_PREFIXES)]
            return not alone, expected, ", ".join(alone) or "none"

        return self._each("env.image_only", judge, "remove it from the image, or describe it in the allowlist")

    def env_command(self) -> list[GateResult]:
        """The container's command is the rendered one with the port of its epoch."""

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            planned = [self._fill_port(argument, seen) for argument in self.ranks[rank]["command"]]
            actual = seen.get("command")
            expected = f"{len(planned)} arguments as rendered"
            if not isinstance(actual, list):
                return False, expected, "the command was not read"
            if actual == planned:
                return True, expected, expected
            position = next(
                (i for i, (a, b) in enumerate(zip(planned, actual, strict=False)) if a != b),
                min(len(planned), len(actual)),
            )
            flag = next((argument for argument in reversed(planned[: position + 1]) if argument.startswith("--")), "")
            return (
                False,
                expected,
                f"{len(actual)} arguments, first difference at {position} {flag}".rstrip(),
            )

        return self._each("env.command", judge, RESTAGE)

    def log_whole(self) -> list[GateResult]:
        """The whole log was searched, and no line that is judged was left out: it could be one that must not appear."""

        def judge(_rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            left_out = int(seen.get("log_bytes_left_out") or 0)
            observed = f"log of {seen.get('log_size', 'unknown')} bytes, {left_out} of those to judge left out"
            return left_out == 0, "no line that is judged left out", observed

        return self._each("log.whole", judge, "boot again: a log begins with its container")

    def same_container(self, earlier: Mapping[str, Mapping[str, Any] | None]) -> list[GateResult]:
        """The container that passed the gates is the one that still runs."""

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            before = earlier.get(self.nodes[rank]) or {}
            expected = f"{before.get('container_id')} started {before.get('started_at')}"
            observed = f"{seen.get('container_id')} started {seen.get('started_at')}"
            return bool(before) and observed == expected, expected, observed

        return self._each("identity.container", judge, READ_LOG)

    def accept_length(self, earlier: Mapping[str, Mapping[str, Any] | None]) -> list[GateResult]:
        """The mean accept length of the decode lines since the gates before is above the hard floor and in the bands of
        the configuration; the head prints them. A load that is too short for a line is judged where there is a band."""
        bands = self.resolution.resolved["gates"].get("accept_bands", [])
        before = decode_lines(str((earlier.get(self.nodes[0]) or {}).get("log") or ""))

        def judge(_rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            lengths = [line.accept_length for line in decode_lines(str(seen.get("log") or ""))][len(before) :]
            limits = [f"at least {ACCEPT_FLOOR}", *(f"{low:g} to {high:g}" for low, high in bands)]
            expected = " and ".join(limits) + " tokens a step"
            if not lengths:
                return False, expected, "no decode line since the measurement began"
            mean = statistics.fmean(lengths)
            return accepted(mean, bands), expected, f"{mean:.2f}, the mean of {len(lengths)} decode lines"

        remedy = "compare draft weights and speculative settings with the baseline's, read the head's kept log"
        lines = decode_lines(str((self.observed.get(0) or {}).get("log") or ""))
        if not bands and len(lines) == len(before):
            return []
        return [result for result in self._each("accept_length", judge, remedy) if result.rank == 0]

    def engram_packed(self) -> list[GateResult]:
        """Every layer is served from its packed file, by the attach lines and by the counter lines."""

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            log = str(seen.get("log") or "")
            states: dict[int, set[bool]] = {}
            for layer, packed in packed_states(log):
                states.setdefault(layer, set()).add(packed)
            attached = {line.layer for line in attach_lines(log)}
            expected = _per_layer({layer: "packed=True" for layer in self.engram_rows})
            observed = _per_layer(
                {
                    layer: "no attach line"
                    if layer not in attached
                    else " and ".join(f"packed={state}" for state in sorted(states[layer]))
                    for layer in sorted(set(self.engram_rows) | set(states))
                }
            )
            return bool(self.engram_rows) and observed == expected, expected, observed

        return self._each("engram.packed", judge, "run playbooks/stage_a.yml, which packs missing shards")

    def engram_row_ranges(self) -> list[GateResult]:
        """The attach line of each layer names this rank and the rows that it owns."""

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            ranges: dict[int, set[str]] = {}
            for line in attach_lines(str(seen.get("log") or "")):
                ranges.setdefault(line.layer, set()).add(f"rank {line.rank} [{line.first_row},{line.end_row})")
            planned = {
                layer: f"rank {rank} [{first},{end})" for layer, (first, end) in sorted(self._owned(rank).items())
            }
            observed = {
                layer: " and ".join(sorted(ranges.get(layer, {"no attach line"}))) for layer in {**planned, **ranges}
            }
            return bool(planned) and observed == planned, _per_layer(planned), _per_layer(observed)

        return self._each("engram.rows", judge, "check which shards and which checkpoint that node mounts")

    def _owned(self, rank: int) -> Mapping[int, tuple[int, int]]:
        if self.owned is not None:
            return self.owned.get(self.nodes[rank], {})
        parts, rows = self.world_size, self.engram_rows
        return {layer: (count * rank // parts, count * (rank + 1) // parts) for layer, count in rows.items()}

    def engram_reads(self) -> list[GateResult]:
        """Rows were looked up since the canary began, and each miss cost one read."""
        cacheless = float(self.resolution.settings.get("DSV41_CACHE_GIB", 0)) == 0.0

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            log = str(seen.get("log") or "")
            totals = total_lookups(log)
            before = (self.lookups_before or {}).get(self.nodes[rank], {})
            problems = []
            for layer in self.engram_rows:
                floor = int(before.get(str(layer), 0)) if self.lookups_before is not None else 0
                if totals.get(layer, 0) <= floor:
                    problems.append(f"layer {layer}: {totals.get(layer, 0)} lookups, {floor} of them before the canary")
            for line in stats_lines(log):
                low, high = (line.lookups, line.lookups) if cacheless else line.expected_reads()
                if not low <= line.reads <= high:
                    problems.append(
                        f"layer {line.layer}: {line.lookups} lookups, {line.reads} reads, {line.hit_rate_percent}% hits"
                    )
            observed = "; ".join(dict.fromkeys(problems)) or _per_layer(
                {layer: f"{totals[layer]} lookups, one read a miss" for layer in self.engram_rows}
            )
            return bool(self.engram_rows) and not problems, "lookups by the canary and reads = lookups - hits", observed

        return self._each("engram.reads", judge, READ_LOG)

    def canary_text(self) -> list[GateResult]:
        """The canary's answer is exactly right and ended by itself."""
        expected = f"HTTP 200, {self.resolution.resolved['gates']['canary']['text']!r}, finish_reason stop"
        observed = "no answer"
        if self.canary is not None:
            text, reason = _answer(self.canary.get("body"))
            observed = f"HTTP {self.canary.get('status')}, {text!r}, finish_reason {reason}"
        ok = observed == expected
        remedy = "compare shards and image of all ranks, or, after a repair of shards, boot again"
        return [GateResult("canary.text", None, ok, expected, observed, "" if ok else remedy)]

    def warmup_batch(self, answers: Sequence[Mapping[str, Any]]) -> list[GateResult]:
        """As many requests at once as there are slots, every one answered in Latin prose."""
        problems = batch_problems(self.resolution.resolved, answers)
        expected = "Latin prose in each answer of the batch"
        observed = "; ".join(problems) or f"{len(answers)} answers in Latin prose"
        remedy = "compare PYTORCH_CUDA_ALLOC_CONF and the image of all ranks, read the kept logs"
        return [GateResult("warmup.batch", None, not problems, expected, observed, remedy if problems else "")]

    def canary_all_ranks(self) -> list[GateResult]:
        """Each rank took part: it looked rows up for the canary."""

        def judge(rank: int, seen: Mapping[str, Any]) -> tuple[bool, str, str]:
            node = self.nodes[rank]
            totals = total_lookups(str(seen.get("log") or ""))
            before = (self.lookups_before or {}).get(node, {})
            counted = sum(totals.values()) - sum(int(count) for count in before.values())
            problems = [] if counted > 0 else ["no row was looked up"]
            return not problems, "rows looked up by this rank", "; ".join(problems) or f"{counted} rows looked up"

        return self._each("canary.all_ranks", judge, READ_LOG)

    def evidence(self) -> list[GateResult]:
        """Log lines that the configuration must show, and lines that it must not."""
        results = []
        for rule in self.resolution.evidence:
            for rank in rule.ranks:
                seen = self.observed.get(rank, {})
                log = seen.get("log")
                found = lines_matching(rule.pattern, log) if isinstance(log, str) else []
                expected = f"a line: {rule.proves}" if rule.must_appear else f"no line: {rule.proves}"
                if not isinstance(log, str):
                    ok, observed = False, "no log"
                else:
                    ok = bool(found) is rule.must_appear
                    observed = found[-1].strip()[:200] if found else "no such line"
                remedy = "" if ok else READ_LOG
                results.append(GateResult(f"evidence.{rule.id}", rank, ok, expected, observed, remedy))
        return results

    def _each(
        self, check_id: str, judge: Callable[[int, Mapping[str, Any]], tuple[bool, str, str]], remedy: str
    ) -> list[GateResult]:
        """`judge` on each rank; a rank without observation fails."""
        results = []
        for rank, node in self.nodes.items():
            seen = self.observed[rank]
            if seen:
                ok, expected, observed = judge(rank, seen)
            else:
                ok, expected, observed = False, f"an observation of {node}", "nothing"
            results.append(GateResult(check_id, rank, ok, expected, observed, "" if ok else remedy))
        return results

    def _agreement(self, what: str, value_of: Callable[[Mapping[str, Any]], str | None]) -> dict[int, tuple[bool, str]]:
        """{rank: (agrees, note)}: with a majority only the odd ranks fail, without one all do. The note names them."""
        values: dict[int, str | None] = {rank: value_of(seen) for rank, seen in self.observed.items()}
        common = _majority(list(values.values()))
        notes: dict[int, tuple[bool, str]] = {}
        for rank, value in values.items():
            others = ", ".join(self.nodes[r] for r, v in values.items() if v == value and r != rank)
            if value is None:
                notes[rank] = (False, f"{what} unknown")
            elif common is None:
                notes[rank] = (
                    False,
                    f"{what} {value}, no two ranks agree" if not others else f"{what} {value}, no majority",
                )
            elif value == common:
                notes[rank] = (True, f"{what} {value}" + (f" as on {others}" if others else ""))
            else:
                majority = ", ".join(self.nodes[r] for r, v in values.items() if v == common)
                notes[rank] = (False, f"the odd node {self.nodes[rank]}: {what} {value}, {majority} have {common}")
        return notes

    def _with_port(self, env: Mapping[str, str], seen: Mapping[str, Any]) -> dict[str, str]:
        return {name: self._fill_port(value, seen) for name, value in env.items()}

    def _fill_port(self, text: str, seen: Mapping[str, Any]) -> str:
        """The rendezvous port that the agent chose: ports[epoch % number of ports]."""
        epoch = str((seen.get("labels") or {}).get("trispark.epoch", ""))
        if PORT_TOKEN not in text or not epoch.isdecimal():
            return text
        ports = self.resolution.resolved["launch"]["rendezvous_ports"]
        return text.replace(PORT_TOKEN, str(ports[int(epoch) % len(ports)]))


def _majority(values: list[str | None]) -> str | None:
    """The value that more than half of the ranks have."""
    counts: Counter[Hashable] = Counter(value for value in values if value is not None)
    for value, count in counts.items():
        if count * 2 > len(values):
            return str(value)
    return None


def _versions(seen: Mapping[str, Any]) -> str | None:
    versions = seen.get("versions") or {}
    engine, packages = versions.get("engine"), versions.get("packages")
    if not engine or not isinstance(packages, Mapping) or not all(packages.values()):
        return None
    return " ".join([str(engine), *(f"{name} {version}" for name, version in sorted(packages.items()))])


def _boot(labels: Mapping[str, Any]) -> str | None:
    boot, epoch = labels.get("trispark.boot"), labels.get("trispark.epoch")
    return None if not boot or epoch in (None, "") else f"{boot} epoch {epoch}"


def _text(value: object) -> str | None:
    return str(value) if value else None


def _same_source(planned: str, actual: str, generation: str) -> bool:
    for token, place in ((GENERATION_TOKEN, "generations"), (STATE_TOKEN, "engine-state")):
        if planned.startswith(token):
            return actual.endswith(planned.replace(token, f"/{place}/{generation}"))
    if planned == CACHE_TOKEN:
        return re.search(r"/engine-cache/[0-9a-f]{16}$", actual) is not None
    return planned == actual


def _per_layer(values: Mapping[int, str]) -> str:
    return "; ".join(f"layer {layer}: {values[layer]}" for layer in sorted(values)) or "no layer"


def _answer(body: object) -> tuple[str | None, str | None]:
    """(text, finish reason) of a chat completion, or Nones."""
    if isinstance(body, str):
        try:
            body = json.loads(body)
        except ValueError:
            return None, None
    try:
        choice = body["choices"][0]  # type: ignore[index]
        return choice["message"]["content"], choice["finish_reason"]
    except (KeyError, IndexError, TypeError):
        return None, None
