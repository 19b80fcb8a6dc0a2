"""docs/faults.md, made from the rows that runs of the fault matrix have left.

python tests/support/fault_page.py COMMIT DEFAULT.json FURTHER.json    keeps the rows in docs/results/faults.json
python tests/support/fault_page.py                                     writes docs/faults.md from them

DEFAULT.json and FURTHER.json are what the two commands of COMMANDS left in .trispark/lab/faults.json.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

COMMANDS = ('pytest tests/lab/faults -m "not slow"', "pytest tests/lab/faults -m slow")
"""What each change is tested with, and the further phases of `./trispark test --all`."""
ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results" / "faults.json"
PAGE = ROOT / "docs" / "faults.md"
CUT = re.compile(r"(?<=: )(?:.{90}|.{100})(?=; mended: |; its engine |$)")
"""An agent's own words in what was observed, which earlier runs cut after so many letters."""
HEAD = """# Faults

This page is evidence: what the tests did and saw. The page to act by in an incident is [incident.md](incident.md).

What was done to a fleet of three lab nodes, in which phase, what is promised, and what was seen. Each row is a test in
[tests/lab/faults](../tests/lab/faults); this page is made from the results of two runs
([docs/results/faults.json](results/faults.json)) at commit {commit}, {date}: `{commands[0]}` (one phase of each fault,
with every change) and `{commands[1]}` (the other phases, in `./trispark test --all`; marked "all").

The lab shows that the promises hold on three real Docker Engines and a small engine, on two cores.
Its seconds say nothing about a Spark, where stopping and loading an engine takes minutes. Seconds are those of what is
promised: of a rollback to DEGRADED the whole command, of one that serves from its first look at the nodes to the last
gate, the start of the engine included. "mended: the next rollback served" names the boot that served once the faults of
the rows before it were gone: one rollback shows it for all of them, and a row passes only with it.

| fault | injected | phase | promised | observed | seconds | pass | run |
|---|---|---|---|---|---|---|---|
"""


def at_a_word(observed: str) -> str:
    """What was observed, without the beginning of a word at the end of what was cut."""
    return CUT.sub(
        lambda cut: cut[0] if cut[0].endswith(".") else cut[0].rpartition(" ")[0].rstrip(",;:") + " ...", observed
    )


def page(results: dict[str, Any]) -> str:
    """The Markdown of the page."""
    lines = [HEAD.format(commands=COMMANDS, **{key: results[key] for key in ("commit", "date")})]
    rows = [(row, mark) for run, mark in (("default", ""), ("further", "all")) for row in results[run]]
    for row, mark in sorted(rows, key=lambda each: (each[0]["fault"], each[0]["phase"], each[1])):
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        cells = [row[key] for key in ("fault", "injected", "phase", "promised", "observed")]
        cells[-1] = at_a_word(str(cells[-1]))
        cells += [seconds, "yes" if row["passed"] else "NO", mark]
        lines.append("| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |\n")
    return "".join(lines)


def main(arguments: list[str]) -> int:
    if arguments:
        commit, *files = arguments
        default, further = (json.loads(Path(file).read_text(encoding="utf-8")) for file in files)
        date = f"{datetime.now(UTC):%Y-%m-%d}"
        results = {"commit": commit, "date": date, "default": default, "further": further}
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
