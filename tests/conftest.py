"""For all tests: hypothesis gives the same examples every time, and a busy machine fails no example for being slow."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "trispark", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("trispark")

# Before anything imports NumPy: several ranks share few cores, and products that spread over all of them wait for each
# other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
