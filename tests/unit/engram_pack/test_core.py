"""The C++ core under the sanitizers: packs, hashes and comparisons at once, ended early, failing, and right."""

from __future__ import annotations

from pathlib import Path

import pytest
from sanitized import run_stress

from trispark.native_build import PACK


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_jobs_leave_a_sanitizer_nothing_to_say(tmp_path: Path, sanitizer: str) -> None:
    assert run_stress(PACK, tmp_path, sanitizer, "3").endswith("passed\n")
