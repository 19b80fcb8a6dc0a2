"""What a site may declare of its checkpoint's share, and what each node is asked to do for it."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark.errors import TrisparkError
from trispark.lab.share_mode import SHARE_YML, ShareMode, declare_share
from trispark.share import published, share_lines, share_requests
from trispark.site import Site, load_site
from trispark_node.fields import Fields
from trispark_node.share_mounts import Share

REPO = Path(__file__).resolve().parents[3]
FUSE = {
    "kind": "fuse", "network": "pair", "user": "trispark-share", "port": 22, "identity_file": "/k/key",
    "known_hosts_file": "/k/known",
}  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    shutil.copytree(REPO / "inventory" / "lab", tmp_path / "inventory" / "lab")
    for name in ("images.yml", "share.yml"):
        (tmp_path / "inventory/lab/group_vars/all" / name).unlink(missing_ok=True)
    return tmp_path


def site(directory: Path, share: object = None) -> Site:
    if share is not None:
        text = json.dumps({"site_checkpoint_share": share})
        (directory / "inventory/lab/group_vars/all/share.yml").write_text(text)
    return load_site(directory / "inventory" / "lab", "optional")


def test_a_site_that_says_nothing_has_copies(directory: Path) -> None:
    assert share_requests(site(directory)) == {
        name: {"kind": "local", "directory": "/srv/models/DeepSeek-V4.1-Flash"}
        for name in ("spark0", "spark1", "spark2")
    }


@pytest.mark.parametrize(
    ("network", "clients", "servers"),
    [
        ("pair", ["10.77.1.11", "10.77.2.12"], ["10.77.1.10", "10.77.2.10"]),
        ("management", ["10.77.0.11", "10.77.0.12"], ["10.77.0.10", "10.77.0.10"]),
    ],
)
@pytest.mark.parametrize("share", [FUSE, {"kind": "nfs", "network": "pair", "managed": True}], ids=["fuse", "nfs"])
def test_each_worker_gets_the_heads_address_on_its_network(directory, network, clients, servers, share) -> None:
    requests = share_requests(site(directory, {**share, "network": network}))
    assert (requests["spark0"]["clients"], requests["spark0"].get("server")) == (clients, None)
    assert [requests[name]["server"] for name in ("spark1", "spark2")] == servers
    for request in requests.values():
        assert Share.parse(Fields(request, "share")).kind == share["kind"]


@pytest.mark.parametrize(
    "share",
    [
        "fuse",
        {"kind": "smb"},
        {},
        {"kind": "local", "network": "pair"},
        {"kind": "nfs", "network": "wifi", "managed": True},
        {"kind": "nfs", "network": "pair"},
        {"kind": "nfs", "network": "pair", "managed": "yes"},
        {**FUSE, "port": 0},
        {**FUSE, "user": "-oProxyCommand=x"},
        {**FUSE, "identity_file": "key"},
        {**FUSE, "known_hosts_file": "/a,rw"},
        {**FUSE, "surplus": 1},
    ],
    ids=str,
)
def test_a_wrong_declaration_is_named(directory, share) -> None:
    with pytest.raises(TrisparkError, match="site_checkpoint_share") as caught:
        site(directory, share)
    assert caught.value.id == "TS-SITE-SCHEMA"


def test_a_directory_that_cannot_be_mounted_is_named(directory) -> None:
    path = directory / "inventory/lab/group_vars/all/site.yml"
    path.write_text(path.read_text().replace("/srv/models/DeepSeek", "/srv/models/Deep Seek"))
    assert site(directory).checkpoint_share.kind == "local"
    with pytest.raises(TrisparkError, match="site_checkpoint_dir is shared by fuse"):
        site(directory, FUSE)


@settings(max_examples=60, deadline=None)
@given(share=st.dictionaries(st.sampled_from([*FUSE, "managed"]), st.none() | st.text(max_size=9) | st.integers()))
def test_any_declaration_is_read_or_refused_by_id(tmp_path_factory, share) -> None:
    place = tmp_path_factory.mktemp("site")
    shutil.copytree(REPO / "inventory" / "lab", place / "inventory" / "lab")
    (place / "inventory/lab/group_vars/all/images.yml").unlink(missing_ok=True)
    refusal = "TS-SITE-"
    try:
        site(place, share)
    except TrisparkError as error:
        refusal = error.id
    assert refusal.startswith(("TS-SITE-", "TS-YAML-"))


def test_the_labs_two_modes(directory) -> None:
    (directory / ".trispark").mkdir()
    assert declare_share(directory, ShareMode.FUSE)
    assert not declare_share(directory, ShareMode.FUSE)
    assert site(directory).checkpoint_share.kind == "fuse"
    assert "site_checkpoint_share:" in SHARE_YML
    assert declare_share(directory, ShareMode.LOCAL)
    assert not declare_share(directory, ShareMode.LOCAL)
    assert site(directory).checkpoint_share.kind == "local"


def test_what_was_compared_is_said(directory) -> None:
    read = {"spark0": {"revision": "0" * 16, "files": [1, 2], "bytes": 99}, "spark1": None, "spark2": None}
    answer = {"files": 2, "ranges": 16, "bytes_read": 7}
    shared = site(directory, FUSE)
    lines = share_lines(shared, read, {"spark0": None, "spark1": answer, "spark2": None})
    assert lines == [
        "spark0 rank 0: revision 0000000000000000, 2 files, 99 bytes",
        "spark1 rank 1: mounted by sshfs, equal in sizes and headers of 2 files and in 16 byte ranges (7 bytes)",
    ]
    assert published(shared, read, {"spark1": answer})["verified"] == ["spark1"]
    assert share_lines(shared, {}, {}) == []


def action(root: Path, **given: object) -> dict[str, object]:
    path = REPO / "plugins/action/trispark_share.py"
    spec = importlib.util.spec_from_file_location("trispark_share_action", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    defaults = {"site_variables": {}, "read": {}, "verified": {}, "tolerant": False}
    found: dict[str, object] = module.ActionModule.work(None, {"root": str(root), "site": "lab", **defaults, **given})
    return found


def test_the_way_back_goes_on_without_a_site_that_can_be_read(directory: Path) -> None:
    """Every rank has been stopped by then; whoever else asks is refused."""
    assert set(action(directory, tolerant=True)["shares"]) == {"spark0", "spark1", "spark2"}  # type: ignore[call-overload]
    (directory / "inventory/lab/hosts.yml").write_text("sparks: [\n")
    with pytest.raises(TrisparkError) as refused:
        action(directory)
    found = action(directory, tolerant=True)
    assert (found["shares"], found["changed"]) == ({}, False)
    assert found["warnings"] == [f"the share is not verified: {refused.value}"]
