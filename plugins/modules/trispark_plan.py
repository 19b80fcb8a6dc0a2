#!/usr/bin/python
"""Plans one boot on the controller; the work is in trispark.boot_plan."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_plan
short_description: Plan one boot from the catalog, or a rollback from what the nodes hold
description:
  - Runs on the controller and reads only. Touches no node.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site, the directory below C(inventory/).
    type: str
    required: true
  stage:
    description: Letter of the stage; empty for a plain boot.
    type: str
    default: ""
  feature:
    description: A candidate tries it, the baseline of a trial holds what it requires; others do not have it.
    type: str
    default: ""
  value:
    description: The value of a sweep; empty for every other feature. It counts where O(feature) does.
    type: str
    default: ""
  arm:
    description:
      - What to plan; V(stored) takes it from O(stored). Where it is empty, O(feature) asks for the candidate.
      - V(none) plans nothing. It refuses what was given wrongly, before a node is asked.
    type: str
    choices: ["", baseline, candidate, stored, none]
    default: ""
  purpose:
    description: Why it is booted; only V(serve) and V(rollback) make a generation good.
    type: str
    choices: [serve, trial, restore, rollback, verify]
    required: true
  trial:
    description: Id of the trial that the boot belongs to; empty outside a trial.
    type: str
    default: ""
  slot:
    description: The boot's place in its trial; -1 outside a trial.
    type: int
    default: -1
  planned:
    description: The generation that the trial's plan names for this boot; another one is refused. Empty for any.
    type: str
    default: ""
  check:
    description: Plan the candidate that compares results, for features that have such a boot.
    type: bool
    default: false
  measure:
    description: Whether the boot is measured.
    type: bool
    default: false
  statuses:
    description: Answers of the agent's verb C(status) by node.
    type: dict
    default: {}
  stored:
    description: Answers of the agent's verb C(generation-show) by node.
    type: dict
    default: {}
  variables:
    description: Names of variables in upper case that Ansible knows; a catalog key among them is refused.
    type: list
    elements: str
    default: []
  site_variables:
    description: The C(site_) variables as the playbook sees them; one that differs from the site's files is refused.
    type: dict
    default: {}
  started:
    description: Seconds since the epoch at which the verb began; 0 for now.
    type: float
    default: 0
  boot_id:
    description: Name of the boot, where it was fenced for before; empty for a new one.
    type: str
    default: ""
  epoch:
    description: The epoch that the nodes were fenced with before; 0 for the next one.
    type: int
    default: 0
  broke_lock:
    description: Whose fleet lock was taken away for this boot; for its record.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Plan the baseline
  trispark_plan:
    root: "{{ playbook_dir }}/.."
    site: lab
    arm: baseline
    purpose: serve
"""

RETURN = r"""
plan:
  description: The plan as C(src/trispark/boot_plan.py) describes it.
  type: dict
  returned: success
level:
  description: Whether nodes and controller end with the same record, so that none has to be copied before the boot.
  type: bool
  returned: success
"""

# The task runs plugins/action/trispark_plan.py on the controller; this file is its documentation.
