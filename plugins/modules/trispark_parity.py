#!/usr/bin/python
"""Compares images, adapters and engines of all ranks; the work is in trispark.images."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_parity
short_description: Compare what every rank holds, and name the odd one
description:
  - Runs on the controller and reads only.
options:
  phase:
    description:
      - V(launch) judges what is staged with the plan, before anything is stopped, and fails when one check of one rank
        does.
      - V(chain) puts together the chain from the site's reference to what each rank has loaded; it never fails for a
        difference.
    type: str
    choices: [launch, chain]
    required: true
  plan:
    description: For V(launch) what M(trispark_plan) returned as C(plan).
    type: dict
    default: {}
  answers:
    description: Answers of the agent's verb C(parity) by node.
    type: dict
    required: true
  other_image:
    description: For V(launch) what is done with tactics that were made under another image.
    type: str
    choices: [refuse, clear]
    default: refuse
  root:
    description: For V(chain) the project's directory.
    type: path
    default: .
  site:
    description: For V(chain) the site's name.
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
- name: Compare what is staged with the plan
  trispark_parity:
    phase: launch
    plan: "{{ plan }}"
    answers: "{{ answers }}"
"""

RETURN = r"""
gates:
  description: For V(launch) every check with rank, ok, expected and observed.
  type: list
  elements: dict
  returned: for V(launch)
clear_autotune:
  description: Whether every rank begins without tactics.
  type: bool
  returned: for V(launch) that passed
list_files:
  description: Whether trees differ, so that every file should be asked for.
  type: bool
  returned: for V(chain)
lines:
  description: The chain for people.
  type: list
  elements: str
  returned: for V(chain)
published:
  description: The chain under C(images).
  type: dict
  returned: for V(chain)
"""

# The task runs plugins/action/trispark_parity.py on the controller; this file is its documentation.
