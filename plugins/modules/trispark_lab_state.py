#!/usr/bin/python
"""Says what the lab needs; the decisions are in src/trispark/lab, the playbooks carry them out."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_lab_state
short_description: Compare the lab on this machine with what it should be
description:
  - Reads the Docker Engine of the controller and changes nothing.
  - Refuses with a stable id when something that is not ours is in the lab's place.
options:
  root:
    description: Root of the project on the controller.
    type: path
    required: true
  action:
    description: V(up) plans what is missing, V(check) waits for the nodes and verifies, V(down) lists what to remove.
    type: str
    choices: [up, check, down]
    required: true
  deadline_s:
    description: Seconds that V(check) waits for the nodes.
    type: float
    default: 60
attributes:
  check_mode:
    support: full
    description: The module never changes anything.
  diff_mode:
    support: none
    description: There is nothing to compare.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Read what the lab needs
  trispark_lab_state:
    root: "{{ playbook_dir }}/.."
    action: up
  register: plan
"""

RETURN = r"""
lab:
  description: The plan, or the result of the check.
  type: dict
  returned: success
check_id:
  description: Stable id of the refusal.
  type: str
  returned: failure
"""

# The task runs plugins/action/trispark_lab_state.py on the controller; this file is its documentation.
