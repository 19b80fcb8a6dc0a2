"""The lab's two ways to show the checkpoint to its workers, and the site file that declares the second one."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Final

from trispark.lab.files import write_atomic
from trispark.lab.layout import FUSE, LOCAL, Paths


class ShareMode(StrEnum):
    """`local`: every node has the checkpoint. `fuse`: only the head has it, the workers mount it by sshfs."""

    LOCAL = LOCAL
    FUSE = FUSE


SHARE_YML: Final = """# Written by ./trispark lab up --share fuse, removed by --share local and by lab down.
site_checkpoint_share:
  kind: fuse
  network: pair
  user: trispark-share
  port: 22
  identity_file: /run/lab-ssh/share_key
  known_hosts_file: /run/lab-ssh/share_known_hosts
"""


def declare_share(repo: Path, mode: ShareMode) -> bool:
    """Write or remove the lab's share.yml; True when something changed. `lab up` then makes the nodes anew."""
    path = Paths(repo.resolve()).share_yml
    if mode is ShareMode.FUSE:
        return write_atomic(path, SHARE_YML, mode=0o644)
    there = path.exists()
    path.unlink(missing_ok=True)
    return there
