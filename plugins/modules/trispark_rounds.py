#!/usr/bin/python
"""In-boot rounds on the controller; the work is in trispark.rounds."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_rounds
short_description: What in-boot rounds ask of a running engine, and what they say
description:
  - Runs on the controller. Touches no node.
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
    description: C(plan) gives the load client's input, C(judge) what its output says.
    type: str
    choices: [plan, judge]
    required: true
  running:
    description: What C(trispark_plan) returned as C(plan), of what runs. With O(step=plan).
    type: dict
    default: {}
  statuses:
    description: Answers of the agents' verb C(status), by node. With O(step=plan).
    type: dict
    default: {}
  feature:
    description: A feature of the catalog that the engine can switch. With O(step=plan).
    type: str
    default: ""
  rounds:
    description: How many rounds count. With O(step=plan).
    type: str
    default: ""
  plan:
    description: What the step C(plan) returned. With O(step=judge).
    type: dict
    default: {}
  output:
    description: What the load client wrote, empty when it wrote nothing. With O(step=judge).
    type: dict
    default: {}
  facts:
    description: What the tasks registered on each node (C(trispark_boots)). With O(step=judge).
    type: dict
    default: {}
  behind:
    description: Nodes that did not pass the gates after the load. With O(step=judge).
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Only the step C(plan) is run in it.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Plan the rounds
  trispark_rounds:
    root: "{{ playbook_dir }}/.."
    site: lab
    step: plan
    running: "{{ verify_planned.plan }}"
    statuses: "{{ groups['sparks'] | trispark_answers(hostvars, 'boot_status') }}"
    feature: engram_prefetch
    rounds: "8"
"""

RETURN = r"""
plan:
  description: The rank that measures, its image and its input. With O(step=plan).
  type: dict
  returned: with that step
lines:
  description: The number, what all kept boots say, and the switch now; or why there is none. With O(step=judge).
  type: list
  elements: str
  returned: with that step
published:
  description: The same for the caller. With O(step=judge).
  type: dict
  returned: with that step
failure_line:
  description: Why the rounds do not count; empty when they do. With O(step=judge).
  type: str
  returned: with that step
"""

# The task runs plugins/action/trispark_rounds.py on the controller; this file is its documentation.
