#!/usr/bin/python
"""Chooses the generation to go back to; the work is in trispark.rollback."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_rollback
short_description: Choose the generation that a rollback goes to
description:
  - Runs on the controller and reads only.
  - Nodes that did not answer are no obstacle, they are named under C(missing); one node at least has to answer.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  to:
    description: A generation id or its beginning, V(previous), V(baseline), or V(good) or empty for the last good one.
    type: str
    default: ""
  stop_s:
    description: How long an engine may take to end by itself, for the line that says so.
    type: float
    required: true
  results:
    description: What the task with the agent's verb C(status) registered, by node.
    type: dict
    required: true
  started:
    description: Seconds since the epoch at which the rollback began; 0 for now.
    type: float
    default: 0
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Choose the generation to go back to
  trispark_rollback:
    root: "{{ playbook_dir }}/.."
    site: lab
    stop_s: 4
    results: "{{ groups['sparks'] | trispark_results(hostvars, 'boot_status') }}"
"""

RETURN = r"""
generation:
  description: The chosen generation.
  type: str
  returned: success
lines:
  description: Where to and why, and what will be done.
  type: list
  elements: str
  returned: success
missing:
  description: Nodes that cannot be reached, each with why.
  type: dict
  returned: success
silent:
  description: Nodes that gave no state, unreachable or late.
  type: list
  elements: str
  returned: success
call_s:
  description: How long the call that stops and repoints may take, by node.
  type: dict
  returned: success
started:
  description: Seconds since the epoch at which the rollback began.
  type: float
  returned: success
epoch:
  description: The epoch to fence with.
  type: int
  returned: success
boot_id:
  description: Name of the boot that follows.
  type: str
  returned: success
"""

# The task runs plugins/action/trispark_rollback.py on the controller; this file is its documentation.
