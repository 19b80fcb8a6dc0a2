"""Whether there is a lab at all: the short look says what the long one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trispark.lab import status
from trispark.lab.layout import REGISTRY_CONTAINER, root_id

ROOT = Path(__file__).resolve().parents[3]
OURS = {"trispark.lab": "1", "trispark.lab.root": root_id(ROOT), "trispark.lab.version": "1"}
ANOTHERS = {**OURS, "trispark.lab.root": "b" * 16}


class Engine:
    """What the Docker Engine answers, from {name: labels} of its containers and networks."""

    def __init__(self, containers: dict[str, dict[str, str]], networks: dict[str, dict[str, str] | None]) -> None:
        self.kept = containers
        self.nets = networks

    def containers(self, *, all: bool) -> list[dict[str, Any]]:
        assert all, "one that has stopped is there as well"
        return [{"Id": name, "Names": [f"/{name}"], "Labels": labels} for name, labels in self.kept.items()]

    def inspect_container(self, container: str) -> dict[str, Any]:
        return {"Name": f"/{container}", "State": {"Status": "exited"}, "Config": {"Labels": self.kept[container]}}

    def networks(self) -> list[dict[str, Any]]:
        return [{"Name": name, "Id": name, "Labels": labels} for name, labels in self.nets.items()]

    def inspect_network(self, net_id: str) -> dict[str, Any]:
        return {"Name": net_id, "Id": net_id, "Labels": self.nets[net_id]}

    def volumes(self) -> dict[str, Any]:
        return {"Volumes": None}


@pytest.mark.parametrize(
    ("containers", "networks", "state"),
    [
        ({}, {}, "down"),
        ({"web": {}}, {"bridge": {}, "none": None}, "down"),
        ({"spark0": OURS}, {}, "partial"),
        ({REGISTRY_CONTAINER: OURS}, {}, "partial"),
        ({}, {"lab-mgmt": OURS}, "partial"),
        ({}, {"lab-mgmt": ANOTHERS}, "down"),
        ({"other-spark0": ANOTHERS}, {"lab-mgmt": ANOTHERS}, "down"),
        ({"spark1": {}}, {}, "foreign"),
        ({"spark1": ANOTHERS}, {}, "foreign"),
    ],
)
def test_the_short_look_agrees_with_the_long_one(
    containers: dict[str, dict[str, str]], networks: dict[str, dict[str, str] | None], state: str
) -> None:
    engine: Any = Engine(containers, networks)
    assert status.lab_status(engine, ROOT)["state"] == state
    assert status.is_down(engine, ROOT) is (state == "down")
