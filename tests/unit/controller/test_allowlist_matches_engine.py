"""The lab engine accepts exactly what the allowlist lets through to it, and says inert where the allowlist says so."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trispark.allowlist import CONTROLLED_PREFIXES, Kind, Support, Variable, format_value
from trispark.catalog import Catalog
from trispark.logparse import Attach, Stats, attach_lines, decode_lines, stats_lines
from trispark.resolve import Resolution

OTHER_TEXTS = {
    "NCCL_BUFFSIZE": (4194304,),
    "NCCL_PROTO": ("LL", "LL,LL128,Simple"),
    "NCCL_DEBUG_SUBSYS": ("INIT",),
    "PYTORCH_CUDA_ALLOC_CONF": ("expandable_segments:True",),
}
"""More values of inert variables that a deployment somewhere uses; the lab takes the production value alone."""

environment = pytest.importorskip("trispark_lab.environment")


def delivered(catalog: Catalog) -> list[Variable]:
    """Variables that reach the lab engine by environment and whose prefix it controls."""
    return [
        variable
        for variable in catalog.allowlist.variables()
        if variable.env
        and variable.support("lab") is not Support.REFUSED
        and variable.name.startswith(environment.CONTROLLED_PREFIXES)
    ]


def accepted(name: str, value: object) -> bool:
    try:
        environment.check_environment({name: format_value(value)})  # type: ignore[arg-type]
    except environment.EngineError:
        return False
    return True


def corners(variable: Variable) -> list[object]:
    """Values that the allowlist lets through, at the ends of its range."""
    match variable.type:
        case Kind.FLAG01:
            return [0, 1]
        case Kind.INT:
            return [variable.min, variable.max]
        case Kind.FLOAT:
            return [float(variable.min or 0), float(variable.max or 1)]
        case Kind.ENUM:
            return list(variable.choices or ())
        case _:
            return ["/a path/with #"] if variable.type is Kind.PATH else []


def test_rendered_environment_starts_the_engine(baseline: Resolution, candidate: Resolution) -> None:
    for resolution in (baseline, candidate):
        for entry in resolution.resolved["ranks"]:
            environment.check_environment(entry["env"])


def test_engine_controls_no_prefix_that_the_gates_do_not() -> None:
    assert set(environment.CONTROLLED_PREFIXES) <= set(CONTROLLED_PREFIXES)


def test_implemented_values_are_accepted_over_the_whole_range(catalog: Catalog) -> None:
    for variable in delivered(catalog):
        if variable.support("lab") is Support.IMPLEMENTED:
            refused = [value for value in corners(variable) if not accepted(variable.name, value)]
            assert refused == [], variable.name


def test_inert_variables_have_one_value_in_both_tables(catalog: Catalog) -> None:
    for variable in delivered(catalog):
        if variable.support("lab") is Support.INERT:
            only = variable.check(variable.inert_value, "allowlist")
            assert accepted(variable.name, only), variable.name
            others = [value for value in (*corners(variable), *OTHER_TEXTS.get(variable.name, ())) if value != only]
            assert [value for value in others if accepted(variable.name, value)] == [], variable.name
        else:
            assert environment.RULES[variable.name].kind == "implemented", variable.name


def test_every_name_that_the_engine_implements_is_on_the_list(catalog: Catalog) -> None:
    implemented = {name for name, rule in environment.RULES.items() if rule.kind == "implemented"}
    listed = {variable.name for variable in delivered(catalog) if variable.support("lab") is Support.IMPLEMENTED}
    assert implemented == listed


@pytest.mark.parametrize("name", ["DSV41_NEW", "DSPARK_NEW", "SGLANG_NEW", "NCCL_NEW"])
def test_a_name_that_is_not_on_the_list_is_refused_by_both(catalog: Catalog, name: str) -> None:
    assert name not in catalog.allowlist
    with pytest.raises(environment.EngineError, match=f"TS-ENGINE-ENV: unknown variable {name} "):
        environment.check_environment({name: "1"})


def test_what_the_engine_refuses_is_never_delivered(catalog: Catalog) -> None:
    names = {variable.name for variable in delivered(catalog)}
    assert not names & {name for name, rule in environment.RULES.items() if rule.kind == "refused"}


def test_rendered_command_starts_the_engine(candidate: Resolution) -> None:
    config = pytest.importorskip("trispark_lab.config")
    for entry in candidate.resolved["ranks"]:
        command = [argument.replace("{rendezvous_port}", "20000") for argument in entry["command"]]
        engine = config.parse(command[3:], entry["env"])
        assert (engine.rank, engine.block_size, engine.ep_size) == (entry["rank"], 3, 3)


@pytest.mark.parametrize("capped", [False, True])
def test_engine_s_decode_line_is_read(capped: bool) -> None:
    counters = pytest.importorskip("trispark_lab.counters")
    line = counters.DecodeLine(5, capped)
    line.add(2, 6, 6, 8)
    text = "[2026-09-25 10:00:00 TP0 EP0] " + line.take(2, 50, 0.1, 0)
    assert ("cap len: 4.00" in text) is capped
    (read,) = decode_lines(text)
    assert (read.running, read.accept_length, read.accept_rate) == (2, 3.0, 0.4)


def test_engine_s_own_lines_are_read() -> None:
    row_store = pytest.importorskip("trispark_lab.row_store")
    shard = SimpleNamespace(layer=14, rank=2, first=5, end=9)
    counts = row_store.Counts(lookups=8, hits=0, reads=8)
    store = SimpleNamespace(shard=shard, packed=True, counts=counts, slots=0)
    prefix = "[2026-09-25 10:00:00 TP2 EP2] "
    start = prefix + row_store.start_line(store, 0.0, 4, 96)
    assert attach_lines(start) == [Attach(14, 2, 5, 9, 0.0, True)]
    (line,) = row_store.CounterLines([store], 0.0, 4, 96)(False)
    assert stats_lines(prefix + line) == [Stats(14, 8, 0.0, 8, True)]
    store.slots, store.counts = 2, row_store.Counts(lookups=8, hits=3, reads=5)
    assert attach_lines(prefix + row_store.start_line(store, 0.001, 4, 96))[0].cache_gib == 0.001
    (line,) = row_store.CounterLines([store], 0.001, 4, 96)(False)
    (stats,) = stats_lines(prefix + line)
    assert (stats.hits, stats.expected_reads()) == (3, (5, 5))
