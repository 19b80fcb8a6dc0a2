"""The same bits on every rank, on the real nodes: what one changed byte does before a launch, and inside a container.

Whatever is changed here is put back, and looked at with the nodes' own tools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fault_lab import front, shell

pytestmark = pytest.mark.lab
STATE = "/var/lib/trispark"
ADAPTER = "trispark_hooks/registry.py"
SOURCE = "/opt/trispark_lab_pkg/trispark_lab/api.py"
FLIP = "import sys; p = sys.argv[1]; b = bytearray(open(p, 'rb').read()); b[-2] ^= 1; open(p, 'r+b').write(b)"


def engines(lab: Any) -> dict[str, tuple[str, str]]:
    """{node: (container, start)} as each node's own Docker Engine says."""
    found = {name: lab.inspect(name) for name in lab.nodes}
    return {name: (state["Id"], state["State"]["StartedAt"]) for name, state in found.items() if state}


def sha(lab: Any, node: str, path: str) -> str:
    return str(lab.node(node, "sha256sum", path).decode().split()[0])


def require_serves(lab: Any) -> None:
    asked = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8888/health', timeout=10).status)"
    assert lab.node("spark0", "python3", "-c", asked).strip() == b"200"


@contextmanager
def one_byte_changed(lab: Any, node: str, path: str) -> Iterator[tuple[str, str]]:
    """(hash before, hash now) of a file on a node; as it was at the end, unless it was replaced meanwhile."""
    before = sha(lab, node, path)
    lab.node(node, "cp", "-p", path, "/root/parity-aside")
    try:
        lab.node(node, "python3", "-c", FLIP, path)
        now = sha(lab, node, path)
        assert now != before
        yield before, now
    finally:
        if sha(lab, node, path) != before:
            lab.node(node, "cp", "-p", "/root/parity-aside", path)
        lab.node(node, "rm", "-f", "/root/parity-aside")


@pytest.fixture
def baseline(serving: Any) -> Any:
    """The lab serving what a boot without a feature runs, whatever served before."""
    planned = front(serving, "plan", "stage_c", "-e", "feature=wo_a")
    assert planned.rc == 0, planned.output[-2000:]
    served = {serving.inspect(name)["Config"]["Labels"]["trispark.generation"] for name in serving.nodes}
    if served != {planned.said["baseline"]["generation"]}:
        played = serving.play("site")
        assert played.rc == 0, played.output[-3000:]
    return serving


def test_three_equal_ranks_have_one_chain(serving: Any) -> None:
    ran = front(serving, "images", "verify")
    assert ran.rc == 0, ran.output[-3000:]
    found = ran.said
    assert (found["equal"], found["unreachable"], found["running"]) == (True, [], list(serving.nodes))
    assert [rank["node"] for rank in found["ranks"]] == list(serving.nodes)
    assert found["of_site"]
    assert {(rank["image_name"], rank["container_image_name"]) for rank in found["ranks"]} == {("site", "site")}
    for step in ("reference", "manifest_digest", "image_id", "container_image_id", "adapters", "source"):
        assert len({rank[step] for rank in found["ranks"]}) == 1, step
    assert found["ranks"][0]["adapters"] == found["ranks"][0]["adapters_staged"]
    for rank in found["ranks"]:
        state = serving.inspect(rank["node"])
        assert rank["container_image_id"] == state["Image"]
        assert rank["reference"] == state["Config"]["Image"]
        assert rank["manifest_digest"] == state["Config"]["Image"].partition("@")[2]
        # The hash of the sources, made by the container's own tools. The image's bytecode is used unchecked and counts.
        script = f"cd / && find {SOURCE.rpartition('/')[0]} -type f | LC_ALL=C sort | xargs sha256sum"
        listed = serving.node(rank["node"], "docker", "exec", "trispark-engine", "sh", "-c", script)
        assert rank["source"] == hashlib.sha256(listed).hexdigest()


def test_a_boot_keeps_the_hashes_in_its_record(serving: Any) -> None:
    script = f"cat $(ls {STATE}/records/*.json | tail -n 50)"
    records = [json.loads(line) for line in shell(serving, "spark0", script).splitlines()]
    boots = [record for record in records if record["kind"] == "boot" and record["outcome"]["state"] == "valid"]
    ranks = boots[-1]["observed"]["ranks"]
    assert len({rank["identity"]["source"]["hash"] for rank in ranks}) == 1
    assert all(rank["identity"]["libraries"]["files"] > 10 for rank in ranks)
    assert all(rank["identity"]["differing"] == {} for rank in ranks)
    # Once a boot, on its way to serving.
    assert all(rank["identity"]["seconds"] < 5 * serving.patience for rank in ranks)


def test_one_changed_byte_of_an_adapter_on_one_node_fails_before_the_launch(baseline: Any) -> None:
    before = engines(baseline)
    generation = baseline.inspect("spark1")["Config"]["Labels"]["trispark.generation"]
    path = f"{STATE}/generations/{generation}/adapters/{ADAPTER}"
    with one_byte_changed(baseline, "spark1", path) as (then, now):
        played = baseline.play("boot")
        assert played.rc != 0
        said = " ".join(played.output.split())
        assert "TS-AGENT-DAMAGED" in said
        assert f"adapters/{ADAPTER} (sha256 {now[:16]}, staged as sha256 {then[:16]})" in said, said[-3000:]
        assert "spark1" in said
        assert engines(baseline) == before, "the old engine was not touched on any node"
        require_serves(baseline)
        # Sums that somebody corrected hide nothing.
        baseline.node("spark1", "cp", "-p", f"{STATE}/generations/{generation}/SHA256SUMS", "/root/parity-sums")
        try:
            shell(baseline, "spark1", f"sed -i s/{then}/{now}/ {STATE}/generations/{generation}/SHA256SUMS")
            played = baseline.play("boot")
            assert played.rc != 0
            assert f"adapters/{ADAPTER} (sha256 {now[:16]}" in " ".join(played.output.split())
            assert engines(baseline) == before
        finally:
            baseline.node("spark1", "mv", "/root/parity-sums", f"{STATE}/generations/{generation}/SHA256SUMS")
        # Looked at by hand, too: on the disk and through the mount.
        looked = front(baseline, "images", "verify")
        assert looked.rc == 1, looked.output[-3000:]
        problems = {step["step"]: step["problems"] for step in looked.said["steps"] if step["problems"]}
        assert set(problems) == {"adapters_staged", "adapters"}, problems
        for each in problems.values():
            assert list(each) == ["spark1"]
            assert f"{ADAPTER} is {now[:12]}, spark0, spark2 have {then[:12]}" in each["spark1"]
    assert sha(baseline, "spark1", path) == then


@pytest.mark.slow
def test_what_changed_is_staged_again_by_its_name(baseline: Any) -> None:
    before = engines(baseline)
    generation = baseline.inspect("spark1")["Config"]["Labels"]["trispark.generation"]
    path = f"{STATE}/generations/{generation}/adapters/{ADAPTER}"
    with one_byte_changed(baseline, "spark1", path) as (then, _now):
        played = baseline.play("boot", restage="true")
        assert played.rc == 0, played.output[-4000:]
        assert sha(baseline, "spark1", path) == then
    after = engines(baseline)
    assert {name for name in baseline.nodes if after[name] == before[name]} == set()
    require_serves(baseline)


def test_a_changed_source_file_inside_one_running_container_is_named(serving: Any) -> None:
    def inside(node: str, script: str) -> str:
        return str(serving.node(node, "docker", "exec", "trispark-engine", "sh", "-c", script).decode())

    then = inside("spark2", f"sha256sum {SOURCE}").split()[0]
    inside("spark2", f"cp -p {SOURCE} /root/aside && echo '# changed by hand' >> {SOURCE}")
    try:
        now = inside("spark2", f"sha256sum {SOURCE}").split()[0]
        ran = front(serving, "images", "verify")
        assert ran.rc == 1, ran.output[-3000:]
        assert not ran.said["equal"]
        problems = {step["step"]: step["problems"] for step in ran.said["steps"] if step["problems"]}
        assert list(problems) == ["source"]
        assert problems["source"] == {
            "spark2": f"the odd node spark2: {SOURCE} is {now[:12]}, spark0, spark1 have {then[:12]}"
        }
        verified = serving.play("verify")
        assert verified.rc != 0
        said = " ".join(verified.output.split())
        assert "identity.source on rank 2" in said
        assert f"{SOURCE} is {now[:12]}, spark0, spark1 have {then[:12]}" in said, said[-3000:]
    finally:
        inside("spark2", f"cp -p /root/aside {SOURCE} && rm /root/aside")
    assert front(serving, "images", "verify").rc == 0


def test_where_nothing_runs_it_says_so_and_compares_the_rest(serving: Any) -> None:
    played = serving.play("stop")
    assert played.rc == 0, played.output[-2000:]
    ran = front(serving, "images", "verify")
    assert ran.rc == 0, ran.output[-3000:]
    assert (ran.said["running"], ran.said["equal"]) == ([], True)
    silent = {step["step"] for step in ran.said["steps"] if step["equal"] is None}
    assert silent == {"container_image_id", "container_image_name", "adapters", "source", "libraries"}
    assert "nothing runs" in ran.output
