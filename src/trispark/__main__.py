"""``python -m trispark``: the command line that ``./trispark`` starts."""

from __future__ import annotations

from trispark.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
