#!/usr/bin/python
"""What a playbook says at its end; the work is in trispark.reporting."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_report
short_description: Say the result of a playbook for people and for the caller
description:
  - Runs on the controller and reads the cached records only.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  kind:
    description: Which playbook ends.
    type: str
    choices: [stage_a, rollback, status]
    required: true
  boot_id:
    description: The boot to report, for V(stage_a) and V(rollback).
    type: str
    default: ""
  statuses:
    description: Registered results of the agent's verb C(status) by node.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Publish the result
  trispark_report:
    root: "{{ playbook_dir }}/.."
    site: lab
    kind: stage_a
    boot_id: b20260102T030405Z-a1b2
"""

RETURN = r"""
lines:
  description: Lines for people.
  type: list
  elements: str
  returned: success
published:
  description: The same for the caller.
  type: dict
  returned: success
failure_line:
  description: One line when the playbook has to end with a failure, else empty.
  type: str
  returned: success
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark import reporting
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.records import RecordCache
from trispark.stages import exit_of


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "site": {"type": "str", "required": True},
            "kind": {"type": "str", "choices": ["stage_a", "rollback", "status"], "required": True},
            "boot_id": {"type": "str", "default": ""},
            "statuses": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = Path(given["root"]).resolve()
    cache = RecordCache(root / ".trispark" / given["site"] / "records")
    try:
        report = make(given, cache, root)
    except TrisparkError as error:
        fail(module, error.as_dict())
    module.exit_json(changed=False, lines=report.lines, published=report.published, failure_line=report.failure_line)


def make(given: dict[str, Any], cache: RecordCache, root: Path) -> reporting.Report:
    if given["kind"] == "status":
        return reporting.status(given["statuses"])
    record = cache.show(given["boot_id"])
    path = reporting.record_path(cache, record, root)
    if given["kind"] == "rollback":
        return reporting.rollback(record, path)
    report = reporting.stage_a(record, path)
    judged = exit_of(load_catalog(root), "a", record["resolved"]["generation"], cache.list())
    return reporting.Report([*report.lines, *(each.line() for each in judged)], report.published)


if __name__ == "__main__":
    main()
