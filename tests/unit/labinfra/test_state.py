"""What is there against what should be there, as tables over the Engine's JSON."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.lab.desired import Container, Desired
from trispark.lab.state import Observed, assess, assess_removal

Json = dict[str, Any]
ROOT, OTHER = "a" * 16, "b" * 16
NETWORKS = {"lab-mgmt": "10.77.0.0/24", "lab-pair01": "10.77.1.0/24"}


def desired() -> Desired:
    containers = tuple(
        Container(
            name=name,
            addresses={"lab-mgmt": f"10.77.0.{host}", "lab-pair01": f"10.77.1.{host}"},
            published=(),
            definition={"name": name, "mounts": []},
        )
        for name, host in (("spark0", 10), ("spark1", 11))
    )
    return Desired("1", ROOT, NETWORKS, ("spark0-docker", "spark1-docker"), containers)


def labels(root: str = ROOT, version: str = "1") -> Json:
    return {"trispark.lab": "1", "trispark.lab.root": root, "trispark.lab.version": version}


def container(wanted: Container, **changes: Any) -> Json:
    inspected: Json = {
        "Name": f"/{wanted.name}",
        "State": {"Status": "running", "ExitCode": 0},
        "Config": {"Labels": {**labels(), "trispark.lab.spec": wanted.spec}},
        "NetworkSettings": {
            "Networks": {
                network: {"NetworkID": f"id-{network}", "IPAddress": address}
                for network, address in wanted.addresses.items()
            }
        },
        "Mounts": [{"Type": "volume", "Name": f"{wanted.name}-docker"}, {"Type": "bind", "Source": "/x"}],
    }
    return {**inspected, **changes}


def network(name: str, subnet: str, its_labels: Json | None = None) -> Json:
    return {
        "Name": name,
        "Id": f"id-{name}",
        "Labels": labels() if its_labels is None else its_labels,
        "IPAM": {"Config": [{"Subnet": subnet}]},
    }


def whole() -> dict[str, list[Json]]:
    """A complete lab, as lists that a case may change, beside what every engine has."""
    bridge: Json = {
        "Name": "bridge",
        "Id": "id-bridge",
        "Labels": {},
        "IPAM": {"Config": [{"Subnet": "172.17.0.0/16"}]},
    }
    none: Json = {"Name": "none", "Id": "id-none", "Labels": None, "IPAM": {"Config": None}}
    return {
        "containers": [container(each) for each in desired().containers],
        "networks": [bridge, none, *(network(name, subnet) for name, subnet in NETWORKS.items())],
        "volumes": [{"Name": name, "Labels": labels()} for name in desired().volumes],
    }


def observed(things: dict[str, list[Json]]) -> Observed:
    return Observed(tuple(things["containers"]), tuple(things["networks"]), tuple(things["volumes"]))


def test_complete_lab_needs_nothing() -> None:
    assert assess(desired(), observed(whole())).complete


def test_nothing_there_makes_everything() -> None:
    found = assess(desired(), Observed())
    assert found.create_containers == ("spark0", "spark1")
    assert found.create_networks == tuple(NETWORKS)
    assert found.create_volumes == ("spark0-docker", "spark1-docker")
    assert not found.reasons
    assert not found.complete


Change = Callable[[dict[str, list[Json]]], None]


def exited(things: dict[str, list[Json]]) -> None:
    things["containers"][0]["State"] = {"Status": "exited", "ExitCode": 137}


def created_only(things: dict[str, list[Json]]) -> None:
    things["containers"][0]["State"] = {"Status": "created", "ExitCode": 0}


def other_definition(things: dict[str, list[Json]]) -> None:
    things["containers"][0]["Config"]["Labels"]["trispark.lab.spec"] = "0" * 16


def disconnected(things: dict[str, list[Json]]) -> None:
    del things["containers"][0]["NetworkSettings"]["Networks"]["lab-pair01"]


def other_address(things: dict[str, list[Json]]) -> None:
    things["containers"][0]["NetworkSettings"]["Networks"]["lab-pair01"]["IPAddress"] = "10.77.1.99"


def volume_gone(things: dict[str, list[Json]]) -> None:
    things["volumes"] = things["volumes"][1:]


def absent(things: dict[str, list[Json]]) -> None:
    things["containers"] = things["containers"][1:]


@pytest.mark.parametrize(
    ("change", "removed", "reason"),
    [
        (exited, True, "state exited, exit code 137"),
        (created_only, True, "state created, exit code 0"),
        (other_definition, True, "made from another definition"),
        (disconnected, True, "attached to lab-mgmt instead of lab-mgmt, lab-pair01"),
        (other_address, True, "address 10.77.1.99 on lab-pair01 instead of 10.77.1.10"),
        (volume_gone, True, "uses the volume spark0-docker, which is not of this lab"),
        (absent, False, ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_only_the_damaged_container_is_made_anew(change: Change, removed: bool, reason: str) -> None:
    things = whole()
    change(things)
    found = assess(desired(), observed(things))
    assert found.remove_containers == (("spark0",) if removed else ())
    assert found.create_containers == ("spark0",)
    assert found.reasons.get("spark0", "") == reason
    assert found.remove_networks == found.create_networks == found.remove_volumes == ()


def test_missing_network_takes_its_containers_with_it() -> None:
    things = whole()
    things["networks"] = [each for each in things["networks"] if each["Name"] != "lab-pair01"]
    found = assess(desired(), observed(things))
    assert found.create_networks == ("lab-pair01",)
    assert found.remove_containers == ("spark0", "spark1")
    assert found.reasons["spark0"] == "attached to an earlier lab-pair01"


def test_network_with_another_subnet_is_made_anew_after_its_containers() -> None:
    things = whole()
    things["networks"][-1] = network("lab-pair01", "10.77.9.0/24")
    found = assess(desired(), observed(things))
    assert (found.remove_networks, found.create_networks) == (("lab-pair01",), ("lab-pair01",))
    assert found.reasons["lab-pair01"] == "subnet 10.77.9.0/24 instead of 10.77.1.0/24"
    assert found.reasons["spark1"] == "attached to lab-pair01, which goes"


def test_leftovers_of_ours_are_removed() -> None:
    things = whole()
    extra = container(desired().containers[0], Name="/spark9")
    things["containers"].append(extra)
    things["networks"].append(network("lab-old", "10.77.0.128/25"))
    things["volumes"].append({"Name": "spark9-docker", "Labels": labels()})
    found = assess(desired(), observed(things))
    assert (found.remove_containers, found.remove_networks, found.remove_volumes) == (
        ("spark9",),
        ("lab-old",),
        ("spark9-docker",),
    )
    assert found.create_containers == found.create_networks == found.create_volumes == ()


@pytest.mark.parametrize("kind", ["containers", "networks", "volumes"])
def test_any_object_of_another_version_renews_the_whole_lab(kind: str) -> None:
    things = whole()
    target = things[kind][-1]
    (target["Config"] if kind == "containers" else target)["Labels"]["trispark.lab.version"] = "0"
    found = assess(desired(), observed(things))
    assert found.remove_containers == found.create_containers == ("spark0", "spark1")
    assert set(found.remove_networks) == set(found.create_networks) == set(NETWORKS)
    assert found.remove_volumes == found.create_volumes == desired().volumes
    assert found.reasons["spark0"] == "made by lab version 0, this is 1"


def unlabelled(name: str) -> Json:
    return {"Name": f"/{name}", "State": {"Status": "running"}, "Config": {"Labels": None}}


def image_labels_only(name: str) -> Json:
    """Someone's container from an image of ours: it inherits that image's labels."""
    its = {"trispark.lab.image": "1", "trispark.lab.root": ROOT}
    return {"Name": f"/{name}", "State": {"Status": "running"}, "Config": {"Labels": its}}


@pytest.mark.parametrize(
    ("kind", "thing", "error", "where"),
    [
        ("containers", unlabelled("spark1"), "TS-LAB-FOREIGN", "container spark1"),
        ("containers", image_labels_only("spark0"), "TS-LAB-FOREIGN", "container spark0"),
        ("networks", network("lab-mgmt", "10.99.0.0/24", {}), "TS-LAB-FOREIGN", "network lab-mgmt"),
        ("networks", network("wide", "10.0.0.0/8", {}), "TS-LAB-FOREIGN", "network wide"),
        ("networks", network("narrow", "10.77.1.128/25", {}), "TS-LAB-FOREIGN", "network narrow"),
        ("volumes", {"Name": "spark0-docker", "Labels": None}, "TS-LAB-FOREIGN", "volume spark0-docker"),
        *(
            (
                "containers",
                {"Name": "/any", "State": {"Status": state}, "Config": {"Labels": labels(OTHER)}},
                "TS-LAB-OTHERROOT",
                "container any",
            )
            for state in ("running", "created", "paused", "restarting")
        ),
        ("networks", network("lab-mgmt", "10.77.0.0/24", labels(OTHER)), "TS-LAB-OTHERROOT", "network lab-mgmt"),
        ("volumes", {"Name": "old", "Labels": labels(OTHER)}, "TS-LAB-OTHERROOT", "volume old"),
    ],
)
def test_what_is_not_ours_is_refused_by_name(kind: str, thing: Json, error: str, where: str) -> None:
    things: dict[str, list[Json]] = {"containers": [], "networks": [], "volumes": []}
    things[kind].append(thing)
    found = assess(desired(), observed(things))
    assert [(each.id, each.where) for each in found.refusals] == [(error, where)]
    assert found.remove_containers == found.remove_networks == found.remove_volumes == ()
    assert found.create_containers == ()


def ended(name: str, root: str = OTHER, state: str = "exited") -> Json:
    return {"Name": f"/{name}", "State": {"Status": state}, "Config": {"Labels": labels(root)}}


def test_the_ended_lab_of_another_checkout_gives_way() -> None:
    """A machine that went down under a lab leaves its objects; they hold the names and networks and serve nobody."""
    things = {
        "containers": [ended("spark0"), ended("old", state="dead")],
        "networks": [network("lab-mgmt", "10.77.0.0/24", labels(OTHER))],
        "volumes": [{"Name": "spark0-docker", "Labels": labels(OTHER)}],
    }
    found = assess(desired(), observed(things))
    assert found.refusals == ()
    assert found.abandoned == (OTHER,)
    assert found.remove_containers == ("old", "spark0")
    assert found.remove_networks == ("lab-mgmt",)
    assert found.remove_volumes == ("spark0-docker",)
    assert set(found.create_containers) == {each.name for each in desired().containers}
    assert set(found.create_networks) == set(NETWORKS)
    assert set(found.reasons) == {"old", "spark0", "lab-mgmt", "spark0-docker"}


def test_one_running_container_keeps_a_whole_lab_of_another_checkout() -> None:
    things = {"containers": [ended("spark0"), ended("spark1", state="running")], "networks": [], "volumes": []}
    found = assess(desired(), observed(things))
    assert {each.id for each in found.refusals} == {"TS-LAB-OTHERROOT"}
    assert found.abandoned == found.remove_containers == ()


@pytest.mark.parametrize("subnet", ["10.78.0.0/24", "192.168.0.0/16", "fd00::/64"])
def test_networks_elsewhere_do_not_matter(subnet: str) -> None:
    things = whole()
    things["networks"].append(network("elsewhere", subnet, {}))
    assert assess(desired(), observed(things)).complete


def test_removal_takes_all_of_ours_and_nothing_else() -> None:
    things = whole()
    things["containers"] += [unlabelled("stranger"), image_labels_only("guest")]
    things["networks"].append(network("theirs", "10.77.5.0/24", labels(OTHER)))
    things["volumes"].append({"Name": "data", "Labels": None})
    found = assess_removal(ROOT, observed(things))
    assert not found.refusals
    assert found.remove_containers == ("spark0", "spark1")
    assert found.remove_networks == tuple(sorted(NETWORKS))
    assert found.remove_volumes == desired().volumes


def test_removal_refuses_a_guest_on_our_network() -> None:
    things = whole()
    things["networks"][-1]["Containers"] = {"1": {"Name": "spark0"}, "2": {"Name": "stranger"}}
    found = assess_removal(ROOT, observed(things))
    assert [(each.id, each.where) for each in found.refusals] == [("TS-LAB-FOREIGN", "container stranger")]


def after(things: dict[str, list[Json]]) -> dict[str, list[Json]]:
    """The Engine's objects once the assessment was carried out to the letter."""
    found = assess(desired(), observed(things))
    assert not found.refusals
    made = whole()

    def carry_out(kind: str, removed: tuple[str, ...], created: tuple[str, ...]) -> list[Json]:
        kept = [each for each in things[kind] if str(each["Name"]).lstrip("/") not in removed]
        return kept + [each for each in made[kind] if str(each["Name"]).lstrip("/") in created]

    return {
        "containers": carry_out("containers", found.remove_containers, found.create_containers),
        "networks": carry_out("networks", found.remove_networks, found.create_networks),
        "volumes": carry_out("volumes", found.remove_volumes, found.create_volumes),
    }


@given(st.data())
def test_any_half_made_lab_of_ours_is_complete_after_one_repair(data: st.DataObject) -> None:
    things = whole()
    for kind in things:
        things[kind] = [
            copy.deepcopy(each) for each in things[kind] if data.draw(st.booleans(), label=str(each["Name"]))
        ]
    for each in things["containers"]:
        each["State"]["Status"] = data.draw(st.sampled_from(["running", "created", "exited", "dead", "paused"]))
    changes = [exited, other_definition, disconnected, other_address]
    if things["containers"]:
        data.draw(st.sampled_from(changes))(things)
    assert assess(desired(), observed(after(things))).complete
