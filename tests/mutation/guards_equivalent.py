"""Guards whose absence no test can see, each with the reason. A test sees to it that each is still in the sources."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, int], str] = {}
"""{(id, file, function, number): why nothing that a caller can see differs}."""
