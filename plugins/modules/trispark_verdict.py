#!/usr/bin/python
"""Records the verdicts of a walk that has ended; the work is in trispark.trial_outcome."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_verdict
short_description: Build the record of every trial of a walk, and say what each node lacks
description:
  - Runs on the controller. Records that were built before are left as they are.
  - The controller keeps each record before any node gets it.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  walk:
    description: Id of the trial.
    type: str
    required: true
  stopped:
    description: Why the walk did not make all of its boots; empty when it did.
    type: str
    default: ""
  restored:
    description: The boot with which the site's baseline serves; empty when it does not.
    type: str
    default: ""
  statuses:
    description: What the agent's verb C(status) answered by node, null for no answer.
    type: dict
    required: true
attributes:
  check_mode:
    support: none
    description: A walk that was not made has no verdict.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Record the verdict
  trispark_verdict:
    root: "{{ playbook_dir }}/.."
    site: lab
    walk: "{{ walk }}"
    restored: "{{ restored }}"
    statuses: "{{ statuses }}"
"""

RETURN = r"""
append:
  description: What the agent's verb C(record-append) is to get, by node.
  type: dict
  returned: success
lines:
  description: The verdicts for people.
  type: list
  elements: str
  returned: success
published:
  description: The result for the caller of the playbook.
  type: dict
  returned: success
failure_line:
  description: Why the playbook has to end with a failure; empty when it has not.
  type: str
  returned: success
"""

# The task runs plugins/action/trispark_verdict.py on the controller; this file is its documentation.
