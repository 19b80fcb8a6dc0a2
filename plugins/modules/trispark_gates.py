#!/usr/bin/python
"""Judges the gates of a boot on the controller; the work is in trispark.gates."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_gates
short_description: Compare what every rank runs with what was planned
description:
  - Runs on the controller and reads only. Fails when one check of one rank fails; all results are returned either way.
options:
  phase:
    description: V(boot) judges everything with the canary; V(after_load) what must still be true after the measurement.
    type: str
    choices: [boot, after_load]
    default: boot
  plan:
    description: What M(trispark_plan) returned as C(plan).
    type: dict
    required: true
  observations:
    description: Answers of the agent's verb C(observe) by node.
    type: dict
    required: true
  before:
    description:
      - For V(boot) the row lookups by node and layer before the canary.
      - For V(after_load) the earlier observations.
    type: dict
    required: true
  identities:
    description: For V(boot) the observations that hold the hashes of what runs, by node.
    type: dict
    default: {}
  listed:
    description: For V(boot) answers of the agent's verb C(parity) with every file, by node, where trees differ.
    type: dict
    default: {}
  shards:
    description: Answers of the agent's verb C(engram) by node; the last rank's end rows are the sizes of the tables.
    type: dict
    required: true
  canary:
    description: Answer of the agent's verb C(request) for the canary.
    type: dict
    default: {}
  batch:
    description: Answer of the agent's verb C(request-batch) for the warm-up batch, where the plan has one.
    type: dict
    default: {}
  quality:
    description: Answer of the agent's verb C(request-batch) for the short quality set, where the plan has one.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Judge the gates
  trispark_gates:
    plan: "{{ plan }}"
    observations: "{{ observations }}"
    before: "{{ before }}"
    shards: "{{ shards }}"
    canary: "{{ canary }}"
    batch: "{{ batch }}"
"""

RETURN = r"""
gates:
  description: Every check with rank, ok, expected and observed.
  type: list
  elements: dict
  returned: always
identities:
  description: By node the hashes of what runs, as the record keeps them.
  type: dict
  returned: for V(boot)
"""

# The task runs plugins/action/trispark_gates.py on the controller; this file is its documentation.
