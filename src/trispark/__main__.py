"""``python -m trispark``: the command line that ``./trispark`` starts."""

from __future__ import annotations

from pathlib import Path

from trispark.startup import keep_compiled, without_plugins

if __name__ == "__main__":
    keep_compiled(Path(__file__).resolve().parents[2])
    without_plugins()

    from trispark.cli import main

    raise SystemExit(main())
