"""Carrying out a plan on a scripted Engine: the order of the kinds, what is not ours, what is gone, what is refused."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker.errors
import pytest

from trispark.errors import TrisparkError
from trispark.lab import LAB_VERSION
from trispark.lab.layout import root_id
from trispark.lab.objects import Change, carry_out

WHOLE = Change(
    remove_containers=("spark0", "spark1", "registry"),
    remove_networks=("mgmt", "pair01"),
    remove_volumes=("v0",),
    networks={"mgmt": "10.77.0.0/24", "pair01": "10.77.1.0/24"},
)


class Engine:
    """Objects by name with their labels; notes what is done. ``refuses`` names what fails."""

    def __init__(self, labels: dict[str, dict[str, str]], refuses: str = "") -> None:
        self.labels = labels
        self.refuses = refuses
        self.done: list[str] = []
        self.made: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def _inspect(self, name: str) -> dict[str, str]:
        if name not in self.labels:
            raise docker.errors.NotFound("no such object")
        return self.labels[name]

    def _do(self, what: str) -> None:
        if self.refuses and self.refuses in what:
            raise docker.errors.APIError("500", explanation="device or resource busy")
        with self._lock:
            self.done.append(what)

    def inspect_container(self, container: str) -> dict[str, Any]:
        return {"Id": container, "Config": {"Labels": self._inspect(container)}}

    def inspect_network(self, net_id: str) -> dict[str, Any]:
        return {"Id": net_id, "Labels": self._inspect(net_id)}

    def inspect_volume(self, name: str) -> dict[str, Any]:
        return {"Name": name, "Labels": self._inspect(name)}

    def remove_container(self, container: str, *, v: bool, force: bool) -> None:
        assert v
        self._do(f"rm {container}" if force else f"rm, unless it runs, {container}")

    def remove_network(self, net_id: str) -> None:
        self._do(f"network rm {net_id}")

    def remove_volume(self, name: str) -> None:
        self._do(f"volume rm {name}")

    def create_network(self, name: str, *, driver: str, ipam: Any, labels: Any) -> dict[str, Any]:
        self._do(f"network create {name}")
        with self._lock:
            self.made.append({"name": name, "driver": driver, "subnet": ipam["Config"][0]["Subnet"], "labels": labels})
        return {}


def ours(root: Path) -> dict[str, str]:
    return {"trispark.lab": "1", "trispark.lab.root": root_id(root), "trispark.lab.version": LAB_VERSION}


def all_of(root: Path) -> dict[str, dict[str, str]]:
    names = (*WHOLE.remove_containers, *WHOLE.remove_networks, *WHOLE.remove_volumes)
    return {name: ours(root) for name in names}


def test_everything_is_done_kind_after_kind(tmp_path: Path) -> None:
    engine = Engine(all_of(tmp_path))
    done = carry_out(tmp_path, engine, WHOLE)
    kinds = [what.rpartition(" ")[0] for what in engine.done]
    assert kinds == ["rm"] * 3 + ["network rm"] * 2 + ["volume rm"] + ["network create"] * 2
    assert done[:3] == ["removed container spark0", "removed container spark1", "removed container registry"]
    assert done[-2:] == ["made network mgmt", "made network pair01"]
    assert sorted(engine.made, key=lambda each: str(each["name"])) == [
        {"name": "mgmt", "driver": "bridge", "subnet": "10.77.0.0/24", "labels": ours(tmp_path)},
        {"name": "pair01", "driver": "bridge", "subnet": "10.77.1.0/24", "labels": ours(tmp_path)},
    ]


def test_what_is_gone_is_no_error_and_no_change(tmp_path: Path) -> None:
    assert carry_out(tmp_path, Engine({}), Change(("spark0",), ("mgmt",), ("v0",))) == []


@pytest.mark.parametrize("name", ["spark1", "pair01", "v0"])
@pytest.mark.parametrize("other", ["nobody", "another checkout"])
def test_what_is_not_ours_stays_whatever_the_plan_says(tmp_path: Path, name: str, other: str) -> None:
    labels = all_of(tmp_path)
    labels[name] = {} if other == "nobody" else {**ours(tmp_path), "trispark.lab.root": "0" * 16}
    engine = Engine(labels)
    with pytest.raises(TrisparkError) as refused:
        carry_out(tmp_path, engine, WHOLE)
    assert refused.value.id == "TS-LAB-FOREIGN"
    assert refused.value.where.endswith(name)
    assert not [what for what in engine.done if what.endswith(f"rm {name}")]


def test_an_ended_lab_of_another_checkout_goes_without_force(tmp_path: Path) -> None:
    labels = all_of(tmp_path)
    for name in ("spark1", "mgmt", "v0"):
        labels[name] = {**ours(tmp_path), "trispark.lab.root": "0" * 16}
    engine = Engine(labels)
    carry_out(tmp_path, engine, replace(WHOLE, abandoned=("0" * 16,)))
    assert {"rm spark0", "rm, unless it runs, spark1", "network rm mgmt", "volume rm v0"} <= set(engine.done)


def test_refusal_of_the_engine_names_the_object_and_ends_the_kinds_after_it(tmp_path: Path) -> None:
    engine = Engine(all_of(tmp_path), refuses="network rm mgmt")
    with pytest.raises(TrisparkError) as refused:
        carry_out(tmp_path, engine, WHOLE)
    assert (refused.value.id, refused.value.where) == ("TS-LAB-OBJECT", "network mgmt")
    assert refused.value.observed == "device or resource busy"
    assert "network rm pair01" in engine.done
    assert not [what for what in engine.done if "volume" in what or "create" in what]


@pytest.mark.parametrize(
    ("change", "some"),
    [(Change(), False), (Change(networks={}), False), (Change(remove_volumes=("v",)), True), (WHOLE, True)],
)
def test_whether_there_is_something_to_do(change: Change, some: bool) -> None:
    assert change.some is some
