"""The files that say where an image comes from, and how large each may be: the same on the controller and on nodes."""

from __future__ import annotations

STATEMENT, SBOM, SIGNATURE = "statement.json", "sbom.cdx.json", "statement.json.sig"
MOST_BYTES = {STATEMENT: 2**20, SBOM: 16 * 2**20, SIGNATURE: 16384}
