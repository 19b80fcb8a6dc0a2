"""The agent's file is replaced while a job is at work: the job needs nothing of it any more."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from trispark_node import native_library
from trispark_node.errors import AgentError

PACKAGE = Path(native_library.__file__).parent
JOB = """
import json, os, select, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from trispark_node import cli, detached, engram_job, shard_pack
from trispark_node.layout import Layout
from trispark_node.node import Node

def spawn(work, deadline_s):
    os.replace(sys.argv[2], sys.argv[1])
    return detached.spawn(work, deadline_s)

def defect(*_given):
    raise TypeError("a defect")

engram_job.spawn = spawn
if sys.argv[5] == "defect":
    shard_pack.pack = defect
node = Node(Layout(Path(sys.argv[3])))

def ask(request):
    answer, _ = cli.answer(node, "engram-job", json.dumps(request))
    return answer

begun = ask(json.loads(sys.argv[4]))
assert begun["ok"], begun
state = json.loads(node.layout.engram_job.read_bytes())
try:
    process = os.pidfd_open(state["pid"])
    assert select.select([process], [], [], 60)[0]
except ProcessLookupError:
    pass
print(json.dumps(ask({"action": "poll", "job": begun["job"]})))
"""


def write_agent(path: Path, spoilt: bytes) -> None:
    """The agent as one file, and `spoilt`: one whose members lie in the same places and cannot be unpacked."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for file in sorted([*PACKAGE.glob("*.py"), *(each for each in PACKAGE.glob("native/**/*") if each.is_file())]):
            target.write(file, f"trispark_node/{file.relative_to(PACKAGE)}")
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as members:
        for member in members.infolist():
            begin = member.header_offset + 30 + len(member.filename)
            content[begin : begin + member.compress_size] = spoilt * member.compress_size
    path.with_name("other").write_bytes(content)


@pytest.mark.parametrize("how", ["whole", "defect"])
def test_a_job_whose_agent_is_replaced_comes_to_its_end(quick_path: Path, checkpoint, how: str) -> None:
    agent, root, place = quick_path / "agent", quick_path / "state", quick_path / "engram"
    place.mkdir()
    write_agent(agent, b"\xff")
    fields = {"checkpoint": str(checkpoint.directory), "directory": str(place), "rank": 1, "tp": 3, "layers": [1, 14]}
    request = {"action": "start", "job": "j" + "0" * 16, "work": {"action": "ensure", **fields}}
    request |= {"floor_bytes_s": 1, "grace_s": 60}
    argv = [sys.executable, "-I", "-c", JOB, str(agent), str(quick_path / "other"), str(root), json.dumps(request), how]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout)
    if how == "whole":
        assert (state["state"], state["answer"].get("error")) == ("done", None), state
        assert (place / "engram-l1-r1of3.bin").read_bytes() == checkpoint.shard(1, 1)
        return
    error = state["answer"]["error"]
    assert (state["state"], error["id"], error["observed"]) == ("failed", "TS-AGENT-INTERNAL", "TypeError: a defect")
    assert "TypeError: a defect" in Path(error["where"]).read_text()


@pytest.mark.parametrize("error", [ImportError("bad local file header"), zlib.error("Error -3"), EOFError()])
@pytest.mark.parametrize("whose", ["manifest.json", "library"])
def test_what_cannot_be_read_of_the_agents_file_is_a_named_refusal(monkeypatch, error: Exception, whose: str) -> None:
    plain = native_library.member

    def member(name: str) -> bytes:
        if (name == native_library.MANIFEST) == (whose == native_library.MANIFEST):
            raise error
        return plain(name)

    monkeypatch.setattr(native_library, "member", member)
    with pytest.raises(AgentError) as caught:
        native_library.checked("x86_64")
    assert caught.value.id == "TS-ENGRAM-LIBRARY"
    assert type(error).__name__ in caught.value.observed
