#!/usr/bin/python
"""Keeps what the nodes answered as a backup on the controller; the work is in trispark.backups."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_backup
short_description: Keep the nodes' answers as a backup
description:
  - Runs on the controller, after C(trispark_fetch) wrote each node's answer of the verb C(backup) into the directory.
  - Writes one archive a node and a manifest, and removes all but the newest ten backups of the site.
options:
  directory:
    description: The backup's own directory, in which the answers lie.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  nodes:
    description: All nodes of the site.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    support: full
    description: In check mode nothing was fetched, and it is not called.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Keep the backup
  trispark_backup:
    directory: /home/operator/trispark/.trispark/lab/backups/20260101T000000Z
    site: lab
    nodes: [spark0, spark1, spark2]
  register: kept
"""

RETURN = r"""
lines:
  description: What was kept, for a person.
  type: list
  elements: str
  returned: always
published:
  description: What was kept, for a program.
  type: dict
  returned: always
check_id:
  description: Stable id of the refusal.
  type: str
  returned: failure
"""

# The task runs plugins/action/trispark_backup.py on the controller; this file is its documentation.
