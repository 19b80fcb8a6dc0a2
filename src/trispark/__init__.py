"""Controller side of trispark: library, host preparation and command line.

Import nothing here: ``./trispark`` imports this package with a bare Python before any dependency is installed.
"""

from __future__ import annotations

__version__ = "0.1.0"
