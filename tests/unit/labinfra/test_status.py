"""The state of a lab, and the short look at whether any node of it runs."""

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
def test_the_state_of_what_has_stopped_and_is_another_ones(
    containers: dict[str, dict[str, str]], networks: dict[str, dict[str, str] | None], state: str
) -> None:
    engine: Any = Engine(containers, networks)
    assert status.lab_status(engine, ROOT)["state"] == state
    assert status.no_node_runs(engine, ROOT)


@pytest.mark.parametrize(
    ("name", "labels", "state", "none"),
    [
        ("spark1", OURS, "running", False),
        ("spark1", OURS, "exited", True),
        ("spark1", ANOTHERS, "running", True),
        ("spark1", None, "running", True),
        (REGISTRY_CONTAINER, OURS, "running", True),
    ],
)
def test_one_node_of_this_checkout_that_runs_is_a_lab(
    name: str, labels: dict[str, str] | None, state: str, none: bool
) -> None:
    class Short:
        def containers(self, *, all: bool) -> list[dict[str, Any]]:
            return [{"Names": [f"/{name}"], "Labels": labels, "State": state}]

    engine: Any = Short()
    assert status.no_node_runs(engine, ROOT) is none
