"""Rules of the house that no linter knows. Each is shown to find a bad example, and finds nothing in the tree."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from trispark.allowlist import CONTROLLED_PREFIXES

REPO = Path(__file__).resolve().parents[2]
ALLOWLIST = {
    entry["name"]
    for entry in yaml.safe_load((REPO / "experiments" / "env_allowlist.yml").read_text(encoding="utf-8"))["variables"]
}
COMMANDS = {"command", "shell", "raw", "script", "expect"}
# ansible-lint sees to it that a task names its module in full; a bare `command:` is an option of something.
COMMAND_MODULES = {f"ansible.builtin.{name}" for name in COMMANDS}
STARTS_CONTAINERS = {
    "docker_compose",
    "docker_compose_v2",
    "docker_compose_v2_run",
    "docker_container",
    "docker_container_exec",
    "docker_stack",
    "docker_swarm_service",
    "podman_container",
}
CONTAINER_COMMAND = re.compile(r"\b(?:docker|podman|nerdctl|ctr)\b[^\n]*?\b(?:run|start|create|restart|exec|compose)\b")
HOST_KEYS_OFF = re.compile(
    r"StrictHostKeyChecking\s*[= ]\s*['\"]?(?:no|off|accept-new)\b"
    r"|host_key_checking\s*[=:]\s*['\"]?(?:false|no|off|0)\b"
    r"|UserKnownHostsFile\s*[= ]\s*['\"]?/dev/null"
    r"|ssh-keyscan",
    re.IGNORECASE,
)
MOVING_TAG = re.compile(r"[a-z0-9]:latest\b")
DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")
ENV_NAME = re.compile(rf"\b(?:{'|'.join(CONTROLLED_PREFIXES)})[A-Z0-9_]*[A-Z0-9]\b")
SYSTEM_PACKAGES = {"apt", "package", "dnf", "yum", "zypper", "apk", "pacman", "homebrew", "npm", "gem"}
INSTALLS = re.compile(r"\b(?:pip[0-9.]*|apt|apt-get|dnf|yum|npm|gem|cargo)['\"]?\s+(?:-\S+\s+)*(?:install|download)\b")
FETCHES = re.compile(r"(?:^|[\s;&|(])(?:curl|wget|git\s+clone)\s")
BOUNDED = re.compile(r"(?:^|[\s;&|(])timeout\s+(?:-\S+\s+)*[0-9]")
WAITS = {"wait_for", "wait_for_connection", "uri", "get_url", "reboot"}
IMAGE_KEYS = {"image", "image_name", "site_engine_image", "site_bench_image", "engine_image", "bench_image"}


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping of a YAML document, plays and tasks among them."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from mappings(each)
    elif isinstance(value, list):
        for each in value:
            yield from mappings(each)


def modules(task: dict[str, Any]) -> set[str]:
    return {str(key).rsplit(".", 1)[-1] for key in task}


def words(value: Any) -> str:
    """The command line of a task, also of one written as a list."""
    if isinstance(value, dict):
        return " ".join(words(each) for each in value.values())
    return " ".join(words(each) for each in value) if isinstance(value, list) else str(value)


def unnamed_image(name: str, document: Any) -> Iterator[str]:
    """An image that is written down, not templated, has a digest."""
    for mapping in mappings(document):
        for key in IMAGE_KEYS & mapping.keys():
            value = mapping[key]
            if isinstance(value, str) and "{{" not in value and not DIGEST.search(value):
                yield f"{name}: {key}: {value}"


def silent_command(name: str, document: Any) -> Iterator[str]:
    """Every command says when it has changed something."""
    for task in mappings(document):
        if COMMAND_MODULES & task.keys() and "changed_when" not in task:
            yield f"{name}: {task.get('name', 'a task')}"


def ignored_error(name: str, document: Any) -> Iterator[str]:
    for task in mappings(document):
        if "ignore_errors" in task:
            yield f"{name}: {task.get('name', 'a play')}"


def container_elsewhere(name: str, document: Any) -> Iterator[str]:
    """Containers are started by the node agent, and those of the lab by the lab role; by no other task."""
    if name.startswith("roles/lab/"):
        return
    for task in mappings(document):
        found = modules(task) & STARTS_CONTAINERS
        for key, value in task.items():
            if str(key).rsplit(".", 1)[-1] in COMMANDS and CONTAINER_COMMAND.search(words(value)):
                found.add(words(value))
        if found:
            yield f"{name}: {task.get('name', 'a play')}: {sorted(found)}"


def unpinned_package(name: str, document: Any) -> Iterator[str]:
    """What a task installs or fetches has a version or a hash."""
    for task in mappings(document):
        for key, value in task.items():
            module = str(key).rsplit(".", 1)[-1]
            given = value if isinstance(value, dict) else {}
            line = words(value)
            loose = False
            if str(key).startswith("ansible.builtin."):
                if module in SYSTEM_PACKAGES and given.get("state") != "absent":
                    named = given.get("name", given.get("pkg", []))
                    names = named if isinstance(named, list) else [str(named)]
                    loose = not names or not all("=" in str(each) for each in names)
                elif module == "pip":
                    loose = "--require-hashes" not in str(given.get("extra_args", ""))
                elif module == "get_url":
                    loose = not str(given.get("checksum", "")).startswith("sha256:")
                elif module == "git":
                    loose = re.fullmatch(r"[0-9a-f]{40}|\{\{.*\}\}", str(given.get("version", ""))) is None
                elif module in COMMANDS:
                    loose = (INSTALLS.search(line) is not None and "--require-hashes" not in line) or bool(
                        FETCHES.search(line) and "sha256sum" not in line
                    )
            if loose:
                yield f"{name}: {task.get('name', 'a task')}: {line[:80]}"


def endless_task(name: str, document: Any) -> Iterator[str]:
    """A task that waits for something else says for how long: by `timeout` of its own or of its module."""
    for task in mappings(document):
        for key, value in task.items():
            module = str(key).rsplit(".", 1)[-1]
            given = value if isinstance(value, dict) else {}
            bounded = "timeout" in task or "timeout" in given
            if not str(key).startswith("ansible.builtin."):
                continue
            if module in COMMANDS and not (bounded or BOUNDED.search(words(value)) or task.get("poll", 0) > 0):
                yield f"{name}: {task.get('name', 'a task')}: a command without a deadline"
            if module in WAITS and not bounded:
                yield f"{name}: {task.get('name', 'a task')}: {module} without a timeout"
            if module == "pause" and not {"seconds", "minutes"} & given.keys():
                yield f"{name}: {task.get('name', 'a task')}: it waits for a person"
        if "async" in task and task.get("poll", 10) == 0:
            yield f"{name}: {task.get('name', 'a task')}: nobody waits for its end"
        if "until" in task and "retries" not in task:
            yield f"{name}: {task.get('name', 'a task')}: until without retries"


def unlisted_variable(name: str, text: str) -> Iterator[str]:
    # What an image says of itself is delivered by nobody.
    delivered = re.sub(r"^ *image_env: \[.*\]$", "", text, flags=re.MULTILINE)
    for found in sorted(set(ENV_NAME.findall(delivered)) - ALLOWLIST):
        yield f"{name}: {found}"


def unchecked_host(name: str, text: str) -> Iterator[str]:
    for found in HOST_KEYS_OFF.finditer(text):
        yield f"{name}: {found[0]}"


def moving_tag(name: str, text: str) -> Iterator[str]:
    for found in MOVING_TAG.finditer(text):
        yield f"{name}: {found[0]}"


def tracked(*patterns: str) -> list[str]:
    """Tracked and new files, without this one, which holds the bad examples."""
    argv = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *patterns]
    done = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True)
    names = {name for name in done.stdout.split("\0") if name and (REPO / name).is_file()}
    return sorted(names - {str(Path(__file__).relative_to(REPO))})


ANSIBLE = ("playbooks/*.yml", "roles/*.yml", "molecule/*.yml", "inventory/*.yml", "experiments/*.yml")
CONFIGURED = (*ANSIBLE, "templates/*", "*.cfg", "Dockerfiles/*", ".config/*")

DOCUMENT_RULES: dict[Callable[[str, Any], Iterator[str]], str] = {
    unnamed_image: "- {name: x, ansible.builtin.debug: {}, vars: {image: 'registry:5000/engine:1.2'}}",
    silent_command: "- {name: x, ansible.builtin.command: uptime}",
    ignored_error: "- {name: x, ansible.builtin.debug: {}, ignore_errors: true}",
    unpinned_package: "- {name: x, ansible.builtin.apt: {name: [curl=8.1-1, jq]}}",
    endless_task: "- {name: x, ansible.builtin.command: uptime, changed_when: false}",
    container_elsewhere: "- {name: x, ansible.builtin.command: {argv: [docker, run, --rm, image]}, changed_when: true}",
}
TEXT_RULES: dict[Callable[[str, str], Iterator[str]], tuple[str, tuple[str, ...]]] = {
    # The exclusions name what must never be set, also what no engine of ours knows.
    unlisted_variable: (
        "DSV41_NO_SUCH_SWITCH: 1",
        (*CONFIGURED, ":!experiments/exclusions.yml", ":!experiments/review_map.yml"),
    ),
    unchecked_host: ("ssh -o StrictHostKeyChecking=no node", ("*",)),
    moving_tag: ("FROM debian:latest", CONFIGURED),
}


@pytest.mark.parametrize("rule", DOCUMENT_RULES, ids=lambda rule: rule.__name__)
def test_rule_finds_nothing_in_tasks_and_data(rule: Callable[[str, Any], Iterator[str]]) -> None:
    names = tracked(*ANSIBLE)
    assert {"playbooks/site.yml", "roles/lab/tasks/make.yml"} <= set(names)
    found = [
        line
        for name in names
        for document in yaml.safe_load_all((REPO / name).read_text(encoding="utf-8"))
        for line in rule(name, document)
    ]
    assert found == []


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_rule_finds_nothing_in_files(rule: Callable[[str, str], Iterator[str]]) -> None:
    names = tracked(*TEXT_RULES[rule][1])
    assert names
    assert [line for name in names for line in rule(name, (REPO / name).read_text(errors="replace"))] == []


@pytest.mark.parametrize("rule", DOCUMENT_RULES, ids=lambda rule: rule.__name__)
def test_rule_finds_a_bad_task(rule: Callable[[str, Any], Iterator[str]]) -> None:
    assert list(rule("playbooks/x.yml", yaml.safe_load(DOCUMENT_RULES[rule])))


@pytest.mark.parametrize("rule", TEXT_RULES, ids=lambda rule: rule.__name__)
def test_rule_finds_a_bad_text(rule: Callable[[str, str], Iterator[str]]) -> None:
    assert list(rule("playbooks/x.yml", TEXT_RULES[rule][0]))


@pytest.mark.parametrize(
    "text",
    [
        "host_key_checking = False",
        'ANSIBLE_HOST_KEY_CHECKING: "False"',
        "-o UserKnownHostsFile=/dev/null",
        "StrictHostKeyChecking accept-new",
        "ssh-keyscan node >> known_hosts",
    ],
)
def test_every_way_to_trust_an_unknown_host_is_found(text: str) -> None:
    assert list(unchecked_host("x", text))


@pytest.mark.parametrize(
    "task",
    [
        "{name: x, community.docker.docker_container: {name: y}}",
        "{name: x, ansible.builtin.shell: {cmd: 'systemctl start docker && docker start engine'}, changed_when: true}",
        "{name: x, block: [{name: y, ansible.builtin.command: docker compose up, changed_when: true}]}",
    ],
)
def test_every_way_to_start_a_container_is_found(task: str) -> None:
    assert list(container_elsewhere("roles/engine/tasks/start.yml", [yaml.safe_load(task)]))
    assert not list(container_elsewhere("roles/lab/tasks/make.yml", [yaml.safe_load(task)]))


@pytest.mark.parametrize(
    "task",
    [
        "{name: x, ansible.builtin.pip: {name: a==1}}",
        "{name: x, ansible.builtin.pip: {requirements: r.txt, extra_args: --no-deps}}",
        "{name: x, ansible.builtin.package: {name: curl}}",
        "{name: x, ansible.builtin.apt: {upgrade: dist}}",
        "{name: x, ansible.builtin.get_url: {url: 'https://x/y', dest: /y}}",
        "{name: x, ansible.builtin.get_url: {url: 'https://x/y', dest: /y, checksum: 'md5:0'}}",
        "{name: x, ansible.builtin.git: {repo: 'https://x/y', dest: /y, version: main}}",
        "{name: x, ansible.builtin.command: {argv: [python3, -m, pip, install, x]}}",
        "{name: x, ansible.builtin.shell: {cmd: 'apt-get -y install curl'}}",
        "{name: x, block: [{name: y, ansible.builtin.shell: 'curl https://x | sh'}]}",
    ],
)
def test_every_way_to_install_something_unpinned_is_found(task: str) -> None:
    assert list(unpinned_package("playbooks/x.yml", [yaml.safe_load(task)]))


@pytest.mark.parametrize(
    "task",
    [
        "{name: x, ansible.builtin.pip: {requirements: r.txt, extra_args: --require-hashes --no-deps}}",
        "{name: x, ansible.builtin.apt: {name: curl=8.1-1}}",
        "{name: x, ansible.builtin.apt: {name: curl, state: absent}}",
        "{name: x, ansible.builtin.command: {argv: [pip, install, --require-hashes, -r, r.txt]}}",
        "{name: x, ansible.builtin.command: {argv: [grep, pip, installed]}}",
    ],
)
def test_what_is_pinned_is_let_through(task: str) -> None:
    assert not list(unpinned_package("playbooks/x.yml", [yaml.safe_load(task)]))


@pytest.mark.parametrize(
    ("task", "found"),
    [
        ("{name: x, ansible.builtin.wait_for: {port: 1}}", True),
        ("{name: x, ansible.builtin.wait_for: {port: 1, timeout: 5}}", False),
        ("{name: x, ansible.builtin.uri: {url: 'http://x'}}", True),
        ("{name: x, ansible.builtin.uri: {url: 'http://x'}, timeout: 5}", False),
        ("{name: x, ansible.builtin.pause: {prompt: go on}}", True),
        ("{name: x, ansible.builtin.pause: {seconds: 1}}", False),
        ("{name: x, ansible.builtin.command: uptime, timeout: 5}", False),
        ("{name: x, ansible.builtin.shell: {cmd: 'set -e; timeout 60 uptime'}}", False),
        ("{name: x, ansible.builtin.command: {argv: [timeout, '60', uptime]}}", False),
        ("{name: x, ansible.builtin.command: {argv: [echo, timeout]}}", True),
        ("{name: x, ansible.builtin.command: uptime, timeout: 5, async: 60, poll: 0}", True),
        ("{name: x, ansible.builtin.command: uptime, async: 60, poll: 5}", False),
        ("{name: x, trispark_agent: {root: /x}, until: y}", True),
        ("{name: x, trispark_agent: {root: /x}, until: y, retries: 3}", False),
    ],
)
def test_every_task_that_may_wait_for_ever_is_found(task: str, found: bool) -> None:
    assert bool(list(endless_task("playbooks/x.yml", [yaml.safe_load(task)]))) is found
