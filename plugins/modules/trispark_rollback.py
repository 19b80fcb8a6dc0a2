#!/usr/bin/python
"""Chooses the generation to go back to; the work is in trispark.rollback."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_rollback
short_description: Choose the generation that a rollback goes to
description:
  - Runs on the controller and reads only.
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
    description: A generation id, V(previous), or empty for the last good one.
    type: str
    default: ""
  statuses:
    description: Answers of the agent's verb C(status) by node.
    type: dict
    required: true
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
    statuses: "{{ statuses }}"
"""

RETURN = r"""
generation:
  description: The chosen generation.
  type: str
  returned: success
line:
  description: What was chosen and why.
  type: str
  returned: success
"""

# The task runs plugins/action/trispark_rollback.py on the controller; this file is its documentation.
