"""docs/faults.md, made from the rows that a run of the fault matrix has left.

python tests/support/fault_page.py ROWS.json COMMIT "COMMAND"    keeps the rows in docs/results/faults.json
python tests/support/fault_page.py                               writes docs/faults.md from them
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "faults.json"
PAGE = ROOT / "docs" / "faults.md"
HEAD = """# Faults

What was done to a fleet of three lab nodes, in which phase, what is promised, and what was seen. Each row is a test in
[tests/lab/faults](../tests/lab/faults); this page is made from the results of a run
([docs/results/faults.json](results/faults.json)): `{command}` at commit {commit}, {date}.

The lab shows that the promises hold on three real Docker Engines and a small engine, on two cores.
Its seconds say nothing about a Spark, where stopping and loading an engine takes minutes. Seconds are those of what is
promised: of a rollback to DEGRADED the whole command, of one that serves from its first look at the nodes to the last
gate, the start of the engine included. "mended: the next rollback served" names the boot that served once the faults of
the rows before it were gone: one rollback shows it for all of them, and a row passes only with it.

| fault | injected | phase | promised | observed | seconds | pass |
|---|---|---|---|---|---|---|
"""


def page(results: dict[str, Any]) -> str:
    """The Markdown of the page."""
    lines = [HEAD.format(**{key: results[key] for key in ("command", "commit", "date")})]
    for row in sorted(results["rows"], key=lambda each: (each["fault"], each["phase"])):
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        cells = [row[key] for key in ("fault", "injected", "phase", "promised", "observed")]
        cells += [seconds, "yes" if row["passed"] else "NO"]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |\n")
    return "".join(lines)


def main(arguments: list[str]) -> int:
    if arguments:
        rows, commit, command = arguments
        found = json.loads(Path(rows).read_text(encoding="utf-8"))
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        results = {"command": command, "commit": commit, "date": date, "rows": found}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
