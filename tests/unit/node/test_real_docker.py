"""The agent against the Docker Engine of this machine: the built file as a program, real containers, a real pull.

The image is made of this machine's own programs and comes from a registry inside this test, so that it has a digest.
Container names carry the test's process id: nothing else on the machine is touched. Without a Docker Engine these tests
are left out, with TRISPARK_REQUIRE_DOCKER=1 they fail.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trispark_node import ENGINE_NAME, cli, engine, status_engine
from trispark_node.docker_client import SdkClient
from trispark_node.layout import Layout
from trispark_node.node import Node

pytestmark = pytest.mark.docker
PROGRAMS = ("sh", "sleep", "cat", "find", "sha256sum", "grep")
# An engine in kind: says what it is, becomes ready when its file appears, ends politely on TERM.
POLITE = 'echo "up on $PORT"; trap "echo bye; exit 3" TERM; while :; do sleep 0.05; done'
STUBBORN = 'echo up; trap "" TERM; while :; do sleep 0.05; done'


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def docker_engine() -> None:
    try:
        done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False, timeout=30)
        problem = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        (pytest.fail if os.environ.get("TRISPARK_REQUIRE_DOCKER") == "1" else pytest.skip)(
            f"no Docker Engine: {problem}"
        )


def root_file_system() -> bytes:
    """A tar of PROGRAMS and the shared libraries that they name."""
    files: dict[str, Path] = {}
    for program in PROGRAMS:
        path = Path(str(shutil.which(program, path="/usr/bin:/bin"))).resolve()
        files[f"bin/{program}"] = path
        linked = subprocess.run(["ldd", str(path)], capture_output=True, text=True, check=True).stdout
        for word in linked.split():
            if word.startswith("/"):
                files[word.lstrip("/")] = Path(word).resolve()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, path in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.mode, info.size = 0o755, path.stat().st_size
            with path.open("rb") as file:
                archive.addfile(info, file)
    return out.getvalue()


class Registry(BaseHTTPRequestHandler):
    """As much of the distribution API as one pull by digest asks for."""

    blobs: dict[str, tuple[str, bytes]]

    def do_GET(self) -> None:
        found = self.blobs.get(self.path.rpartition("/")[2])
        if self.path == "/v2/":
            found = ("application/json", b"{}")
        self.send_response(200 if found else 404)
        kind, data = found or ("text/plain", b"")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, *_arguments: object) -> None:
        return None


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def registry_image():
    """Reference by digest of an image that a registry on this machine serves and the Engine does not have yet."""
    layer = root_file_system()
    packed = gzip.compress(layer, 1, mtime=0)
    config = json.dumps(
        {
            "architecture": docker("version", "--format", "{{.Server.Arch}}"),
            "os": "linux",
            "config": {"Env": ["PATH=/bin", "FROM_IMAGE=1", f"UNIQUE={os.getpid()}"], "Cmd": ["/bin/sh"]},
            "rootfs": {"type": "layers", "diff_ids": [digest_of(layer)]},
        }
    ).encode()
    prefix = "application/vnd.docker."
    manifest_type = prefix + "distribution.manifest.v2+json"
    manifest = json.dumps(
        {
            "schemaVersion": 2,
            "mediaType": manifest_type,
            "config": {
                "mediaType": prefix + "container.image.v1+json",
                "size": len(config),
                "digest": digest_of(config),
            },
            "layers": [
                {"mediaType": prefix + "image.rootfs.diff.tar.gzip", "size": len(packed), "digest": digest_of(packed)}
            ],
        }
    ).encode()
    stored = {digest_of(packed): packed, digest_of(config): config}
    blobs = {key: ("application/octet-stream", data) for key, data in stored.items()}
    blobs[digest_of(manifest)] = (manifest_type, manifest)
    handler = type("Handler", (Registry,), {"blobs": blobs})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        reference = f"127.0.0.1:{server.server_port}/trispark-test/engine@{digest_of(manifest)}"
        yield reference
        server.shutdown()
        thread.join()
    subprocess.run(["docker", "image", "rm", "-f", reference], capture_output=True, check=False)


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        return None


@pytest.fixture
def health_url():
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/health"
        server.shutdown()
        thread.join()


class Real:
    """A node whose Docker Engine is this machine's. A lab on the same machine is not seen: its nodes have their own."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.node = Node(Layout(root))

    def answer(self, verb: str, **request: Any) -> dict[str, Any]:
        return cli.answer(self.node, verb, json.dumps(request))[0]

    def ask(self, verb: str, **request: Any) -> dict[str, Any]:
        answer = self.answer(verb, **request)
        assert answer["ok"], answer
        return answer


@pytest.fixture
def real(tmp_path, monkeypatch, docker_engine):
    name = f"trispark-test-{os.getpid()}"
    for module in (engine, status_engine):
        monkeypatch.setattr(module, "ENGINE_NAME", name)
    assert docker("ps", "-aq", "--filter", "label=trispark=1", "--filter", "label=trispark.role=engine") == "", (
        "an engine of a real node runs on this machine; these tests would stop it"
    )
    yield Real(tmp_path / "root", name)
    subprocess.run(["docker", "rm", "-f", name, f"{name}-bench"], capture_output=True, check=False)


@pytest.fixture
def started(real, registry_image, health_url, stage_request):
    """Stages, activates, fences and starts an engine that runs a shell script."""

    def start(script: str = POLITE, boot: str = "b1", **container: Any) -> dict[str, Any]:
        request = stage_request(
            name=real.name,
            image=registry_image,
            command=["/bin/sh", "-c", script],
            env={"PORT": "{rendezvous_port}", "SPACES": "a b  'c' \"d\" $e", "MY_API_KEY": "sekret-key"},
            **container,
        )
        request["spec"]["ready"]["url"] = health_url
        request["spec"]["observe"] = {"packages": [], "version_command": ["/bin/sh", "-c", "echo 0.1.0"]}
        real.ask("image-ensure", image=registry_image)
        real.ask("stage", **request)
        real.ask("activate", generation=request["generation"])
        epoch = real.ask("status")["epoch"] + 1
        real.ask("fence", epoch=epoch, boot_id=boot)
        return real.ask("start", boot_id=boot, epoch=epoch)

    return start


def test_pull_by_digest(real, registry_image):
    subprocess.run(["docker", "image", "rm", "-f", registry_image], capture_output=True, check=False)
    answer = real.ask("image-ensure", image=registry_image)
    assert (answer["changed"], answer["pulled"]) == (True, True)
    assert answer["image_id"] == docker("image", "inspect", registry_image, "--format", "{{.Id}}")
    assert real.ask("image-ensure", image=registry_image)["changed"] is False
    error = real.answer("image-ensure", image=registry_image[:-4] + "0000")["error"]
    assert error["id"] == "TS-AGENT-IMAGE-ABSENT"


def test_an_image_from_an_archive_has_its_digest_on_the_real_engine(real, registry_image, tmp_path):
    """The Engine believes a registry on a loopback port without TLS, and that is the agent, for the moment."""
    host, _, rest = registry_image.partition("/")
    name, _, digest = rest.partition("@")

    def fetch(kind: str, digest: str) -> bytes:
        with urllib.request.urlopen(f"http://{host}/v2/{name}/{kind}/{digest}", timeout=10) as answer:
            return bytes(answer.read())

    manifest = fetch("manifests", digest)
    parts = json.loads(manifest)
    blobs = {digest: manifest}
    blobs |= {each["digest"]: fetch("blobs", each["digest"]) for each in (parts["config"], *parts["layers"])}
    archive = tmp_path / "engine.tar"
    with tarfile.open(archive, "w") as tar:
        for key, data in blobs.items():
            info = tarfile.TarInfo(f"blobs/sha256/{key.removeprefix('sha256:')}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    subprocess.run(["docker", "image", "rm", "-f", registry_image], capture_output=True, check=False)
    for port in range(20300, 20400):
        image = f"127.0.0.1:{port}/{name}@{digest}"
        answer = real.answer("image-ensure", image=image, archive=str(archive))
        if answer["ok"] or answer["error"]["id"] != "TS-AGENT-IMAGE-PORT":
            break
    try:
        assert answer["ok"], answer
        assert answer["pulled"]
        assert json.loads(docker("image", "inspect", image, "--format", "{{json .RepoDigests}}")) == [image]
        assert answer["image_id"] == docker("image", "inspect", image, "--format", "{{.Id}}")
    finally:
        subprocess.run(["docker", "image", "rm", "-f", image], capture_output=True, check=False)


def test_prune_takes_a_pulled_image_away_but_not_from_a_container(real, registry_image):
    subprocess.run(["docker", "image", "rm", "-f", registry_image], capture_output=True, check=False)
    assert real.ask("image-ensure", image=registry_image)["pulled"]
    user = f"{real.name}-user"
    docker("create", "--name", user, registry_image, "/bin/true")
    try:
        kept = {registry_image: f"container {user}"}
        assert real.ask("prune", images=True)["images"] == {"removed": [], "kept": kept}
    finally:
        docker("rm", user)
    assert real.ask("prune", images=True)["images"] == {"removed": [registry_image], "kept": {}}
    assert real.node.docker.image(registry_image) is None
    assert not real.ask("prune", images=True)["changed"]


def test_a_whole_boot(real, started, stage_request):
    """start, wait, status, observe, save-log, stop: each compared with what `docker inspect` says."""
    answer = started()
    inspected = json.loads(docker("inspect", real.name))[0]
    assert inspected["Id"] == answer["container_id"]
    assert inspected["HostConfig"]["NetworkMode"] == "host"
    assert f"PORT={answer['rendezvous_port']}" in inspected["Config"]["Env"]
    assert real.ask("wait", timeout_s=10)["state"] == "ready"
    whole = real.ask("status")
    assert (whole["drift"], whole["problems"], whole["unknown"]) == ([], [], [])
    shown = whole["engine"]
    assert shown["resident_bytes"] > 0
    assert (shown["name"], shown["state"], shown["health"], shown["boot_id"]) == (real.name, "running", "ready", "b1")
    assert shown["started_at"] == inspected["State"]["StartedAt"]

    seen = real.ask("observe")
    effective = dict(item.split("=", 1) for item in inspected["Config"]["Env"])
    assert seen["env"] == {**effective, "MY_API_KEY": "<redacted>"}
    assert seen["env"]["SPACES"] == "a b  'c' \"d\" $e"
    assert set(seen["image_env"]) == {"PATH", "FROM_IMAGE", "UNIQUE"}
    assert seen["image_digests"] == [inspected["Config"]["Image"]]
    assert seen["adapters"] == stage_request()["resolved"]["adapters"]
    assert seen["versions"]["engine"] == "0.1.0"
    assert seen["log"] == f"up on {answer['rendezvous_port']}\n"
    assert [mount["read_only"] for mount in seen["mounts"]] == [True]
    real.ask("save-log")
    log = real.node.layout.boot_log("b1")
    assert log.read_text() == seen["log"]

    pid = inspected["State"]["Pid"]
    assert Path(f"/proc/{pid}").exists()
    stopped = real.ask("stop", deadline_s=10)
    assert (stopped["changed"], stopped["killed"], stopped["exit_code"]) == (True, False, 3)
    assert log.read_text() == seen["log"] + "bye\n"
    assert not Path(f"/proc/{pid}").exists()
    assert docker("ps", "-aq", "--filter", f"name={real.name}") == ""
    assert real.ask("stop", deadline_s=10)["changed"] is False


def test_a_stubborn_engine_is_killed(real, started):
    started(STUBBORN)
    stopped = real.ask("stop", deadline_s=0.3)
    assert (stopped["killed"], stopped["exit_code"]) == (True, 137)
    assert stopped["seconds"] < 8


def test_a_paused_engine_is_stopped(real, started):
    started(POLITE)
    docker("pause", real.name)
    assert real.ask("stop", deadline_s=10)["exit_code"] == 3


def test_an_engine_that_dies_is_seen_although_its_port_answers(real, started):
    started("echo fatal: no row store; exit 5")
    docker("wait", real.name)
    answer = real.ask("wait", timeout_s=60)
    assert (answer["state"], answer["exit_code"], answer["last_log"]) == ("exited", 5, "fatal: no row store")


def test_a_long_log_is_saved_whole(real, started):
    started('i=0; while [ $i -lt 20000 ]; do echo "line $i of a long log"; i=$((i+1)); done; echo last >&2')
    docker("wait", real.name)
    real.ask("stop", deadline_s=1)
    lines = real.node.layout.boot_log("b1").read_text().splitlines()
    assert sorted(lines) == sorted([*(f"line {i} of a long log" for i in range(20000)), "last"])


def test_a_command_that_is_not_there(real, started):
    with pytest.raises(AssertionError, match="TS-AGENT-START"):
        started(POLITE, **{"ulimits": [{"name": "nofile", "soft": 2, "hard": 1}]})
    assert docker("ps", "-aq", "--filter", f"name={real.name}") == ""


def test_the_engine_itself_refuses_a_missing_mount_source(real, registry_image, tmp_path):
    """Should a source vanish between our check and the start, nothing is made in its place."""
    real.ask("image-ensure", image=registry_image)
    gone = tmp_path / "gone"
    mount = {"Type": "bind", "Source": str(gone), "Target": "/m", "ReadOnly": True}
    with pytest.raises(Exception, match="bind source path does not exist"):
        SdkClient().create(real.name, {"Image": registry_image, "HostConfig": {"Mounts": [mount]}})
    assert not gone.exists()


def test_a_foreign_container_survives(real, started, registry_image):
    real.ask("image-ensure", image=registry_image)
    docker("run", "-d", "--name", real.name, registry_image, "/bin/sh", "-c", POLITE)
    with pytest.raises(AssertionError, match="TS-AGENT-FOREIGN"):
        started()
    assert real.answer("stop", deadline_s=1)["error"]["id"] == "TS-AGENT-FOREIGN"
    assert docker("inspect", real.name, "--format", "{{.State.Status}}") == "running"


def test_oneshot(real, registry_image):
    real.ask("image-ensure", image=registry_image)
    request = {"image": registry_image, "name": f"{real.name}-bench", "input": {"n": 1}}
    copy = ["/bin/sh", "-c", "echo working; cat /work/input.json > /work/output.json"]
    answer = real.ask("oneshot", command=copy, deadline_s=30, **request)
    assert (answer["exit_code"], answer["output"], answer["log_tail"]) == (0, {"n": 1}, ["working"])
    late = real.answer("oneshot", command=["/bin/sh", "-c", STUBBORN], deadline_s=0.2, **request)
    assert late["error"]["id"] == "TS-AGENT-DEADLINE"
    assert docker("ps", "-aq", "--filter", f"name={real.name}") == ""
    assert list((real.node.layout.run).iterdir()) == []


def test_default_name_is_the_contract():
    assert ENGINE_NAME == "trispark-engine"


BY_HAND = {
    "host": [
        "--network", "host", "--ipc", "host", "--shm-size", "64m", "--ulimit", "nofile=1024:1024", "--user", "0",
        "--restart", "always", "--volume", "/tmp:/x:ro", "--device", "/dev/null:/dev/nul2", "--health-cmd", "true",
    ],
    "plain": ["--mount", "type=bind,source=/tmp,target=/y,readonly", "--hostname", "hand", "--log-opt", "max-size=1m"],
    "removes-itself": ["--rm", "--network", "none", "--workdir", "/bin", "--tmpfs", "/scratch:size=1m"],
}  # fmt: skip


def inspected(name: str) -> dict[str, Any]:
    return json.loads(docker("inspect", name))[0]


@pytest.mark.parametrize("options", BY_HAND.values(), ids=BY_HAND)
def test_a_container_by_hand_is_taken_over_and_made_anew_without_a_difference(real, registry_image, options):
    real.ask("image-ensure", image=registry_image)
    docker(
        "run", "--detach", "--name", real.name, "--env", "NODE_RANK=1", "--env", "HF_TOKEN=hf_0123456789", *options,
        registry_image, "/bin/sh", "-c", POLITE,
    )  # fmt: skip
    before = inspected(real.name)
    (found,) = real.ask("survey", names=[real.name], loggable=["NODE_RANK"])["containers"]
    assert (found["rank"], found["env"]["HF_TOKEN"], found["inexact"]) == (1, None, [])
    for adoption, remove in (("a" + "1" * 16, False), ("a" + "2" * 16, True)):
        if not remove and "--rm" in options:
            continue
        current = {"container_id": inspected(real.name)["Id"], "rank": 1, "deadline_s": 10}
        answer = real.ask("adopt", id=adoption, remove=remove, **current)
        assert (answer["killed"], answer["removed"]) == (False, remove)
        assert docker("ps", "--quiet", "--filter", f"name={real.name}") == ""
        assert real.ask("adopt-back", id=adoption)["how"] == ("made anew" if remove else "kept")
        after = inspected(real.name)
        assert after["State"]["Status"] == "running"
        for part in ("Config", "HostConfig"):
            for each in (before, after):
                if each["Config"].get("Hostname") == each["Id"][:12]:
                    del each["Config"]["Hostname"]
            assert after[part] == before[part]
