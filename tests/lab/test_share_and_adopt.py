"""The checkpoint's share over sshfs, and the take-over of an engine that was started by hand, judged from outside.

Each of the two tests tells one story in order: a lab that is made anew for every sentence would take an hour.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.slow]

PLACE = "/srv/models/DeepSeek-V4.1-Flash"
HEADS = {"spark1": "10.77.1.10", "spark2": "10.77.2.10"}
"""The head's address on the network that it has with this worker alone."""
SECRET = "hf_Zq8Lw0DoNotShow"
HAND = {"spark0": "trispark-engine", "spark1": "dsv41-worker", "spark2": "dsv41-worker"}
"""The head by our own name, the workers by theirs."""
NAMES = "trispark-engine,dsv41-worker"


def words(output: str) -> str:
    """Without the line breaks of the callback."""
    return " ".join(output.split())


def front_end(lab: Any, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "trispark", *arguments],
        cwd=lab.root,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def done(played: Any) -> str:
    assert played.rc == 0, played.output[-4000:]
    return words(played.output)


def refusal(played: Any) -> str:
    assert played.rc != 0, played.output[-4000:]
    return words(played.output)


def mounted(lab: Any, name: str) -> list[str]:
    """Source, type and options of what is mounted at the checkpoint's place, as the node's kernel says."""
    lines = lab.node(name, "cat", "/proc/mounts").decode().splitlines()
    return [line for line in lines if line.split()[1] == PLACE]


def shell(lab: Any, name: str, script: str, check: bool = True) -> str:
    return lab.node(name, "sh", "-c", script, check=check).decode()


# --- the share ------------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(lab: Any) -> Iterator[Any]:
    """The lab in which the head alone has the checkpoint; afterwards the lab in which every node has it."""
    front_end(lab, "lab", "up", "--share", "fuse")
    yield lab
    lab.play("stop")
    front_end(lab, "lab", "up", "--share", "local")


def test_the_workers_see_the_heads_checkpoint_and_nothing_else(shared: Any) -> None:
    lab = shared

    # Nothing is mounted: a pack says so instead of packing from an empty directory.
    assert all(mounted(lab, name) == [] for name in HEADS)
    said = refusal(lab.play("shards"))
    assert "TS-SHARE-MISSING" in said
    assert "rank 1" in said
    assert "./trispark play share" in said

    said = done(lab.play("share"))
    assert all(f"{name} rank {rank}: mounted by sshfs" in said for rank, name in enumerate(HEADS, start=1))
    for name, head in HEADS.items():
        (line,) = mounted(lab, name)
        assert line.startswith(f"trispark:trispark-share@{head}:{PLACE} {PLACE} fuse.sshfs ro,")
        assert "Read-only" in shell(lab, name, f"touch {PLACE}/x 2>&1", check=False)
    assert "changed=0" in done(lab.play("share"))
    sums = {name: shell(lab, name, f"cd {PLACE} && cat * | sha256sum") for name in lab.nodes}
    assert len(set(sums.values())) == 1

    # An engine serves through it; while it runs the share is not taken away, and its stop leaves the share alone.
    done(lab.play("site", repair="true"))
    before = {name: mounted(lab, name) for name in HEADS}
    said = refusal(lab.play("share", remove="true"))
    assert "TS-SHARE-INUSE" in said
    done(lab.play("stop"))
    assert {name: mounted(lab, name) for name in HEADS} == before

    # Lost: the next verb says so and what to do, and what it says helps.
    shell(lab, "spark1", f"umount {PLACE}")
    said = refusal(lab.play("boot"))
    assert "TS-SHARE-MISSING" in said
    assert "an empty directory, as Docker makes one" in said
    assert lab.inspect("spark1") is None
    done(lab.play("share"))

    # Other bytes, another revision, another export.
    weights = shell(lab, "spark2", f"cd {PLACE} && ls *.safetensors | tail -n 1").strip()
    for file, word in ((weights, "TS-SHARE-CONTENT"), ("config.json", "TS-SHARE-REVISION")):
        flip = "import sys; d=bytearray(open(sys.argv[1],'rb').read()); d[-3]^=1; open('/run/other','wb').write(d)"
        lab.node("spark2", "python3", "-c", flip, f"{PLACE}/{file}")
        shell(lab, "spark2", f"mount --bind /run/other {PLACE}/{file}")
        said = refusal(lab.play("shards"))
        assert word in said
        assert f"rank 2, {PLACE}/{file}" in said
        shell(lab, "spark2", f"umount {PLACE}/{file}")
    shell(lab, "spark2", f"umount {PLACE} && mount --bind /srv/engram {PLACE}")
    assert "TS-SHARE-EXPORT" in refusal(lab.play("shards"))
    assert "TS-SHARE-FOREIGN" in refusal(lab.play("share"))
    shell(lab, "spark2", f"umount {PLACE}")
    done(lab.play("share"))

    # A server that does not answer holds nobody up; one that is gone is mounted anew.
    shell(lab, "spark1", "kill -STOP $(pidof sshfs)")
    before_hang = time.monotonic()
    said = refusal(lab.play("shards", checkpoint_share_read_deadline_s="3"))
    assert "TS-SHARE-TIMEOUT" in said
    assert time.monotonic() - before_hang < 40
    shell(lab, "spark1", "kill -CONT $(pidof sshfs)")
    shell(lab, "spark1", "kill -KILL $(pidof sshfs)")
    assert "TS-SHARE-STALE" in refusal(lab.play("shards"))
    done(lab.play("share"))

    # A worker that was restarted has no mount; the verb brings it back.
    lab_restart(lab, "spark2")
    assert "TS-SHARE-MISSING" in refusal(lab.play("shards"))
    done(lab.play("site"))

    done(lab.play("stop"))
    done(lab.play("share", remove="true"))
    assert all(mounted(lab, name) == [] for name in HEADS)


def lab_restart(lab: Any, name: str) -> None:
    subprocess.run(["docker", "restart", "--time", "10", name], check=True, capture_output=True, timeout=60)
    deadline = time.monotonic() + 60
    while lab.node(name, "/usr/local/sbin/lab-ready", check=False) == b"":
        assert time.monotonic() < deadline, f"{name} does not come back"
        time.sleep(0.5)


# --- the take-over --------------------------------------------------------------------------------------------------


def start_by_hand(lab: Any, engines: dict[str, dict[str, Any]]) -> None:
    """The same engine without a word of trispark in its labels, as someone would have typed it; workers first."""
    for name in reversed(lab.nodes):
        state = engines[name]
        rank = state["Config"]["Labels"]["trispark.rank"]
        mounts = [
            f"type=bind,source={mount['Source']},target={mount['Target']}{',readonly' if mount.get('ReadOnly') else ''}"
            for mount in state["HostConfig"]["Mounts"]
        ]
        lab.node(
            name, "docker", "run", "--detach", "--name", HAND[name], "--network", "host", "--restart", "unless-stopped",
            "--label", "made.by=hand", "--env", f"HF_TOKEN={SECRET}", "--env", f"NODE_RANK={rank}",
            *(word for value in state["Config"]["Env"] for word in ("--env", value)),
            *(word for mount in mounts for word in ("--mount", mount)),
            state["Config"]["Image"], *state["Config"]["Cmd"],
        )  # fmt: skip


def answer_of(lab: Any) -> str:
    """What the fleet answers to one prompt, when it is ready."""
    script = """
import json, sys, time, urllib.request
def call(path, body=None):
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request("http://127.0.0.1:8888" + path, data, headers)
    return urllib.request.urlopen(request, timeout=30).read()
end = time.monotonic() + 60
while True:
    try:
        call("/health")
        break
    except OSError:
        if time.monotonic() > end:
            raise
        time.sleep(0.3)
prompt = [{"role": "user", "content": "19+23="}]
print(json.loads(call("/v1/chat/completions", {"model": "deepseek-v4.1-flash", "messages": prompt, "max_tokens": 16,
    "temperature": 0}))["choices"][0]["message"]["content"])
"""
    return lab.node("spark0", "python3", "-c", script).decode().strip()


def by_hand(lab: Any, name: str) -> dict[str, Any] | None:
    text = lab.node(name, "docker", "inspect", HAND[name], check=False)
    found = json.loads(text or b"[]")
    return found[0] if found else None


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    """What someone would compare by eye: what runs, with what, from where."""
    host = state["HostConfig"]
    keys = ("Binds", "Mounts", "NetworkMode", "RestartPolicy", "Privileged", "IpcMode", "ShmSize")
    config = {key: state["Config"][key] for key in ("Cmd", "Entrypoint", "Env", "Labels", "User", "WorkingDir")}
    return {"image": state["Image"], **config, **{key: host.get(key) for key in keys}}


@pytest.fixture
def hand(serving: Any) -> Iterator[Any]:
    """An engine of three ranks that someone started by hand; afterwards nothing of it is left."""
    engines = {name: serving.inspect(name) for name in serving.nodes}
    done(serving.play("stop"))
    start_by_hand(serving, engines)
    yield serving
    for name in serving.nodes:
        named = (
            serving.node(name, "docker", "ps", "--all", "--quiet", "--filter", "label=made.by=hand").decode().split()
        )
        if named:
            serving.node(name, "docker", "rm", "--force", *named)
        serving.node(name, "rm", "-rf", "/var/lib/trispark/adopted")


def test_an_engine_started_by_hand_is_taken_over_and_given_back(hand: Any) -> None:
    lab = hand
    answer = answer_of(lab)
    assert answer == "42"
    before = {name: by_hand(lab, name) for name in lab.nodes}

    # Everything else refuses it, and looking at it touches nothing.
    assert "TS-PREFLIGHT-FOREIGN" in refusal(lab.play("preflight"))
    assert "TS-AGENT-FOREIGN" in refusal(lab.play("stop"))
    said = done(lab.play("adopt"))
    for name in lab.nodes:
        assert f"{name}: container {HAND[name]}, rank" in said
    assert "HF_TOKEN" in said
    said += done(lab.play("adopt", container=NAMES))
    assert "nothing was touched" in said
    assert {name: by_hand(lab, name)["State"] for name in lab.nodes} == {
        name: before[name]["State"] for name in lab.nodes
    }

    # Taken over: ended, not removed; nobody but root on the node can read its secret.
    said += done(lab.play("adopt", container=NAMES, confirm="true"))
    adoption = re.findall(r"taken over as (a[0-9a-f]{16});", said)[-1]
    for name in lab.nodes:
        running = lab.node(name, "docker", "ps", "--quiet", "--filter", "label=made.by=hand")
        ended = lab.node(
            name, "docker", "ps", "--all", "--format", "{{.ID}}", "--no-trunc", "--filter", "label=made.by=hand"
        )
        assert (running, ended.decode().strip()) == (b"", before[name]["Id"])
        holders = shell(lab, name, f"grep -rl {SECRET} /var/lib/trispark").split()
        assert holders == [f"/var/lib/trispark/adopted/{adoption}/start.json"]
        assert shell(lab, name, f"stat -c '%a %U' {holders[0]}").strip() == "600 root"
    done(lab.play("preflight"))

    # Given back: the very containers, as they were.
    done(lab.play("adopt", back_to=adoption))
    assert answer_of(lab) == answer
    for name in lab.nodes:
        after = by_hand(lab, name)
        assert after["Id"] == before[name]["Id"]
        assert comparable(after) == comparable(before[name])

    # Removed, too, when that is asked for; then made anew from the description, on the rank that lost it.
    said += done(lab.play("adopt", container=NAMES, confirm="true", remove="true"))
    second = re.findall(r"taken over as (a[0-9a-f]{16});", said)[-1]
    assert second != adoption
    assert [by_hand(lab, name) for name in lab.nodes] == [None, None, None]
    done(lab.play("boot"))
    assert "TS-ADOPT-RUNNING" in refusal(lab.play("adopt", back_to=second))
    done(lab.play("stop"))
    said += done(lab.play("adopt", back_to=second))
    assert answer_of(lab) == answer
    for name in lab.nodes:
        after = by_hand(lab, name)
        assert after["Id"] != before[name]["Id"]
        assert comparable(after) == comparable(before[name])
    assert SECRET not in said
