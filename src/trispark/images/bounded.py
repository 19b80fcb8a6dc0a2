"""Reads files that somebody else may have changed: regular ones alone, no links, and no more than they may have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from trispark_node.plain_json import parse_json
from trispark_node.regular_file import read_bounded


def read_file(path: Path, most: int) -> bytes:
    """The whole content. Raises OSError: for a link, for what is no regular file, for more than `most` bytes."""
    return read_bounded(path, most, os.O_NOFOLLOW)


def read_json(path: Path, most: int) -> dict[str, Any]:
    """The object in a file. Raises OSError as `read_file` does, ValueError for what is no JSON object."""
    value = parse_json(read_file(path, most))
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value
