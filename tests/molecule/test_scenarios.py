"""The molecule scenarios, run for real: each makes the lab, converges it, looks at the nodes over ssh and removes it.

They begin and end without a lab: one that is up in this checkout is removed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent
PHASE = re.compile(r"\[\S+ > (\w+)\] (Executing|Executed: Successful)$")
SCENARIOS = sorted(path.parent.name for path in ROOT.glob("molecule/*/molecule.yml"))
SCENARIO_TIMEOUT_S = 600


def environment() -> dict[str, str]:
    """molecule calls ansible-playbook, ansible-config and pytest by name."""
    return {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}", "PYTEST_ADDOPTS": "", "NO_COLOR": "1"}


def play(scenario: str) -> tuple[int, str, list[tuple[str, float]]]:
    """Exit status, output, and the phases that succeeded with their seconds."""
    lines: list[str] = []
    phases: list[tuple[str, float]] = []
    began = started = time.monotonic()
    with subprocess.Popen(
        [str(TOOLS / "molecule"), "test", "--scenario-name", scenario, "--destroy", "always"],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            now = time.monotonic()
            if found := PHASE.search(line.rstrip()):
                if found[2] == "Executing":
                    started = now
                else:
                    phases.append((found[1], now - started))
            if now - began > SCENARIO_TIMEOUT_S:
                process.kill()
    return process.returncode, "".join(lines), phases


def left_over() -> str:
    argv = ["docker", "ps", "--all", "--filter", "label=trispark.lab=1", "--format", "{{.Names}}"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


@pytest.mark.lab
@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(scenario: str) -> None:
    status, output, phases = play(scenario)
    print("\n".join(f"{seconds:7.1f} s  {scenario} {phase}" for phase, seconds in phases))
    assert status == 0, output[-6000:]
    sequence = yaml.safe_load((ROOT / "molecule" / scenario / "molecule.yml").read_text())["scenario"]["test_sequence"]
    assert [phase for phase, _ in phases] == [step.split()[0] for step in sequence], output[-6000:]
    assert "DEPRECATION WARNING" not in output
    assert left_over() == ""


def test_every_scenario_goes_from_nothing_to_nothing_and_is_idempotent() -> None:
    assert SCENARIOS == ["default", "first-install", "upgrade"]
    for name in SCENARIOS:
        sequence = yaml.safe_load((ROOT / "molecule" / name / "molecule.yml").read_text())["scenario"]["test_sequence"]
        steps = [step.split()[0] for step in sequence]
        assert steps[0] == steps[-1] == "destroy"
        assert "verify" in steps
        assert steps.index("converge") + 1 == steps.index("idempotence")
