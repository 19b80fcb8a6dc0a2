#!/usr/bin/python
"""Calls one verb of the node agent; the work and the decisions are in the agent."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_node
short_description: Call one verb of the trispark node agent
description:
  - Runs C(trispark-node VERB) on the node with the request as JSON on standard input. The agent is there already, so
    nothing but the request is sent.
  - The agent is the only thing that starts, stops or changes an engine.
  - A person on the node's shell can call the same verbs.
options:
  verb:
    description: The agent's verb, for instance V(status), V(stage) or V(start). Needed where there are no O(steps).
    type: str
  request:
    description: The request as the agent documents it for that verb.
    type: dict
    default: {}
  steps:
    description:
      - Verbs that are called one after the other, until one fails, in one call of the agent. Each is what it would be
        alone.
      - Excludes O(verb).
    type: list
    elements: dict
    suboptions:
      verb:
        description: The agent's verb.
        type: str
        required: true
      request:
        description: Its request.
        type: dict
        default: {}
      requests:
        description: Several requests in place of one, each a step of its own; an empty list is none.
        type: list
        elements: dict
      when:
        description: Whether the step is taken.
        type: bool
        default: true
  agent:
    description: Path of the agent on the node.
    type: path
    default: /var/lib/trispark/bin/trispark-node
  deadline_s:
    description:
      - Seconds that the whole call may take, making the connection included; then the task fails with C(TS-AGENT-LATE).
      - Without it the verb's own time holds, which is long enough for a slow node.
      - A call that changed something may still have its effect on the node after that; ask the node again.
    type: float
attributes:
  check_mode:
    support: full
    description: The agent gets C(check=true) and says what would change.
  diff_mode:
    support: full
    description: The agent's C(diff) is handed on.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Read the node's state
  trispark_node:
    verb: status

- name: Stop the engine of this node
  trispark_node:
    verb: stop
    request:
      deadline_s: 15

- name: Check that a generation could start, and read what it would run
  trispark_node:
    steps:
      - verb: can-start
        request:
          generation: "{{ boot_plan.generation }}"
      - verb: parity
        request:
          generation: "{{ boot_plan.generation }}"

- name: Read the state of a node that may not answer
  trispark_node:
    verb: status
    deadline_s: 6
"""

RETURN = r"""
answer:
  description: The agent's answer; with O(steps) that of the last one.
  type: dict
  returned: success
answers:
  description: By verb the answer to the last step of it; also of a call in which a later step failed.
  type: dict
  returned: with O(steps)
check_id:
  description: Stable id of the failure.
  type: str
  returned: failure
"""

# The task runs plugins/action/trispark_node.py on the controller; this file is its documentation.
