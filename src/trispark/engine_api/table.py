"""The table of adapters and builds in docs/adapters.md.

python -m trispark.engine_api.table          print it
python -m trispark.engine_api.table --write  replace it in the page; a test compares the two
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from trispark.engine_api.model import BuildsFile, load_builds

PAGE: Final = "docs/adapters.md"
BEGIN: Final = "a test compares the two -->\n"
END: Final = "<!-- end -->"
MARKS: Final = {"binds": "binds", "native": "native", "not-applicable": "-", "undescribed": "?"}


def table(file: BuildsFile) -> str:
    """A row an adapter, a column a build, and every reason below."""
    return "\n".join(_lines(file)) + "\n"


def _lines(file: BuildsFile) -> Iterator[str]:
    yield f"| adapter | {' | '.join(f'`{build}`' for build in file.builds)} |"
    yield "|---" * (len(file.builds) + 1) + "|"
    for name, row in file.adapters.items():
        yield f"| `{name}`: {row.title} | {' | '.join(MARKS[row.builds[build].status] for build in file.builds)} |"
    yield ""
    for name, row in file.adapters.items():
        reasons: dict[str, list[str]] = {}
        for build in file.builds:
            if (reason := row.builds[build].reason) is not None:
                reasons.setdefault(reason, []).append(f"`{build}`")
        for reason, builds in reasons.items():
            yield f"- `{name}` on {', '.join(builds)}: {reason}."


def replaced(page: str, text: str) -> str:
    """`page` with the table between its two marks."""
    head, _, rest = page.partition(BEGIN)
    return f"{head}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main(arguments: list[str]) -> None:
    root = Path(__file__).resolve().parents[3]
    text = table(load_builds(root))
    if arguments != ["--write"]:
        print(text, end="")
        return
    page = root / PAGE
    page.write_text(replaced(page.read_text(encoding="utf-8"), text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
