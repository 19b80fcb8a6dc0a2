"""How every trispark module fails: one line with a stable id, and the same as fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

FIELDS = ("id", "what", "where", "expected", "observed", "remedy")


def one_line(error: Mapping[str, Any]) -> str:
    """`TS-ID: what; where: ...; expected ...; observed ...; do: ...`; empty fields are left out."""
    text = f"{error.get('id', 'TS-UNKNOWN')}: {error.get('what', 'failed')}"
    for field, label in (("where", "where"), ("expected", "expected"), ("observed", "observed"), ("remedy", "do")):
        if error.get(field):
            text += f"; {label}: {error[field]}"
    return " ".join(text.split())


def fail(module: Any, error: Mapping[str, Any], **result: Any) -> NoReturn:
    """End `module` with the error's line as `msg` and its fields under `error`; `check_id` repeats the id."""
    fields = {name: str(error.get(name, "")) for name in FIELDS}
    module.fail_json(msg=one_line(error), check_id=fields["id"], error=fields, **result)
    raise AssertionError("fail_json returned")
