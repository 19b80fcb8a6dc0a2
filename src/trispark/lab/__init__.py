"""The lab: three nodes in containers on this machine. Decisions are here, the playbooks carry them out."""

from __future__ import annotations

from typing import Final

LAB_VERSION: Final = "1"
"""Raised when a lab made by older code cannot be repaired in place: it is removed with its volumes and made anew."""
