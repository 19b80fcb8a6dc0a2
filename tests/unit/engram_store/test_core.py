"""The C++ core under the sanitizers: many callers, forks in between, a shrinking file, stores closed while called."""

from __future__ import annotations

from pathlib import Path

import pytest
from sanitized import run_stress

from trispark.native_build import STORE


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_many_callers_leave_a_sanitizer_nothing_to_say(tmp_path: Path, sanitizer: str) -> None:
    assert run_stress(STORE, tmp_path, sanitizer, "0.3").endswith("passed\n")
