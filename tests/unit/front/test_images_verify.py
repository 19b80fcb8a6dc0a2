"""`./trispark images verify`: its exit status and JSON, and `images_verify.yml` in real runs of ansible-playbook over
answers of nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from built_images import BUILT, allow, make_key, write_root
from tests.unit.front.test_cli import FAILED, FakePlaybooks, add_site, checkout, result, run_cli

from trispark.images.provenance import attest
from trispark.images.root_inventory import inventory_of
from trispark.images.signing import SshKeygen, SshSigner

__all__ = ["checkout", "run_cli"]  # fixtures
RunCli = Callable[..., tuple[int, list[str], str]]
ROOT = Path(__file__).resolve().parents[3]
NODES = ("spark0", "spark1", "spark2")
IMAGE = "registry:5000/trispark/lab-engine@sha256:" + "a" * 64
EQUAL = {"equal": True, "of_site": True, "unreachable": [], "steps": [], "ranks": []}


@pytest.mark.parametrize(
    ("run", "status"),
    [
        pytest.param(result(published={"images": EQUAL}), 0, id="equal"),
        pytest.param(result(published={"images": {**EQUAL, "equal": False}}), 1, id="odd"),
        pytest.param(result(published={"images": {**EQUAL, "of_site": False}}), 1, id="none-of-the-site"),
        pytest.param(result(published={"images": {**EQUAL, "unreachable": ["spark1"]}}), 4, id="silent"),
        pytest.param(result(published={"images": EQUAL}, unreachable=("spark1",)), 4, id="unreachable"),
        pytest.param(result(), 1, id="nothing-said"),
        pytest.param(result(status="failed", failures=(FAILED,)), 3, id="refused"),
    ],
)
def test_exit_status_and_json(run_cli: RunCli, run: Any, status: int) -> None:
    playbooks = FakePlaybooks({"images_verify": run})
    found, out, _ = run_cli("images", "verify", "--json", playbooks=playbooks)
    assert (found, playbooks.names) == (status, ["images_verify"])
    assert out[0] == "site: lab"
    said = json.loads(out[-1])
    assert said == {**(run.published.get("images") or {}), "site": "lab", "status": run.status}


def test_looking_needs_no_site_by_name(run_cli: RunCli, checkout: Any) -> None:
    add_site(checkout, "sparks", "site_configured: true\n")
    playbooks = FakePlaybooks({"images_verify": result(published={"images": EQUAL})})
    assert run_cli("images", "verify", playbooks=playbooks)[0] == 0


PLUGIN = """
import importlib.util
import json
import os

from ansible.errors import AnsibleConnectionFailure

spec = importlib.util.spec_from_file_location("the_plugin", {plugin!r})
plugin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(plugin)


class ActionModule(plugin.ActionModule):
    def run(self, tmp=None, task_vars=None):
        self.node = task_vars["inventory_hostname"]
        return super().run(tmp, task_vars)

    def _low_level_execute_command(self, cmd, sudoable=True, in_data=None):
        request = json.loads(in_data)
        with open(os.path.join({root!r}, "asked"), "a") as file:
            file.write(json.dumps([self.node, request.get("files", False)]) + "\\n")
        path = os.path.join({root!r}, self.node + (".files" if request.get("files") else "") + ".json")
        if not os.path.exists(path):
            raise AnsibleConnectionFailure("no route to host")
        with open(path) as file:
            answer = file.read()
        return {{"rc": 0 if json.loads(answer)["ok"] else 1, "stdout": answer, "stderr": ""}}
"""
STATS = """
from ansible.plugins.callback import CallbackBase
import json


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "kept_stats"

    def v2_playbook_on_stats(self, stats):
        with open({root!r} + "/stats", "w") as file:
            json.dump(stats.custom.get("_run", {{}}), file)
"""


def tree(changed: str = "") -> dict[str, str]:
    """The engine's sources of a rank, one of them changed."""
    return {f"/opt/engine/{name}.py": (changed if changed and name == "b" else name) * 64 for name in "ab"}


def answer(files: dict[str, str], *, listed: bool) -> dict[str, Any]:
    """What the agent says of a healthy rank with these sources."""

    def hashed(each: dict[str, str], whole: bool) -> dict[str, Any]:
        short = {"hash": "".join(sorted(each.values()))[-64:], "files": len(each), "bytes": 1}
        return {**short, "listed": each} if whole else short

    adapters = {"sitecustomize.py": "9" * 64}
    return {
        "ok": True,
        "generation": "g" + "1" * 16,
        "staged": hashed(adapters, True),
        "image": {"reference": IMAGE, "id": "sha256:" + "b" * 64, "digests": [IMAGE]},
        "storage_driver": "overlay2",
        "autotune": None,
        "running": {
            "container_id": "c",
            "generation": "g" + "1" * 16,
            "image_id": "sha256:" + "b" * 64,
            "image_ref": IMAGE,
            "image_digests": [IMAGE],
            "identity": {
                "source": hashed(files, listed),
                "adapters": hashed(adapters, listed),
                "libraries": hashed({"/opt/site-packages/numpy/core.so": "8" * 64}, True),
                "autotune": None,
                "seconds": 0.1,
            },
        },
    }


class Fleet:
    """Three nodes whose agents give fixed answers."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def have(self, node: str, files: dict[str, str]) -> None:
        (self.root / f"{node}.json").write_text(json.dumps(answer(files, listed=False)))
        (self.root / f"{node}.files.json").write_text(json.dumps(answer(files, listed=True)))

    def asked(self) -> list[Any]:
        return [json.loads(line) for line in (self.root / "asked").read_text().splitlines()]

    def verify(self) -> tuple[int, dict[str, Any], str]:
        """(exit status of ansible-playbook, what it published, its output)."""
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_ACTION_PLUGINS": str(self.root / "plugins"),
            "ANSIBLE_CALLBACK_PLUGINS": str(self.root / "callback"),
            "ANSIBLE_CALLBACKS_ENABLED": "kept_stats",
            "ANSIBLE_NOCOLOR": "1",
            "PYTHONPATH": str(ROOT / "src"),
        }
        command = ["ansible-playbook", "-i", "hosts.yml", str(self.root / "playbooks/images_verify.yml")]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=self.root)
        stats = json.loads((self.root / "stats").read_text())
        # Words alone: the output folds long lines.
        return done.returncode, stats["trispark"]["images"], " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    for name in ("plugins", "callback", "playbooks"):
        (tmp_path / name).mkdir()
    plugin = PLUGIN.format(plugin=str(ROOT / "plugins/action/trispark_node.py"), root=str(tmp_path))
    (tmp_path / "plugins/trispark_node.py").write_text(plugin, encoding="utf-8")
    shutil.copy(ROOT / "plugins/action/trispark_parity.py", tmp_path / "plugins")
    (tmp_path / "callback/kept_stats.py").write_text(STATS.format(root=str(tmp_path)), encoding="utf-8")
    for name in ("images_verify.yml", "name_site.yml"):
        shutil.copy(ROOT / "playbooks" / name, tmp_path / "playbooks")
    for name in ("inventory/lab", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name)
    images = f"site_engine_image: {IMAGE}\nsite_bench_image: {IMAGE}\n"
    (tmp_path / "inventory/lab/group_vars/all/images.yml").write_text(images)
    hosts = "".join(f"    {name}: {{}}\n" for name in NODES)
    values = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    text = f"all:\n  vars: {{site_name: lab}}\nsparks:\n  hosts:\n{hosts}  vars: {json.dumps(values)}\n"
    (tmp_path / "hosts.yml").write_text(text, encoding="utf-8")
    return Fleet(tmp_path)


def test_equal_ranks_are_asked_once_and_for_no_files(fleet: Fleet) -> None:
    for name in NODES:
        fleet.have(name, tree())
    rc, found, output = fleet.verify()
    assert (rc, found["equal"], found["running"]) == (0, True, list(NODES)), output
    assert sorted(fleet.asked()) == [[name, False] for name in NODES]
    assert found["image"]["reference"] == IMAGE
    assert "equal on 3 ranks" in output
    assert [rank["image_name"] for rank in found["ranks"]] == ["site"] * 3
    assert "the site demands none; TS-PROVENANCE-NONE: " in output


def test_an_image_by_name_and_one_that_the_site_does_not_have(fleet: Fleet) -> None:
    for name in NODES:
        fleet.have(name, tree())
    images = fleet.root / "inventory/lab/group_vars/all/images.yml"
    other = IMAGE.replace("a" * 64, "c" * 64)
    for named, of_site in ((f"\nsite_engine_images: {{canary: '{IMAGE}'}}", True), ("", False)):
        images.write_text(f"site_engine_image: {other}\nsite_bench_image: {IMAGE}{named}\n")
        rc, found, output = fleet.verify()
        assert (rc, found["equal"], found["of_site"]) == (0, True, of_site), output
        names = [(rank["image_name"], rank["container_image_name"]) for rank in found["ranks"]]
        assert names == [("canary", "canary") if of_site else (None, None)] * 3
        assert ("NOT AN IMAGE OF THIS SITE" in output) is not of_site


@pytest.mark.parametrize(("trusted", "signer"), [("builder", "builder@example"), ("other", None)])
def test_where_the_site_trusts_signers_the_signature_is_judged(fleet: Fleet, trusted: str, signer: str | None) -> None:
    for name in NODES:
        fleet.have(name, tree())
    keys = {name: make_key(fleet.root, name) for name in ("builder", "other")}
    image, root = BUILT, inventory_of(write_root(fleet.root / "root"))
    assert IMAGE.endswith(image.manifest_digest)
    attest(image, root, SshSigner(keys["builder"], SshKeygen()), fleet.root / ".trispark/provenance")
    allow(fleet.root / "inventory/lab/signers", (f"{trusted}@example", keys[trusted], ""))
    (fleet.root / "inventory/lab/group_vars/all/signers.yml").write_text("site_image_signers: signers\n")
    rc, found, output = fleet.verify()
    assert (rc, found["equal"]) == (0, True), output
    provenance = found["image"]["provenance"]
    if signer is None:
        assert (provenance["verified"], provenance["problem"]["id"]) == (False, "TS-PROVENANCE-SIGNER")
        assert "a boot of it is refused: TS-PROVENANCE-SIGNER: " in output
    else:
        assert f"signed by {signer} with {provenance['fact']['key']}, verified" in output
        assert (provenance["verified"], provenance["fact"]["signer"]) == (True, signer)


def test_the_odd_file_is_asked_for_and_named(fleet: Fleet) -> None:
    for name in NODES:
        fleet.have(name, tree("c" if name == "spark1" else ""))
    rc, found, output = fleet.verify()
    assert rc == 0, output
    assert not found["equal"]
    assert sorted(fleet.asked()) == sorted([name, files] for name in NODES for files in (False, True))
    (step,) = [step for step in found["steps"] if step["problems"]]
    assert (step["step"], step["problems"]) == (
        "source",
        {"spark1": f"the odd node spark1: /opt/engine/b.py is {'c' * 12}, spark0, spark2 have {'b' * 12}"},
    )
    assert "the odd node spark1" in output


def test_a_node_that_is_gone_hides_nothing_of_the_others(fleet: Fleet) -> None:
    fleet.have("spark0", tree())
    fleet.have("spark1", tree("c"))
    rc, found, output = fleet.verify()
    assert found["unreachable"] == ["spark2"], output
    assert {step["step"]: sorted(step["problems"]) for step in found["steps"] if step["problems"]} == {
        "source": ["spark0", "spark1"]
    }
    assert rc == 0


def test_what_an_agent_refuses_ends_the_run_with_its_line(fleet: Fleet) -> None:
    for name in NODES:
        fleet.have(name, tree())
    error = {"id": "TS-AGENT-VERB", "what": "w", "where": "x", "expected": "e", "observed": "o", "remedy": "r"}
    (fleet.root / "spark2.json").write_text(json.dumps({"ok": False, "error": error}))
    rc, found, output = fleet.verify()
    assert rc != 0
    assert "TS-AGENT-VERB" in output
    assert found["unreachable"] == ["spark2"]
