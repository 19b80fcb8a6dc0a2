"""Preparation of the controller machine. Standard library only: the launcher imports it before .venv exists."""

from __future__ import annotations

from trispark.host.disk import ensure_disk
from trispark.host.docker_engine import ensure_docker
from trispark.host.locks import alone
from trispark.host.machine import LocalMachine, Machine, Outcome, Say
from trispark.host.packages import ensure_packages
from trispark.host.state import PRIVATE_UMASK, private_directory, state_directory

__all__ = [
    "PRIVATE_UMASK",
    "LocalMachine",
    "Machine",
    "Outcome",
    "Say",
    "alone",
    "ensure_disk",
    "ensure_docker",
    "ensure_packages",
    "private_directory",
    "state_directory",
]
