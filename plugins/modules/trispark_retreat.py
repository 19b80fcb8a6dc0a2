#!/usr/bin/python
"""Says what came of stopping and repointing; the work is in trispark.rollback_outcome."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_retreat
short_description: Say how far each node came in the first half of a rollback
description:
  - Runs on the controller and reads only.
options:
  target:
    description: The generation that is gone back to.
    type: str
    required: true
  results:
    description: What the task with the agent's verb C(rollback) registered, by node.
    type: dict
    required: true
  missing:
    description: Nodes that were not asked, each with why.
    type: dict
    required: true
  started:
    description: Seconds since the epoch at which the rollback began.
    type: float
    required: true
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Tell how far each node came
  trispark_retreat:
    target: g0123456789abcdef
    results: "{{ groups['sparks'] | trispark_results(hostvars, 'rolled_back') }}"
    missing: {}
    started: "{{ started | float }}"
"""

RETURN = r"""
state:
  description: V(READY) when all nodes are stopped and repointed, V(DEGRADED) while nodes are missing, else V(FAILED).
  type: str
  returned: success
lines:
  description: A line for each node, then the state and the seconds.
  type: list
  elements: str
  returned: success
failure_line:
  description: One line when no boot can follow, else empty.
  type: str
  returned: success
broke_lock:
  description: Whose fleet lock was taken away; empty when it was free.
  type: str
  returned: success
published:
  description: The same for the caller.
  type: dict
  returned: success
"""

# The task runs plugins/action/trispark_retreat.py on the controller; this file is its documentation.
