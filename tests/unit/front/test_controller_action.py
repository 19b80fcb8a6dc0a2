"""The base of the controller's action plugins, in real runs of ansible-playbook against a node that does not exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trispark.controller_action import failure
from trispark.errors import TrisparkError

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent

PROBE = '''
"""Says what it got."""
from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.errors import TrisparkError

LOADED = []


class ActionModule(ControllerAction):
    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "count": {"type": "int", "default": 3},
        "kind": {"type": "str", "choices": ["good", "bad", "broken", "odd"], "default": "good"},
        "values": {"type": "dict", "default": {}},
        "names": {"type": "list", "elements": "str", "default": []},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        LOADED.append(1)
        given["values"]["own"] = True  # the declared default must not keep it
        if given["kind"] == "bad":
            raise TrisparkError("TS-TEST-BAD", "it is bad", where="here", expected="good", observed="bad", remedy="be")
        if given["kind"] == "broken":
            raise RuntimeError("no error of ours")
        if given["kind"] == "odd":
            return {"changed": True, "lines": ("a", "b"), "by_rank": {0: "head"}, "warnings": ["mind the step"]}
        kinds: set[str] = set()

        def look(value: Any) -> Any:
            kinds.add(f"{type(value).__module__}.{type(value).__qualname__}")
            if isinstance(value, dict):
                for key, each in value.items():
                    look(key), look(each)
            elif isinstance(value, list):
                for each in value:
                    look(each)

        look(given)
        return {"changed": not self.check_mode, "given": given, "kinds": sorted(kinds), "runs": len(LOADED)}
'''
NO_CHECK = PROBE.replace("    ARGUMENTS", "    _supports_check_mode = False\n    ARGUMENTS", 1)
PLAY = """
- name: Probe
  hosts: spark0
  become: true
  gather_facts: false
  vars:
    seen: {state: ready, layers: [1, 14]}
    day: 2026-01-02
  tasks:
    - {name: Plain, probe: {root: "~/x", count: "7", names: "a,b", values: {text: word, template: "{{ seen }}",
       number: "{{ 3 + 4 }}", quoted: "{{ '{{ seen }}' }}", day: "{{ day }}"}}, register: plain}
    - {name: Again, probe: {root: /x}, register: again}
    - {name: Odd, probe: {root: /x, kind: odd}, register: odd}
    - name: Note what it is made of
      ansible.builtin.set_fact: {kinds: ["{{ odd.lines | type_debug }}", "{{ odd.by_rank | first | type_debug }}"]}
    - {name: Bad, probe: {root: /x, kind: bad}, register: bad, failed_when: false}
    - name: Break
      block: [{name: Broken, probe: {root: /x, kind: broken}}]
      rescue: [{name: Note it, ansible.builtin.set_fact: {broken: "{{ ansible_failed_result }}"}}]
    - {name: Unknown, probe: {root: /x, other: 1}, register: unknown, failed_when: false}
    - {name: Missing, probe: {count: 1}, register: missing, failed_when: false}
    - {name: Choice, probe: {root: /x, kind: none}, register: choice, failed_when: false}
    - {name: Number, probe: {root: /x, count: many}, register: number, failed_when: false}
    - {name: Never, never_in_check_mode: {root: /x}, register: never}
    - name: Write
      delegate_to: localhost
      become: false
      check_mode: false
      ansible.builtin.copy:
        content: "{{ {'plain': plain, 'again': again, 'odd': odd, 'kinds': kinds, 'bad': bad, 'broken': broken,
          'unknown': unknown, 'missing': missing, 'choice': choice, 'number': number, 'never': never} | to_json }}"
        dest: "{{ target }}"
        mode: "0600"
"""


def run(directory: Path, *flags: str) -> tuple[dict[str, Any], str]:
    (directory / "actions").mkdir(exist_ok=True)
    (directory / "actions/probe.py").write_text(PROBE, encoding="utf-8")
    (directory / "actions/never_in_check_mode.py").write_text(NO_CHECK, encoding="utf-8")
    (directory / "play.yml").write_text(PLAY, encoding="utf-8")
    local = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    # Nothing listens there: whatever asked for a connection would make the host unreachable.
    spark0 = {"ansible_host": "127.0.0.1", "ansible_port": 1, "ansible_become": True}
    hosts = {"ungrouped": {"hosts": {"localhost": local, "spark0": spark0}}}
    (directory / "hosts.yml").write_text(json.dumps(hosts), encoding="utf-8")
    target = directory / "target.json"
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
        "PATH": f"{TOOLS}:{os.environ['PATH']}",
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_ACTION_PLUGINS": str(directory / "actions"),
        "ANSIBLE_NOCOLOR": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }
    command = ["ansible-playbook", "-i", "hosts.yml", "-e", json.dumps({"target": str(target)}), *flags, "play.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(target.read_text(encoding="utf-8")), done.stdout + done.stderr


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    return run(tmp_path_factory.mktemp("probe"))


def test_arguments_are_of_their_type_and_plain(seen: tuple[dict[str, Any], str]) -> None:
    plain = seen[0]["plain"]
    assert plain["given"] == {
        "root": str(Path.home() / "x"),
        "count": 7,
        "kind": "good",
        "names": ["a", "b"],
        "values": {
            "text": "word",
            "template": {"state": "ready", "layers": [1, 14]},
            "number": 7,
            "quoted": "{{ seen }}",
            "day": "2026-01-02",
            "own": True,
        },
    }
    assert plain["kinds"] == [f"builtins.{name}" for name in ("bool", "dict", "int", "list", "str")]
    assert plain["changed"] is True


def test_nothing_is_left_for_the_next_task(seen: tuple[dict[str, Any], str]) -> None:
    assert (seen[0]["plain"]["runs"], seen[0]["again"]["runs"]) == (1, 1)
    assert seen[0]["again"]["given"]["values"] == {"own": True}


def test_a_result_is_what_json_has(seen: tuple[dict[str, Any], str]) -> None:
    odd, output = seen[0]["odd"], seen[1]
    assert (odd["lines"], odd["by_rank"], odd["changed"]) == (["a", "b"], {"0": "head"}, True)
    assert seen[0]["kinds"] == ["list", "str"]
    assert "mind the step" in output
    assert "DEPRECATION" not in output.upper()


def test_an_error_of_ours_fails_with_its_line_id_and_fields(seen: tuple[dict[str, Any], str]) -> None:
    error = TrisparkError("TS-TEST-BAD", "it is bad", where="here", expected="good", observed="bad", remedy="be")
    bad = seen[0]["bad"]
    assert bad["msg"] == str(error)
    assert (bad["check_id"], bad["error"]) == ("TS-TEST-BAD", error.as_dict())
    assert failure(error.as_dict(), gates=[]) == {
        "failed": True,
        "changed": False,
        "msg": str(error),
        "check_id": "TS-TEST-BAD",
        "error": error.as_dict(),
        "gates": [],
    }


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("broken", "no error of ours"),
        ("unknown", "Unsupported parameters for (probe) module: other."),
        ("missing", "missing required arguments: root"),
        ("choice", "value of kind must be one of: good, bad, broken, odd, got: none"),
        ("number", "argument 'count' is of type str and we were unable to convert to int"),
    ],
)
def test_other_failures_say_what_it_is(seen: tuple[dict[str, Any], str], task: str, message: str) -> None:
    assert message in seen[0][task]["msg"]
    assert "check_id" not in seen[0][task]


def test_check_mode_is_told_to_the_work_or_skips_it(tmp_path: Path, seen: tuple[dict[str, Any], str]) -> None:
    checked, _ = run(tmp_path, "--check")
    assert (checked["plain"]["changed"], checked["plain"]["given"]) == (False, seen[0]["plain"]["given"])
    assert checked["bad"]["check_id"] == "TS-TEST-BAD"
    assert checked["never"]["skipped"] is True
    assert "given" in seen[0]["never"]
