#!/usr/bin/python
"""Plans the take-over of an engine that someone started by hand; the work is in trispark.adopt."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_adopt
short_description: Plan a take-over, or the way back from one
description:
  - Runs on the controller and changes nothing.
  - Without C(surveys) it says what the agents are to be asked; with them, what is to be done.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  surveys:
    description: Answers of the agent's verb C(survey) by node.
    type: dict
    default: {}
  container:
    description: Names of the engine's containers with commas between them; on each node the one that is there.
    type: str
    default: ''
  back_to:
    description: Id of a take-over that is to be gone back from.
    type: str
    default: ''
  confirm:
    description: Whether the containers named are to be taken over; without it they are only looked at.
    type: bool
    default: false
  remove:
    description: Whether a container that was taken over is to be removed as well.
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
- name: Plan the take-over
  trispark_adopt:
    root: "{{ playbook_dir }}/.."
    site: lab
    container: dsv41-head,dsv41-worker
    surveys: "{{ surveys }}"
"""

RETURN = r"""
question:
  description: The request of the agent's verb C(survey).
  type: dict
  returned: success
plan:
  description: What is to be done; empty without C(surveys).
  type: dict
  returned: success
check_id:
  description: Stable id of the refusal.
  type: str
  returned: failure
"""

# The task runs plugins/action/trispark_adopt.py on the controller; this file is its documentation.
