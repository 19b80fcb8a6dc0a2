"""Canonical JSON and its hash, byte for byte the controller's: sorted keys, no blanks, UTF-8, no NaN."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Raises ValueError for NaN and infinities."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8")


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def generation_id(resolved: Any) -> str:
    """`g` and the first 16 hex digits of the hash of the resolved configuration."""
    return "g" + sha256_hex(canonical_json(resolved))[:16]
