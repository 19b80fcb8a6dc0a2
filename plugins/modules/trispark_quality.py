#!/usr/bin/python
"""The long quality set on the controller; the work is in trispark.quality.run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_quality
short_description: What the quality gates ask, execute and conclude
description:
  - Runs on the controller. Touches no node, and executes nothing of a model here.
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
    description: C(ask) gives the requests, C(execute) what the sandbox is to run, C(judge) the results.
    type: str
    choices: [ask, execute, judge]
    required: true
  plan:
    description: What C(trispark_plan) returned as C(plan), of what runs.
    type: dict
    required: true
  answers:
    description: Answers to all requests, in their order.
    type: list
    elements: dict
    default: []
  sandbox:
    description: The agent's answer of the sandbox; empty where nothing was executed.
    type: dict
    default: {}
  reference:
    description: C(keep) makes answers that pass the site's reference; else they are compared with it.
    type: str
    choices: ["", keep]
    default: ""
attributes:
  check_mode:
    support: full
    description: Keeps no reference.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Plan the questions
  trispark_quality:
    root: "{{ playbook_dir }}/.."
    site: lab
    step: ask
    plan: "{{ verify_planned.plan }}"
"""

RETURN = r"""
rounds:
  description: Lists of requests; those of one list are sent at once. With O(step=ask).
  type: list
  elements: list
  returned: with that step
request:
  description: For the agent's verb C(oneshot) on rank C(rank); empty where there is no code. With O(step=execute).
  type: dict
  returned: with that step
lines:
  description: A line for each result. With O(step=judge).
  type: list
  elements: str
  returned: with that step
published:
  description: Generation, whether all passed, and each result. With O(step=judge).
  type: dict
  returned: with that step
"""

# The task runs plugins/action/trispark_quality.py on the controller; this file is its documentation.
