#!/usr/bin/python
"""Judges the nodes before anything is changed; the work is in trispark.preflight."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_preflight
short_description: Judge what the nodes say of themselves
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
  hosts:
    description: Answers of the agent's verb C(host) by node.
    type: dict
    required: true
  statuses:
    description: Answers of the agent's verb C(status) by node.
    type: dict
    required: true
  minimum_free_bytes:
    description: Least free space of each file system looked at, in bytes.
    type: int
    required: true
  minimum_memory_bytes:
    description: Least memory available, in bytes.
    type: int
    required: true
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Judge the nodes
  trispark_preflight:
    root: "{{ playbook_dir }}/.."
    site: lab
    hosts: "{{ hosts }}"
    statuses: "{{ statuses }}"
    minimum_free_bytes: 268435456
    minimum_memory_bytes: 268435456
"""

RETURN = r"""
nodes:
  description: The nodes that were judged.
  type: list
  elements: str
  returned: success
"""

# The task runs plugins/action/trispark_preflight.py on the controller; this file is its documentation.
