"""Which build of this engine an image holds: the file BUILD beside the package, one line, for instance `canary`."""

import re
from pathlib import Path

from .errors import EngineError

FILE = Path(__file__).resolve().parents[1] / "BUILD"
UNNAMED = "unnamed"
_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")


def build_id(file: Path = FILE) -> str:
    """The id, `unnamed` where the image has no such file. Raises TS-ENGINE-BUILD for one that is no id."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return UNNAMED
    if _ID.fullmatch(text) is None:
        raise EngineError(
            "TS-ENGINE-BUILD",
            "the image does not say which build it is",
            where=str(file),
            expected="one line of small letters, digits, dots and dashes",
            observed=text[:80] or "nothing",
            remedy="build the image anew",
        )
    return text
