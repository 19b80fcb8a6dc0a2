"""``./trispark validate``: every problem of the files that a trial is made from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trispark.errors import TrisparkError


def find_problems(repo: Path, site: str) -> list[TrisparkError]:
    """Catalog, baseline, allowlist, exclusions, the site's files and the templates, together."""
    # Here, because most verbs start without the models of these files.
    from trispark.validation import problems_of

    return problems_of(repo, site)


def validate_line(problems: list[TrisparkError]) -> str:
    """How many there are."""
    if not problems:
        return "catalog, baseline, allowlist, exclusions, site and templates: no problem"
    return f"{len(problems)} problem{'s' if len(problems) > 1 else ''}, each in a line of its own"
