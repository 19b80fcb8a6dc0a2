#!/usr/bin/python
"""The plan and the facts by which a boot that lost its controller is recorded; the work is in trispark.recovery."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_orphan
short_description: Plan the record of a boot that lost its controller
description:
  - Runs on the controller and reads only.
options:
  boot_id:
    description: The boot without a record.
    type: str
    required: true
  results:
    description: What the task with the agent's verb C(status) registered, by node.
    type: dict
    required: true
  stored:
    description: Answers of the agent's verb C(generation-show) for its generation, by node.
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
- name: Plan its record
  trispark_orphan:
    boot_id: b20260102T030405Z-a1b2
    results: "{{ groups['sparks'] | trispark_results(hostvars, 'recover_status') }}"
    stored: "{{ groups['sparks'] | trispark_answers(hostvars, 'recover_stored') }}"
"""

RETURN = r"""
plan:
  description: The plan, as C(src/trispark/boot_plan.py) describes it.
  type: dict
  returned: success
facts:
  description: What C(trispark_record) takes as facts.
  type: dict
  returned: success
"""

# The task runs plugins/action/trispark_orphan.py on the controller; this file is its documentation.
