"""Runs tests/engine on the engine's own modules, in the environment that `./trispark test` makes below .trispark.

Files that import the engine run on each release, others once. Without the environment it is skipped, with the reason.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trispark.engine_api.environment import EngineEnvironment
from trispark.engine_api.model import load_builds

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "tests" / "engine"
RELEASES = [build.wheel.version for build in load_builds(ROOT).builds.values() if build.wheel is not None]
PATHS = [ROOT / name for name in ("adapters", "src", "lab", "tests/support", "tests/engine")]


def files(release: str) -> list[str]:
    """All on the first release; on the others those that have to do with the engine."""
    found = sorted(TESTS.glob("test_*.py"))
    return [str(path) for path in found if release == RELEASES[0] or "sglang" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("release", RELEASES)
def test_on_the_modules_of_a_release(release: str) -> None:
    environment = EngineEnvironment(ROOT, print)
    if not environment.ready():
        pytest.skip(f"no engine environment: {environment.why_not()}")
    argv = [str(environment.python), "-m", "pytest", "-q", f"--rootdir={ROOT}", f"--confcutdir={TESTS}"]
    done = subprocess.run(
        [*argv, "-c", str(TESTS / "engine.ini"), *files(release)],
        cwd=ROOT,
        env={**environment.environ(release, *PATHS), "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    print(done.stdout[-4000:])
    assert done.returncode == 0, f"exit {done.returncode}"
    assert " passed" in done.stdout.splitlines()[-1]
