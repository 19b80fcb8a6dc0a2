import json
from pathlib import Path

import pytest

from trispark_lab.config import load_model_config, parse
from trispark_lab.errors import EngineError
from trispark_lab.rank import speculation_lines

ONE = ["--model-path", "/m"]
THREE = [*ONE, "--tp", "3", "--nnodes", "3", "--node-rank", "1", "--dist-init-addr", "10.0.0.1:20000"]
LINKS = ["--pair-link", "0:10.1.0.2:10.1.0.1", "--pair-link", "2:10.3.0.2:10.3.0.3"]


def test_flags_and_environment() -> None:
    config = parse(
        [*THREE, *LINKS, "--ep-size", "3", "--max-total-tokens", "750000", "--speculative-dspark-block-size", "5"],
        {"DSPARK_BLOCK_SIZE": "5", "DSV41_SOURCE": "/s", "DSV41_PACKED_DIR": "/p", "DSV41_IO_THREADS": "96"},
    )
    assert (config.rank, config.tp, config.ep_size, config.block_size) == (1, 3, 3, 5)
    assert config.max_total_tokens == 749824
    assert (config.rendezvous_host, config.rendezvous_port) == ("10.0.0.1", 20000)
    assert [(link.peer, link.local, link.remote) for link in config.pair_links] == [
        (0, "10.1.0.2", "10.1.0.1"),
        (2, "10.3.0.2", "10.3.0.3"),
    ]
    assert (config.source, config.packed_dir, config.io_threads) == (Path("/s"), Path("/p"), 96)
    assert config.server_args()["speculative_num_draft_tokens"] == 6


@pytest.mark.parametrize(
    ("argv", "pattern"),
    [
        ([], "model-path"),
        ([*ONE, "--unknown"], "--unknown"),
        ([*ONE, "--model", "x"], "--model"),
        ([*ONE, "--port", "x"], "--port"),
        ([*ONE, "--port", "65536"], "--port"),
        ([*ONE, "--speculative-dspark-block-size", "8"], "block-size"),
        ([*ONE, "--speculative-dspark-block-size", "0"], "block-size"),
        ([*ONE, "--speculative-algorithm", "EAGLE"], "EAGLE"),
        ([*ONE, "--max-running-requests", "0"], "max-running-requests"),
        ([*ONE, "--max-queued-requests", "0"], "max-queued-requests"),
        ([*ONE, "--min-free-slots-delay", "2"], "min-free-slots-delay"),
        ([*ONE, "--dist-init-addr", "nowhere"], "HOST:PORT"),
        ([*ONE, "--tp", "3"], "--nnodes"),
        ([*THREE, *LINKS, "--ep-size", "2"], "--ep-size"),
        ([*THREE, *LINKS, "--node-rank", "3"], "--node-rank"),
        (THREE, "--pair-link missing"),
        ([*THREE, *LINKS[:2]], r"none for \[2\]"),
        ([*THREE, *LINKS, "--pair-link", "2:10.3.0.2:10.3.0.3"], "--pair-link refused"),
        ([*THREE, *LINKS, "--pair-link", "1:10.3.0.2:10.3.0.3"], "--pair-link refused"),
        ([*THREE, "--pair-link", "0:10.1.0.2:10.1.0.999", *LINKS[2:]], "IPv4"),
    ],
)
def test_refused_flags(argv: list[str], pattern: str) -> None:
    with pytest.raises(EngineError, match=f"TS-ENGINE-FLAG: .*{pattern}") as caught:
        parse(argv, {})
    assert "\n" not in str(caught.value)


def test_the_block_size_has_one_value() -> None:
    with pytest.raises(EngineError, match=r"TS-ENGINE-BLOCK: .*5 and 3"):
        parse([*ONE, "--speculative-dspark-block-size", "5"], {"DSPARK_BLOCK_SIZE": "3"})
    assert parse(ONE, {"DSPARK_BLOCK_SIZE": "7"}).block_size == 7
    assert parse([*ONE, "--speculative-dspark-block-size", "2"], {}).block_size == 2


def test_speculation_switches() -> None:
    plain = parse(ONE, {})
    assert (plain.draft_tau, plain.block_verify, plain.verify_cap.armed) == (1.0, False, False)
    environ = {"DSV41_DRAFT_TAU": "0.8", "DSV41_BLOCK_VERIFY": "1", "DSV41_VERIFY_CAP": "conf:0.1"}
    config = parse([*ONE, "--speculative-dspark-block-size", "5", "--max-running-requests", "2"], environ)
    assert (config.draft_tau, config.block_verify, config.verify_cap.thresholds) == (0.8, True, (0.1,) * 4)
    assert speculation_lines(config) == [
        "[draft_tau] draft temperature x0.8",
        "[block_verify] armed: joint acceptance of sampled blocks",
        "[verify_cap] armed (conf:0.1): dead verify rows are copies of the anchor",
        "[verify_cap] in-place remap captured into the verify graph for M=6",
        "[verify_cap] in-place remap captured into the verify graph for M=12",
        "[verify_cap] draft confidence head built: True",
    ]
    assert speculation_lines(plain) == []
    planted = parse(ONE, {"DSV41_LAB_STEP_DELAY_PCT": "15"})
    assert speculation_lines(planted) == ["[lab_step_delay] armed: a decode step waits 15 % of its time more"]
    with pytest.raises(EngineError, match=r"TS-ENGINE-CAP: .*block size 3"):
        parse(ONE, {"DSV41_VERIFY_CAP": "conf:0.1"})


def test_tables_in_memory_are_refused() -> None:
    with pytest.raises(EngineError, match="OFFLOAD_MODE"):
        parse(ONE, {"OFFLOAD_MODE": "ram"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vocab_size", "many"),
        ("engram_layer_ids", [1]),
        ("engram_layer_ids", [1, 1]),
        ("engram_num_embeddings", [1, -1]),
        ("engram_n_heads", 7),
        ("o_groups", None),
        ("quantization_config", {}),
    ],
)
def test_a_hostile_model_configuration_is_refused(checkpoint: Path, tmp_path: Path, key: str, value: object) -> None:
    document = json.loads((checkpoint / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**document, key: value}))
    with pytest.raises(EngineError, match="TS-ENGINE-CHECKPOINT"):
        load_model_config(tmp_path)
