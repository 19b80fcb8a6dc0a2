#!/usr/bin/python
"""Builds the node agent's one file on the controller; the work is in trispark.agent_file."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_agent
short_description: Build the node agent on the controller
description:
  - Runs on the controller; makes the one file in C(.trispark/cache) when its sources or its lock changed.
  - It does so in check mode, too.
options:
  root:
    description: Root of the project.
    type: path
    required: true
attributes:
  check_mode:
    support: full
    description: The cache is no part of what a site is.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Build the agent
  trispark_agent:
    root: "{{ playbook_dir }}/.."
  register: agent
"""

RETURN = r"""
path:
  description: The file on the controller.
  type: str
  returned: success
sha256:
  description: Its SHA-256.
  type: str
  returned: success
version:
  description: Version of the agent.
  type: str
  returned: success
protocol:
  description: Number of its protocol.
  type: int
  returned: success
check_id:
  description: Stable id of the refusal.
  type: str
  returned: failure
"""

# The task runs plugins/action/trispark_agent.py on the controller; this file is its documentation.
