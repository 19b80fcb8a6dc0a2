"""Every bad input has a stable id, a page that explains it, and tests that prove it.

`CASES` says for each case which ids it may end with and which tests show that. This test keeps the list true: the tests
exist, each names its id, the page of error ids has it, and what can be provoked here is one line with every field.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trispark.catalog import load_catalog
from trispark.lab.status import version_error
from trispark.preflight import require_nodes
from trispark.resolve import restore
from trispark.rollback import choose
from trispark_lab.config import load_model_config, parse
from trispark_lab.environment import check_environment

ROOT = Path(__file__).resolve().parents[2]
CONTROLLER, FRONT, NODE = "tests/unit/controller", "tests/unit/front", "tests/unit/node"
BOOT, LAB, ENGINE, ON_LAB = "tests/unit/boot", "tests/unit/labinfra", "tests/unit/lab_engine", "tests/lab"

CASES: dict[str, dict[str, list[str]]] = {
    "unknown feature": {
        "TS-FEATURE-UNKNOWN": [
            f"{CONTROLLER}/test_catalog.py::test_select_refuses_with_the_list",
            f"{ON_LAB}/test_trial_and_rollback.py::test_a_refused_trial_names_what_the_stage_has_and_touches_nothing",
        ],
    },
    "wrong stage": {
        "TS-FEATURE-STAGE": [f"{CONTROLLER}/test_catalog.py::test_select_refuses_with_the_list"],
        "TS-STAGE-UNKNOWN": [f"{CONTROLLER}/test_catalog.py::test_select_refuses_with_the_list"],
    },
    "unknown variable": {
        "TS-ENV-UNLISTED": [f"{CONTROLLER}/test_resolve.py::test_overrides_are_refused"],
        "TS-ENGINE-ENV": [
            f"{ENGINE}/test_environment.py::test_unknown_and_refused_names_are_named",
            f"{ENGINE}/test_three_ranks.py::test_a_refused_start_is_one_line",
        ],
    },
    "value out of range": {
        "TS-ENV-RANGE": [
            f"{CONTROLLER}/test_resolve.py::test_overrides_are_refused",
            f"{CONTROLLER}/test_allowlist.py::test_parse_refuses",
        ],
        "TS-ENV-INERT": [f"{CONTROLLER}/test_resolve.py::test_overrides_are_refused"],
        "TS-FEATURE-VALUE": [f"{CONTROLLER}/test_resolve.py::test_sweep_refuses_other_values_with_the_list"],
        "TS-ENGINE-ENV": [f"{ENGINE}/test_environment.py::test_values_without_effect_are_refused"],
        "TS-ENGINE-FLAG": [f"{ENGINE}/test_config.py::test_refused_flags"],
    },
    "missing checkpoint": {
        "TS-ENGINE-CHECKPOINT": [f"{ENGINE}/test_checkpoint.py::test_a_missing_checkpoint_is_one_line"],
        "TS-ENGRAM-CHECKPOINT": [f"{NODE}/test_engram.py::test_a_checkpoint_that_is_no_directory_is_refused"],
        "TS-AGENT-MOUNT": [f"{NODE}/test_engine.py::test_start_names_every_missing_mount_source"],
    },
    "hostile checkpoint": {
        "TS-ENGINE-CHECKPOINT": [
            f"{ENGINE}/test_checkpoint.py::test_a_hostile_checkpoint_is_one_line",
            f"{ENGINE}/test_config.py::test_a_hostile_model_configuration_is_refused",
            f"{ENGINE}/test_safetensors.py::test_hostile_headers_are_refused",
        ],
        "TS-ENGRAM-CHECKPOINT": [
            f"{NODE}/test_engram.py::test_a_bad_checkpoint_is_refused_at_once_and_nothing_is_written"
        ],
    },
    "node unreachable": {
        "TS-PREFLIGHT-NODE": [f"{BOOT}/test_preflight.py::test_the_odd_node_is_named"],
        "TS-ROLLBACK-NODE": [f"{BOOT}/test_rollback.py::test_without_any_answer_nothing_is_touched"],
        "TS-BOOT-NODE": [f"{BOOT}/test_boot_outcome.py::test_a_rank_that_does_not_report_all_of_it_is_never_valid"],
    },
    "disk too small": {
        "TS-HOST-DISK": [
            f"{FRONT}/test_cli.py::test_too_little_disk_is_found_before_anything_is_installed_or_written",
            f"{FRONT}/test_host.py::test_disk",
        ],
        "TS-ENGRAM-SPACE": [f"{NODE}/test_engram.py::test_space_is_checked_before_the_first_byte"],
        "TS-PREFLIGHT-DISK": [f"{BOOT}/test_preflight.py::test_the_odd_node_is_named"],
    },
    "port in use": {
        "TS-LAB-PORT": [f"{LAB}/test_layout.py::test_port_in_use_is_named"],
        "TS-ENGINE-PORT": [f"{ENGINE}/test_head.py::test_a_taken_api_port_is_one_line_before_anything_is_loaded"],
        "TS-ENGINE-BIND": [f"{ENGINE}/test_rendezvous.py::test_a_port_in_use_is_one_clear_error"],
    },
    "interrupted demo": {
        "TS-PLAY-INTERRUPTED": [
            f"{FRONT}/test_cli.py::test_interrupted_demo_leaves_the_lab_and_says_how_to_remove_it",
            f"{FRONT}/test_cli.py::test_interrupted_play_says_where_and_how_to_go_on",
        ],
    },
    "lab of another version": {
        "TS-LAB-VERSION": [
            f"{FRONT}/test_cli.py::test_a_lab_of_another_version_is_refused_before_anything_is_played",
            f"{FRONT}/test_cli.py::test_lab_status_names_another_version",
        ],
        "TS-LAB-OTHERROOT": [f"{LAB}/test_state.py::test_what_is_not_ours_is_refused_by_name"],
    },
    "another controller's version": {
        "TS-AGENT-PROTOCOL": [
            f"{NODE}/test_cli.py::test_another_controllers_version_is_refused_by_every_verb_before_it_does_anything",
        ],
        "TS-RESOLVED-VERSION": [f"{CONTROLLER}/test_resolve.py::test_restored_from_a_node_s_copy"],
    },
    "non-root without sudo": {
        "TS-HOST-SUDO": [
            f"{FRONT}/test_host.py::test_what_cannot_be_done_is_one_line",
            f"{LAB}/test_programs.py::test_root_is_asked_for_as_the_host_does",
        ],
        "TS-DOCKER-PERMISSION": [f"{FRONT}/test_host.py::test_socket_that_is_not_ours_to_open_is_refused"],
    },
    "no network": {
        "TS-HOST-PACKAGES": [f"{FRONT}/test_host.py::test_what_cannot_be_done_is_one_line"],
        "TS-SETUP-PACKAGES": [f"{FRONT}/test_environment.py::test_failed_install_leaves_no_stamp_and_says_pips_error"],
        "TS-LAB-PACKAGES": [
            f"{LAB}/test_programs.py::test_without_network_the_preparation_is_one_line_and_nothing_passes_for_complete",
        ],
        "TS-LAB-BOOTSTRAP": [
            f"{LAB}/test_programs.py::test_without_network_the_preparation_is_one_line_and_nothing_passes_for_complete",
        ],
    },
}
PAIRS = [
    pytest.param(error_id, test, id=f"{case}: {error_id}: {test.rpartition('::')[2]}")
    for case, ids in CASES.items()
    for error_id, tests in ids.items()
    for test in tests
]


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> set[str]:
    """Tests that pytest finds in the named files, without their parameters: in this run, else by asking it."""
    found = {item.nodeid.partition("[")[0] for item in request.session.items}
    if found >= {test for ids in CASES.values() for tests in ids.values() for test in tests}:
        return found
    files = sorted({test.partition("::")[0] for ids in CASES.values() for tests in ids.values() for test in tests})
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:]
    return {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


@functools.cache
def sources(file: str) -> dict[str, str]:
    """Each test function of a file with its decorators."""
    text = (ROOT / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    return {
        node.name: "\n".join(lines[min(each.lineno for each in (node, *node.decorator_list)) - 1 : node.end_lineno])
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize(("error_id", "test"), PAIRS)
def test_the_proof_exists_and_names_the_id(collected: set[str], error_id: str, test: str) -> None:
    assert test in collected
    file, _, name = test.partition("::")
    assert error_id in sources(file)[name]


@pytest.mark.parametrize("error_id", sorted({error_id for ids in CASES.values() for error_id in ids}))
def test_the_id_is_explained(error_id: str) -> None:
    row = re.search(rf"^\| `{error_id}` \| (.+) \| (.+) \|$", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    assert row is not None
    assert all(row.groups())


SITE: Any = SimpleNamespace(name="sparks", nodes=[SimpleNamespace(name=f"spark{rank}") for rank in range(3)])


def throw(error: Exception) -> None:
    raise error


PROVOKED: dict[str, Callable[[], Any]] = {
    "TS-FEATURE-UNKNOWN": lambda: load_catalog(ROOT).select("c", "no_such"),
    "TS-FEATURE-STAGE": lambda: load_catalog(ROOT).select("a", "wo_a"),
    "TS-STAGE-UNKNOWN": lambda: load_catalog(ROOT).select("h", "wo_a"),
    "TS-FEATURE-VALUE": lambda: load_catalog(ROOT).choose("wo_a", "9"),
    "TS-ENV-UNLISTED": lambda: load_catalog(ROOT).allowlist.require("DSV41_NO_SUCH", "-e"),
    "TS-ENV-RANGE": lambda: load_catalog(ROOT).allowlist.require("DSPARK_BLOCK_SIZE", "-e").parse("9", "-e"),
    "TS-ENGINE-ENV": lambda: check_environment({"DSV41_NO_SUCH": "1"}),
    "TS-ENGINE-FLAG": lambda: parse(["--model-path", "/m", "--port", "65536"], {}),
    "TS-ENGINE-CHECKPOINT": lambda: load_model_config(Path("/nowhere")),
    "TS-PREFLIGHT-NODE": lambda: require_nodes(SITE, {"spark0": {}, "spark1": {"ok": True}}),
    "TS-ROLLBACK-NODE": lambda: choose({}, "", None),
    "TS-RESOLVED-VERSION": lambda: restore({"schema_version": 0}),
    "TS-LAB-VERSION": lambda: throw(version_error("0")),
}


@pytest.mark.parametrize("error_id", PROVOKED)
def test_the_refusal_is_one_line_with_every_field(error_id: str) -> None:
    with pytest.raises(Exception, match=rf"^{error_id}: ") as caught:
        PROVOKED[error_id]()
    error: Any = caught.value
    assert "\n" not in str(error)
    assert all((error.what, error.where, error.expected, error.observed, error.remedy)), str(error)
