"""``./trispark report``: one file that says what came of a trial or a campaign."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, get_args

from trispark.cli.records import record_cache
from trispark.errors import TrisparkError

FORMATS: Final = ("html", "md")


def make_report(repo: Path, site: str, key: str, form: str, out: Path | None) -> dict[str, Any]:
    """Write the report of a trial or campaign; where it went, and of what it is.

    Raises TS-REPORT-FORMAT, TS-REPORT-UNKNOWN, TS-REPORT-RECORD, TS-REPORT-OUT, TS-REPORT-SIZE, TS-RECORD-*.
    """
    # Here, because most verbs start without the statistics.
    from trispark.report.render import Format, report_text, write_report
    from trispark.report.sources import find

    known: tuple[Format, ...] = get_args(Format)
    chosen = next((each for each in known if each == form), None)
    if chosen is None:
        raise TrisparkError(
            "TS-REPORT-FORMAT",
            "there is no such format of a report",
            where="--format",
            expected=" or ".join(FORMATS),
            observed=form[:80],
            remedy="choose one of them",
        )
    asked = find(repo, site, record_cache(repo, site), key)
    text = report_text(repo, asked, chosen)
    target = _target(repo, site, asked.name, chosen, out)
    write_report(target, text)
    return {
        "kind": asked.kind,
        "id": asked.name,
        "trials": [source.key for source in asked.trials],
        "path": str(target),
        "bytes": len(text.encode("utf-8")),
    }


def _target(repo: Path, site: str, name: str, form: str, out: Path | None) -> Path:
    if out is not None:
        return out if out.is_absolute() else Path.cwd() / out
    directory = repo / ".trispark" / site / "reports"
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    return directory / f"{name}.{form}"
