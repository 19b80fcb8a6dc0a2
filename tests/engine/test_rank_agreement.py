"""Three processes over loopback: ranks decide alike, and a rank that would not is seen."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

ROOT = Path(__file__).resolve().parents[2]
RANK = ROOT / "tests/support/agreeing_ranks.py"
DEADLINE_S = 240


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank decided in each step, by fault; no engine is on the path of the ranks."""
    store = tmp_path_factory.mktemp("ranks") / "store"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("DSV41_", "SGLANG_"))}
    environ |= {"PYTHONPATH": str(ROOT / "adapters"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(RANK)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(store)], env=environ, stdout=subprocess.PIPE, text=True)
        for rank in range(3)
    ]
    try:
        outs = [rank.communicate(timeout=DEADLINE_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    return [json.loads(out.splitlines()[-1]) for out in outs]


def test_ranks_decide_alike(decisions: list[dict[str, Any]]) -> None:
    first, second, third = (rank["none"] for rank in decisions)
    assert first == second == third
    lives = {length for lens, _, _ in first for length in lens}
    kept = {count for _, counts, _ in first for count in counts}
    assert len(lives) > 2
    assert len(kept) > 2
    assert all(count < length for lens, counts, _ in first for length, count in zip(lens, counts, strict=True))


@pytest.mark.parametrize("fault", ["alone", "generator"])
def test_ranks_that_would_not_are_seen(decisions: list[dict[str, Any]], fault: str) -> None:
    assert decisions[0][fault] != decisions[1][fault]
