#!/usr/bin/python
"""Pushes built images to the lab's registry; the work is in src/trispark/lab/push.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_lab_push
short_description: Push images that the controller's Docker Engine has built to the lab's registry
description:
  - Takes each image from the Engine, leaves out what says where and when it was built, and pushes it.
  - The digest in the registry is the same for the same sources, wherever and whenever they are built.
  - Blobs that the registry has are not sent again. The manifest goes last, so a push that is cut off leaves no image.
options:
  root:
    description: Root of the project on the controller.
    type: path
    required: true
  images:
    description: Names of images of the lab, as M(trispark_lab_state) gives them.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    support: full
    description: Says that it would push.
  diff_mode:
    support: none
    description: There is no text to compare.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Push what the registry lacks
  trispark_lab_push:
    root: "{{ playbook_dir }}/.."
    images: "{{ plan.lab.pushes }}"
"""

RETURN = r"""
digests:
  description: For each image the digest of its manifest in the registry.
  type: dict
  returned: success
check_id:
  description: Stable id of the refusal.
  type: str
  returned: failure
"""

# The task runs plugins/action/trispark_lab_push.py on the controller; this file is its documentation.
