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

# The task runs plugins/action/trispark_report.py on the controller; this file is its documentation.
