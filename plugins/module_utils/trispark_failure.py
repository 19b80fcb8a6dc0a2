"""How every trispark module fails: one line with a stable id, and the same as fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from trispark_node.errors import error_line


def fail(module: Any, error: Mapping[str, str], **result: Any) -> NoReturn:
    """End `module` with the error's line as `msg`, and its six fields under `error`; `check_id` repeats the id."""
    module.fail_json(msg=error_line(error), check_id=error["id"], error=dict(error), **result)
    raise AssertionError("fail_json returned")
