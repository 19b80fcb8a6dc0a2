#!/usr/bin/python
"""Finds what a controller that died left behind; the work is in trispark.recovery."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_recover
short_description: Find what a controller that died left behind
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
  results:
    description: What the task with the agent's verb C(status) registered, by node; empty where it was skipped.
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
- name: Find what was left
  trispark_recover:
    root: "{{ playbook_dir }}/.."
    site: lab
    results: "{{ groups['sparks'] | trispark_results(hostvars, 'recover_status') }}"
"""

RETURN = r"""
agents:
  description: Nodes whose agent was interrupted in a verb.
  type: list
  elements: str
  returned: success
stop:
  description: Whether every rank's engine is to be stopped.
  type: bool
  returned: success
orphan:
  description: The newest boot without a record, null when there is none.
  type: str
  returned: success
orphan_generation:
  description: Its generation.
  type: str
  returned: success
answering:
  description: Nodes that answered.
  type: list
  elements: str
  returned: success
moot:
  description: Nodes whose rollback is moot.
  type: list
  elements: str
  returned: success
rolls_back:
  description: Whether what answers is rolled back, because engines are to be stopped and nodes are missing.
  type: bool
  returned: success
incomplete:
  description: Target of a rollback that is not complete; empty when there is none.
  type: str
  returned: success
completes:
  description: Target of the rollback that can be completed; empty when there is none.
  type: str
  returned: success
lines:
  description: What was left and what is done about it.
  type: list
  elements: str
  returned: success
"""

# The task runs plugins/action/trispark_recover.py on the controller; this file is its documentation.
