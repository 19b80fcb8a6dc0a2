"""observe, redaction, bounded logs, images, host."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_node import logs
from trispark_node.docker_client import Executed, Image, parse_container
from trispark_node.observe import PACKAGE_VERSIONS
from trispark_node.redaction import Redactor


@pytest.fixture
def running(bench, active):
    bench.ask("start", boot_id="b1", epoch=5)
    container_id = next(iter(bench.docker.containers))
    bench.docker.logs[container_id] = b"server_args={api_key='sekret-key'}\nDSPARK_BLOCK_SIZE=3\n"
    bench.container_root(container_id)
    bench.docker.executed = {
        "python3": Executed(0, '{"numpy": "2.3.1"}', ""),
        "engine-version": Executed(0, "0.1.0\n", ""),
    }
    return container_id


def test_observe(bench, active, running):
    shutil.rmtree(bench.procfs / "70")
    of_the_engine = {"71": f"0::/docker/{running}\n", "72": f"0::/docker/{running}\n", "73": "0::/docker/other\n"}
    for pid, group in of_the_engine.items():
        (bench.procfs / pid).mkdir()
        (bench.procfs / pid / "cgroup").write_text(group)
        (bench.procfs / pid / "status").write_text(f"Name:\tengine\nVmHWM:\t 999 kB\nVmRSS:\t  {pid} kB\n")
    (bench.procfs / "72" / "status").unlink()  # it ended meanwhile
    adapters = bench.container_root(running, pid=74) / "opt/trispark/adapters"
    (adapters / "smuggled.py").write_text("x\n")
    (adapters / "etc").symlink_to("/etc")
    seen = bench.ask("observe")
    assert seen["memory"] == {
        "resident_bytes": 71 * 1024,
        "memory_available_bytes": 1000 * 1024,
        "memory_total_bytes": 2000 * 1024,
    }
    image = active["spec"]["container"]["image"]
    assert seen["container_id"] == running
    assert (seen["image_ref"], seen["image_digests"], seen["image_id"]) == (image, [image], "sha256:" + "b" * 64)
    assert seen["env"] == {
        "PATH": "/bin",
        "FROM_IMAGE": "1",
        "DSPARK_BLOCK_SIZE": "3",
        "RENDEZVOUS": "20001",
        "TAG": "one",
        "X_API_KEY": "<redacted>",
    }
    assert seen["image_env"] == {"PATH": "/bin", "FROM_IMAGE": "1"}
    assert seen["command"][-1] == "10.77.0.10:20001"
    assert seen["mounts"][0]["target"] == "/opt/trispark/adapters"
    assert seen["labels"]["trispark.boot"] == "b1"
    assert seen["adapters"] == {
        **active["resolved"]["adapters"],
        "smuggled.py": hashlib.sha256(b"x\n").hexdigest(),
        "etc": "a link to /etc",
    }
    assert "identity" not in seen, "it is asked for"
    assert seen["versions"]["engine"] == "0.1.0"
    assert seen["versions"]["packages"] == {"numpy": "2.3.1"}
    assert seen["versions"]["kernel"]["release"] == os.uname().release
    assert seen["log"] == "server_args={api_key='<redacted>'}\nDSPARK_BLOCK_SIZE=3\n"
    assert "sekret" not in json.dumps(seen)


def test_observe_fails_by_name_when_it_cannot_look_inside(bench, running):
    bench.docker.executed["engine-version"] = Executed(1, "", "no such module\n")
    error = bench.refused("observe")
    assert (error["id"], "no such module" in error["observed"]) == ("TS-AGENT-OBSERVE", True)
    for name in ("opt/trispark/adapters", "."):
        shutil.rmtree(bench.procfs / "70" / "root" / name)
        error = bench.refused("observe")
        assert (error["id"], "adapters" in error["where"]) == ("TS-AGENT-OBSERVE", True)
    bench.docker.change(running, status="exited", exit_code=1)
    assert bench.refused("observe")["id"] == "TS-AGENT-ABSENT"


def test_package_versions_script_runs_without_site():
    done = subprocess.run(
        [sys.executable, "-S", "-c", PACKAGE_VERSIONS, "pytest", "no-such-package"],
        capture_output=True, text=True, check=True, env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert json.loads(done.stdout) == {"pytest": pytest.__version__, "no-such-package": None}


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["serve", "--api-key", "abcd1234", "--tp", "3"], ["serve", "--api-key", "<redacted>", "--tp", "3"]),
        (["--api-key=abcd1234"], ["--api-key=<redacted>"]),
        (["--admin-api-key", "abcd1234"], ["--admin-api-key", "<redacted>"]),
        (["--api-key", "--api-key", "x"], ["--api-key", "<redacted>", "x"]),
        (["--api-keys", "3"], ["--api-keys", "3"]),
    ],
)
def test_redaction(command, shown):
    redactor = Redactor({"HF_TOKEN": "hf_secret", "MY_HF_TOKEN": "hf_other", "EMPTY_HF_TOKEN": "", "N": "1"}, command)
    assert redactor.command(command) == shown
    assert redactor.env(
        {"HF_TOKEN": "hf_secret", "MY_HF_TOKEN": "hf_other", "EMPTY_HF_TOKEN": "", "NOT_HF_TOKENS": "3"}
    ) == {"HF_TOKEN": "<redacted>", "MY_HF_TOKEN": "<redacted>", "EMPTY_HF_TOKEN": "", "NOT_HF_TOKENS": "3"}
    hidden = redactor.text("a hf_secret b hf_other c abcd1234")
    assert "hf_" not in hidden
    assert ("abcd1234" in hidden) == ("abcd1234" not in " ".join(command))


@given(lines=st.lists(st.text("ab ", max_size=30), max_size=60), limit=st.integers(0, 400), piece=st.integers(1, 50))
def test_bounded_log(lines, limit, piece):
    data = "".join(line + "\n" for line in lines).encode()
    text, left_out = logs.bounded((data[i : i + piece] for i in range(0, len(data), piece)), limit)
    if len(data) <= limit - limit % 2:
        assert (text.encode(), left_out) == (data, 0)
        return
    if left_out == 0:
        assert text.encode() == data
        return
    head, marker, tail = text.partition(f"[trispark: {left_out} bytes left out]\n")
    assert marker
    assert data.startswith(head.encode())
    assert data.endswith(tail.encode())
    assert len(head) + len(tail) + left_out == len(data)
    assert len(head) + len(tail) <= limit


@pytest.mark.parametrize("case", ["present", "pulled", "wrong digest", "never pulled from a registry"])
def test_image_ensure(bench, case):
    reference = "registry:5000/trispark/bench@sha256:" + "d" * 64
    digests = {"wrong digest": ("registry:5000/trispark/bench@sha256:" + "e" * 64,), "never pulled from a registry": ()}
    image = Image("sha256:1", digests.get(case, (reference,)), {})
    (bench.docker.registry if case == "pulled" else bench.docker.images)[reference] = image
    if case in digests:
        assert bench.refused("image-ensure", image=reference)["id"] == "TS-AGENT-IMAGE-DIGEST"
        return
    if case == "pulled":
        assert bench.ask("image-ensure", image=reference, check=True)["changed"] is True
        assert bench.docker.events == []
    answer = bench.ask("image-ensure", image=reference)
    pulled = case == "pulled"
    assert (answer["changed"], answer["image_id"], answer["pulled"]) == (pulled, "sha256:1", pulled)
    assert bench.ask("image-ensure", image=reference)["changed"] is False


def test_host(bench, tmp_path):
    absent = tmp_path / "made" / "later"
    link = tmp_path / "link"
    link.symlink_to("/proc/no-such-process")
    answer = bench.ask("host", paths=[str(tmp_path), str(absent), str(link), str(link / "below")])
    assert answer["memory_available_bytes"] == 1000 * 1024
    assert answer["disk"][str(tmp_path)]["free_bytes"] > 0
    assert answer["disk"][str(tmp_path)]["exists"] is True
    total = answer["disk"][str(tmp_path)]["total_bytes"]
    assert (answer["disk"][str(absent)]["exists"], answer["disk"][str(absent)]["total_bytes"]) == (False, total)
    assert answer["disk"][str(absent)]["free_bytes"] > 0
    # Where a link leads to is where the path would be made.
    facts = shutil.disk_usage("/proc")
    for path in (link, link / "below"):
        assert answer["disk"][str(path)] == {
            "exists": False,
            "free_bytes": facts.free,
            "total_bytes": facts.total,
        }
    assert not absent.parent.exists()
    assert answer["docker"] == {"version": "20.10.24", "storage_driver": "overlay2"}
    assert "127.0.0.1" in answer["addresses"]["lo"]


def test_parse_container():
    raw = {
        "Id": "abc", "Name": "/trispark-engine", "Image": "sha256:1",
        "State": {"Status": "running", "ExitCode": 0, "Error": "", "StartedAt": "2026-01-01T00:00:00Z"},
        "Config": {"Image": "x", "Env": ["A=1", "B=x=y", "C", "A=2"], "Cmd": None, "Labels": None},
        "Mounts": [{"Source": "/a", "Destination": "/b", "RW": False}, {"Destination": "/c", "RW": True}],
    }  # fmt: skip
    container = parse_container(raw)
    assert (container.name, container.exit_code, container.command) == ("trispark-engine", None, ())
    assert container.env == {"A": "2", "B": "x=y", "C": ""}
    assert [(m.source, m.target, m.read_only) for m in container.mounts] == [("/a", "/b", True), ("", "/c", False)]
    raw["State"] = {"Status": "created", "ExitCode": 0, "StartedAt": "0001-01-01T00:00:00Z"}
    assert (parse_container(raw).started_at, parse_container(raw).alive) == (None, False)
