#!/usr/bin/python
"""Builds and keeps the record of a boot; the work is in trispark.boot_outcome."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_record
short_description: Build and check the record of a boot, and keep the controller's copy
description:
  - Runs on the controller.
  - The copy is kept before any node gets the record.
  - So a controller that is killed while appending can give the nodes what they lack.
  - A rollback and a boot that ended without a record are recorded beside a fork, too, which is a warning then.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  plan:
    description: What M(trispark_plan) returned as C(plan).
    type: dict
    required: true
  facts:
    description: What the tasks of the boot registered, by node.
    type: dict
    required: true
  statuses:
    description: What the agent's verb C(status) answered before the boot by node, null for no answer.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
    description: Nothing is written to the cache in check mode.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Build the record
  trispark_record:
    root: "{{ playbook_dir }}/.."
    site: lab
    plan: "{{ plan }}"
    facts: "{{ facts }}"
    statuses: "{{ statuses }}"
"""

RETURN = r"""
record:
  description: The checked record.
  type: dict
  returned: success
append:
  description:
    - By node what to append, in order; more than one record for a node that was down.
    - Nothing for a node that lacks records which the controller does not hold; a warning names it.
  type: dict
  returned: success
set_aside:
  description: Where copies of a chain that the nodes do not hold, or that cannot be read, are kept; else empty.
  type: str
  returned: success
failure_line:
  description: One line when the boot was not valid, else empty.
  type: str
  returned: success
path:
  description: The controller's copy.
  type: str
  returned: success
"""

# The task runs plugins/action/trispark_record.py on the controller; this file is its documentation.
