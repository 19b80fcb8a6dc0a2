"""Everything a verb touches outside itself, in one place, so that a test can replace each part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from trispark_node.clock import Clock, SystemClock
from trispark_node.disk import Disk
from trispark_node.docker_client import ContainerClient, SdkClient
from trispark_node.journal import Journal
from trispark_node.layout import Layout

if TYPE_CHECKING:
    from trispark_node.http_request import HttpClient, Response
    from trispark_node.registry import RegistryReader


class LateUrllib:
    """UrllibClient, imported with the first call: most verbs ask the engine nothing."""

    @cached_property
    def _client(self) -> HttpClient:
        from trispark_node.http_request import UrllibClient

        return UrllibClient()

    def call(self, method: str, url: str, body: bytes | None, timeout_s: float) -> Response:
        return self._client.call(method, url, body, timeout_s)


class LateReader:
    """UrllibReader, imported with the first look into a registry."""

    @cached_property
    def _reader(self) -> RegistryReader:
        from trispark_node.registry import UrllibReader

        return UrllibReader()

    def get(self, url: str, accept: str, timeout_s: float) -> bytes:
        return self._reader.get(url, accept, timeout_s)


@dataclass(frozen=True)
class Node:
    """`connect` is called at most once, by the first verb step that needs Docker."""

    layout: Layout
    disk: Disk = field(default_factory=Disk)
    clock: Clock = field(default_factory=SystemClock)
    http: HttpClient = field(default_factory=LateUrllib)
    registry: RegistryReader = field(default_factory=LateReader)
    connect: Callable[[], ContainerClient] = SdkClient
    procfs: Path = Path("/proc")
    cgroups: Path = Path("/sys/fs/cgroup")

    @cached_property
    def docker(self) -> ContainerClient:
        return self.connect()

    @cached_property
    def boot_identity(self) -> str:
        """Differs after every start of the host, and after every start of a container that plays one.

        `<boot id of the kernel>:<start of process 1 in clock ticks since the kernel's start>`. A node that went down
        and came back is recognised by it, whatever its files and addresses say. No call of the agent outlives it.
        """
        from trispark_node import processes

        kernel = (self.procfs / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{kernel}:{processes.start_ticks(self.procfs, 1)}"

    @cached_property
    def journal(self) -> Journal:
        return Journal(self.layout.journal, self.disk, self.clock)
