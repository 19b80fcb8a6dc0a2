#!/usr/bin/python
"""A measurement of what runs now, on the controller's side; the work is in trispark.running_bench."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_bench
short_description: Plans a measurement of what runs, judges it and keeps its file
description:
  - Runs on the controller. Touches no node; the load itself is sent by the role C(bench).
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site, the directory below C(inventory/).
    type: str
    required: true
  step:
    description: C(plan) adds the site's measurement to the plan, C(judge) judges and keeps what came of it.
    type: str
    choices: [plan, judge]
    required: true
  plan:
    description: What C(trispark_plan) returned as C(plan), of what runs; for C(judge) what C(plan) made of it.
    type: dict
    required: true
  facts:
    description: What the tasks registered on each node (C(trispark_boots)).
    type: dict
    default: {}
  statuses:
    description: Each node's answer to C(status), of before the measurement.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Keeps no file.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Plan the measurement
  trispark_bench:
    root: "{{ playbook_dir }}/.."
    site: lab
    step: plan
    plan: "{{ verify_planned.plan }}"
"""

RETURN = r"""
plan:
  description: The given plan with its C(bench). With O(step=plan).
  type: dict
  returned: with that step
lines:
  description: A line for each metric, what was not checked, and the file. With O(step=judge).
  type: list
  elements: str
  returned: with that step
published:
  description: Generation, boot, outcome, metrics and file. With O(step=judge).
  type: dict
  returned: with that step
failure_line:
  description: Why the measurement does not count; empty when it does. With O(step=judge).
  type: str
  returned: with that step
"""

# The task runs plugins/action/trispark_bench.py on the controller; this file is its documentation.
