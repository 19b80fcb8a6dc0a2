#!/usr/bin/python
"""Says how a site shares its checkpoint, and what was compared; the work is in trispark.share."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_share
short_description: Plan and report the share of the checkpoint
description:
  - Runs on the controller and changes nothing.
  - Gives each node's C(share) for the agent's verb C(share), from C(site_checkpoint_share) of the site.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  site_variables:
    description: Variables of the playbook that begin with C(site_); what differs from the site's files is refused.
    type: dict
    default: {}
  read:
    description: Answers of the action C(read) by node; only the head has one.
    type: dict
    default: {}
  verified:
    description: Answers of the action C(verify) by node.
    type: dict
    default: {}
  tolerant:
    description: Whether a site that cannot be read is a warning, and RV(shares) empty; for the way back.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Read how the site shares its checkpoint
  trispark_share:
    root: "{{ playbook_dir }}/.."
    site: lab
  register: plan
"""

RETURN = r"""
kind:
  description: V(local), V(nfs) or V(fuse).
  type: str
  returned: success
head:
  description: Name of rank 0.
  type: str
  returned: success
shares:
  description: The C(share) of each node.
  type: dict
  returned: success
lines:
  description: What was compared, for a person.
  type: list
  elements: str
  returned: success
published:
  description: What was compared, for a program.
  type: dict
  returned: success
check_id:
  description: Stable id of the refusal.
  type: str
  returned: failure
"""

# The task runs plugins/action/trispark_share.py on the controller; this file is its documentation.
