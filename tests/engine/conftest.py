"""Tests on the engine's own modules; they run in the environment of `.trispark/engine`, see test_engine_suite.py.

Where the engine cannot be imported, as in .venv, nothing here is collected.
"""

from __future__ import annotations

import importlib.util

from hypothesis import HealthCheck, settings

settings.register_profile(
    "trispark", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("trispark")

if any(importlib.util.find_spec(name) is None for name in ("torch", "sglang")):
    collect_ignore_glob = ["test_*.py"]
