"""Puts the adapters on the path, as PYTHONPATH does in the engine's container."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "adapters"))
