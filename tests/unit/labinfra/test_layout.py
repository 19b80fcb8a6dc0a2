"""The shipped inventory, and what a damaged one is told."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.errors import TrisparkError
from trispark.lab.desired import Container, Desired, Published, desired_lab
from trispark.lab.layout import MANAGEMENT_NETWORK, Paths, load_layout
from trispark.lab.observe import busy_ports
from trispark.lab.plan import render_images_yml
from trispark.lab.prepared import Image, Prepared, load_prepared, save_prepared
from trispark.lab.registry import digest_of, split_reference
from trispark.lab.status import shell_command

REPO = Path(__file__).resolve().parents[3]


def prepared(keys: str = "k") -> Prepared:
    image = Image("lab-node", "trispark/lab-node:tag", "c", "/context", "base", False)
    return Prepared({"lab-node": image}, {}, "/checkpoint", "/agent", "0" * 64, keys)


def lab(keys: str = "k") -> Desired:
    return desired_lab(Paths(REPO), load_layout(REPO), prepared(keys))


def test_shipped_layout_is_a_full_mesh_on_loopback() -> None:
    layout = load_layout(REPO)
    assert [node.name for node in layout.nodes] == ["spark0", "spark1", "spark2"]
    assert layout.networks() == {
        "trispark-lab-mgmt": "10.77.0.0/24",
        "trispark-lab-pair01": "10.77.1.0/24",
        "trispark-lab-pair02": "10.77.2.0/24",
        "trispark-lab-pair12": "10.77.3.0/24",
    }


def test_nothing_is_published_off_loopback_and_nothing_is_privileged() -> None:
    for container in lab().containers:
        assert container.published
        assert all(port.address.startswith("127.77.0.") for port in container.published)
        assert all(port.startswith("127.77.0.") for port in container.definition["published_ports"])
        assert "privileged" not in container.definition
        assert "SYS_RESOURCE" not in container.definition["capabilities"]


def test_each_pair_shares_exactly_one_network_besides_management() -> None:
    nodes = [each for each in lab().containers if each.name.startswith("spark")]
    for one in nodes:
        for other in nodes:
            if one is not other:
                shared = set(one.addresses) & set(other.addresses) - {MANAGEMENT_NETWORK}
                assert len(shared) == 1


def test_only_the_head_publishes_the_api() -> None:
    published = {each.name: [port.port for port in each.published] for each in lab().containers}
    assert published == {"trispark-lab-registry": [5000], "spark0": [2222, 8888], "spark1": [2222], "spark2": [2222]}


def test_new_keys_make_the_nodes_anew_but_not_the_registry() -> None:
    before = {each.name: each.spec for each in lab("one").containers}
    after = {each.name: each.spec for each in lab("two").containers}
    assert {name for name in before if before[name] != after[name]} == {"spark0", "spark1", "spark2"}


def test_volumes_of_the_containers_are_the_declared_ones_and_labelled() -> None:
    desired = lab()
    mounted = [mount for each in desired.containers for mount in desired.options(each)["mounts"]]
    assert sorted(mount["source"] for mount in mounted) == sorted(desired.volumes)
    assert all(mount["labels"] == desired.labels for mount in mounted)


def damage(change: str, hosts: dict[str, Any]) -> None:
    spark1 = hosts["sparks"]["hosts"]["spark1"]
    match change:
        case "rank":
            spark1["node_rank"] = 2
        case "public":
            spark1["ansible_host"] = "192.0.2.1"
        case "link":
            spark1["node_pair_links"][0]["local"] = "10.77.1.99"
        case "missing link":
            del spark1["node_pair_links"][0]
        case "missing key":
            del spark1["node_address"]


@pytest.mark.parametrize("change", ["rank", "public", "link", "missing link", "missing key"])
def test_damaged_inventory_is_one_line(tmp_path: Path, change: str) -> None:
    shutil.copytree(REPO / "inventory", tmp_path / "inventory")
    path = tmp_path / "inventory" / "lab" / "hosts.yml"
    hosts = yaml.safe_load(path.read_text())
    damage(change, hosts)
    path.write_text(yaml.safe_dump(hosts))
    with pytest.raises(TrisparkError, match="TS-LAB-LAYOUT") as caught:
        load_layout(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "- a\n", "just a text\n", "a: [\n"])
def test_an_inventory_that_is_no_mapping_is_one_line(tmp_path: Path, content: str | None) -> None:
    """None: the file is not there."""
    shutil.copytree(REPO / "inventory", tmp_path / "inventory")
    path = tmp_path / "inventory" / "lab" / "hosts.yml"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(TrisparkError, match="TS-LAB-LAYOUT") as caught:
        load_layout(tmp_path)
    assert caught.value.where == str(path)
    assert "\n" not in str(caught.value)


def listener() -> socket.socket:
    made = socket.create_server(("127.0.0.1", 0))
    return made


def one_container(port: int) -> Desired:
    container = Container("spark0", {}, (Published("127.0.0.1", port, 22),), {"name": "spark0", "mounts": []})
    return Desired("1", "r", {}, (), (container,))


def test_port_in_use_is_named() -> None:
    with listener() as taken:
        port = taken.getsockname()[1]
        found = busy_ports(one_container(port), ("spark0",), frozenset())
        assert [(each.id, each.where) for each in found] == [("TS-LAB-PORT", f"127.0.0.1:{port}")]
        assert busy_ports(one_container(port), ("spark0",), frozenset({"spark0"})) == []
        assert busy_ports(one_container(port), (), frozenset()) == []


def test_manifest_round_trip_and_refusals(tmp_path: Path) -> None:
    path = tmp_path / "prepared.json"
    with pytest.raises(TrisparkError, match="TS-LAB-UNPREPARED"):
        load_prepared(path)
    for name in ("checkpoint", "context"):
        (tmp_path / name).mkdir()
    agent = tmp_path / "agent"
    agent.touch()
    image = Image("lab-node", "trispark/lab-node:tag", "c", str(tmp_path / "context"), "base", False)
    made = Prepared({"lab-node": image}, {"lab-base": "b"}, str(tmp_path / "checkpoint"), str(agent), "0" * 64, "k")
    save_prepared(path, made)
    assert load_prepared(path) == made
    agent.unlink()
    with pytest.raises(TrisparkError, match="is gone"):
        load_prepared(path)
    path.write_text('{"format": 0}')
    with pytest.raises(TrisparkError, match="TS-LAB-UNPREPARED"):
        load_prepared(path)


def test_references() -> None:
    assert split_reference("127.77.0.2:5000/trispark/bench:tag") == ("127.77.0.2:5000", "trispark/bench", "tag")
    text = render_images_yml(
        {
            "lab-engine": "registry:5000/e@sha256:1",
            "lab-engine-canary": "registry:5000/c@sha256:3",
            "bench": "registry:5000/b@sha256:2",
        }
    )
    assert yaml.safe_load(text) == {
        "site_engine_image": "registry:5000/e@sha256:1",
        "site_engine_images": {"canary": "registry:5000/c@sha256:3"},
        "site_bench_image": "registry:5000/b@sha256:2",
    }


def test_registry_that_is_down_has_no_digest() -> None:
    with listener() as taken:
        port = taken.getsockname()[1]
    assert digest_of("127.77.0.2:5000/trispark/bench:tag", f"127.0.0.1:{port}") == ""


def test_shell_command_pins_key_and_host(tmp_path: Path) -> None:
    shutil.copytree(REPO / "inventory", tmp_path / "inventory")
    with pytest.raises(TrisparkError, match="TS-LAB-DOWN"):
        shell_command("spark1", tmp_path)
    (tmp_path / ".trispark" / "lab" / "ssh").mkdir(parents=True)
    (tmp_path / ".trispark" / "lab" / "ssh" / "id_ed25519").touch()
    command = shell_command("spark1", tmp_path)
    assert command[0] == "ssh"
    assert command[-1] == "trispark@127.77.0.11"
    text = "printf Z | sudo dd of=/x"
    assert shell_command("spark1", tmp_path, [text])[-1] == text
    assert shell_command("spark1", tmp_path, ["sudo", "sh", "-c", text])[-1] == f"sudo sh -c '{text}'"
    assert "StrictHostKeyChecking=yes" in command
    assert f'UserKnownHostsFile="{tmp_path.resolve() / ".trispark" / "lab" / "ssh" / "known_hosts"}"' in command
    with pytest.raises(TrisparkError, match=r"TS-LAB-NAME.*spark0, spark1, spark2"):
        shell_command("spark7", tmp_path)
