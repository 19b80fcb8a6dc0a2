import pytest

from trispark_lab.environment import CONTROLLED_PREFIXES, RULES, check_environment
from trispark_lab.errors import EngineError


@pytest.mark.parametrize(
    "name", ["DSV41_TYPO", "DSPARK_NEW", "SGLANG_SOMETHING", "NCCL_WHATEVER", "DSV41_", "NCCL_SWITCHLESS_RING_ONLY"]
)
def test_unknown_and_refused_names_are_named(name: str) -> None:
    with pytest.raises(EngineError, match=rf"TS-ENGINE-ENV: .*{name}"):
        check_environment({"PATH": "/bin", name: "1"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DSV41_CACHE_GIB", "64.5"),
        ("DSV41_CACHE_GIB", "-1"),
        ("DSV41_CACHE_GIB", "1e9"),
        ("DSV41_CACHE_WAYS", "17"),
        ("DSV41_IO_THREADS", "0"),
        ("DSV41_IO_THREADS", "257"),
        ("DSPARK_BLOCK_SIZE", "8"),
        ("DSPARK_BLOCK_SIZE", "3\n"),
        ("DSV41_WO_A_W8", "yes"),
        ("DSV41_STATS_SECONDS", "nan"),
        ("DSV41_DRAFT_TAU", "0.05"),
        ("DSV41_DRAFT_TAU", "2.1"),
        ("DSV41_DRAFT_TAU", "nan"),
        ("DSV41_BLOCK_VERIFY", "true"),
        ("DSV41_VERIFY_CAP", "6"),
        ("DSV41_VERIFY_CAP", "false"),
        ("DSV41_VERIFY_CAP", "conf:"),
        ("DSV41_RESIDENT_SCALES", "1"),
        ("DSV41_TP_PAD", "0"),
        ("DSV41_ENGRAM_PREFETCH", "on"),
        ("SGLANG_RAGGED_VERIFY_MODE", "compact"),
        ("SGLANG_FLASHINFER_MOE_FUSED_FINALIZE", "1"),
        ("SGLANG_SIMULATE_ACC_LEN", "1.0"),
        ("NCCL_NET", "Socket"),
    ],
)
def test_values_without_effect_are_refused(name: str, value: str) -> None:
    with pytest.raises(EngineError, match=f"TS-ENGINE-ENV: .*{name}"):
        check_environment({name: value})


def test_production_values_of_inert_names_are_reported() -> None:
    environ = {"SGLANG_RAGGED_VERIFY_MODE": "static", "DSV41_TP_PAD": "1", "NCCL_PROTO": "^LL128", "DSV41_WO_A_W8": "1"}
    assert check_environment(environ) == [
        ("DSV41_TP_PAD", "1"),
        ("NCCL_PROTO", "^LL128"),
        ("SGLANG_RAGGED_VERIFY_MODE", "static"),
    ]


def test_other_names_are_not_ours() -> None:
    assert check_environment({"HOME": "x", "OMP_NUM_THREADS": "4", "MY_NCCL_X": "1"}) == []


def test_the_table_is_well_formed() -> None:
    assert all(name.startswith(CONTROLLED_PREFIXES) for name in RULES)
    assert {rule.kind for rule in RULES.values()} == {"implemented", "inert", "refused"}
