"""The Triton kernels of speculation: in Triton's interpreter beside their torch forms, and compiled for two GPUs."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 300


@pytest.fixture(scope="module")
def differences() -> dict[str, int]:
    """{case: entries that differ}, of a process of its own, since the interpreter is chosen before the import."""
    router = ["--router"] if importlib.util.find_spec("sglang") else []
    program = [sys.executable, str(ROOT / "tests/support/interpreted_kernels.py"), *router]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("kind", ["block", "remap", "router"])
def test_kernels_do_what_their_torch_forms_do(differences: dict[str, int], kind: str) -> None:
    found = {case: count for case, count in differences.items() if case.startswith(kind)}
    if kind == "router" and not importlib.util.find_spec("sglang"):
        pytest.skip("sglang is not on the path")
    assert found
    assert set(found.values()) == {0}, found


def test_kernels_compile_for_an_h200_and_a_gb10(tmp_path: Path) -> None:
    """The interpreter takes what the compiler would refuse."""
    program = [sys.executable, str(ROOT / "tests/support/compiled_kernels.py"), "90", "121"]
    environ = os.environ | {"PYTHONPATH": str(ROOT / "adapters"), "TRITON_CACHE_DIR": str(tmp_path)}
    environ.pop("TRITON_INTERPRET", None)
    done = subprocess.run(program, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    sizes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    assert len(sizes) == 12
    assert min(sizes.values()) > 1000
