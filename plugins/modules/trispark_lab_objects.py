#!/usr/bin/python
"""Makes the lab's networks and removes its objects, each kind at once; the decisions are in src/trispark/lab."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_lab_objects
short_description: Make networks and remove containers, networks and volumes of the lab, all of a kind at once
description:
  - Carries out a plan of M(trispark_lab_state) on the Docker Engine of the controller.
  - Removes only what carries the labels of the lab and of this checkout when it is removed, whatever the plan says.
  - One process for all objects. A module call for each costs more time than the Engine needs for the object.
options:
  root:
    description: Root of the project on the controller.
    type: path
    required: true
  remove_containers:
    description: Names of containers to kill and remove with their anonymous volumes.
    type: list
    elements: str
    default: []
  remove_networks:
    description: Names of networks to remove, after the containers.
    type: list
    elements: str
    default: []
  remove_volumes:
    description: Names of volumes to remove, after the containers.
    type: list
    elements: str
    default: []
  networks:
    description: Networks to make after the removal, each with C(name) and C(subnet).
    type: list
    elements: dict
    default: []
  abandoned:
    description: Root ids of other checkouts whose ended labs are among what is removed; what runs of theirs stays.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Says whether something would be done.
  diff_mode:
    support: none
    description: The plan is the difference.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Make the networks
  trispark_lab_objects:
    root: "{{ playbook_dir }}/.."
    networks: "{{ plan.lab.networks }}"
"""

RETURN = r"""
done:
  description: What was removed and made, one text for each object.
  type: list
  elements: str
  returned: success
check_id:
  description: Stable id of the refusal.
  type: str
  returned: failure
"""

# The task runs plugins/action/trispark_lab_objects.py on the controller; this file is its documentation.
