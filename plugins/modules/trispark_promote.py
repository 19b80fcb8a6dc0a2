#!/usr/bin/python
"""Plans a promotion on the controller and keeps the controller's copy; the work is in trispark.promote."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_promote
short_description: Turn the KEEP of a trial into the site's baseline, or go back to the shipped one
description:
  - Runs on the controller. V(planned) reads only and says what each node is to get.
  - V(cached) writes the controller's copy.
options:
  state:
    description: What is done.
    type: str
    choices: [planned, cached]
    default: planned
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  record:
    description: Id of a trial's record that says KEEP.
    type: str
    default: ""
  revert:
    description: Go back to the shipped baseline.
    type: bool
    default: false
  statuses:
    description: Answers of the agent's verb C(status) by node.
    type: dict
    default: {}
  baseline:
    description: For V(cached), what the nodes hold now; empty for the shipped one.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: Nothing is written in check mode.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Plan the promotion
  trispark_promote:
    root: "{{ playbook_dir }}/.."
    site: lab
    record: t20260102T030405Z-a1b2
    statuses: "{{ statuses }}"
"""

RETURN = r"""
baseline:
  description: What every node is to hold; empty for the shipped baseline.
  type: dict
  returned: O(state=planned)
requests:
  description: By node what the agent's verb C(baseline-set) is to get.
  type: dict
  returned: O(state=planned)
lines:
  description: For people.
  type: list
  elements: str
  returned: O(state=planned)
published:
  description: The result for the caller of the playbook.
  type: dict
  returned: O(state=planned)
"""

# The task runs plugins/action/trispark_promote.py on the controller; this file is its documentation.
