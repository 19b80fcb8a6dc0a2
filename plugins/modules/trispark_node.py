#!/usr/bin/python
"""Calls one verb of the node agent; the work and the decisions are in the agent."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_node
short_description: Call one verb of the trispark node agent
description:
  - Runs C(trispark-node VERB) on the node with the request as JSON on standard input.
  - The agent is the only thing that starts, stops or changes an engine.
  - A person on the node's shell can call the same verbs.
options:
  verb:
    description: The agent's verb, for instance V(status), V(stage) or V(start).
    type: str
    required: true
  request:
    description: The request as the agent documents it for that verb.
    type: dict
    default: {}
  agent:
    description: Path of the agent on the node.
    type: path
    default: /var/lib/trispark/bin/trispark-node
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
"""

RETURN = r"""
answer:
  description: The agent's answer.
  type: dict
  returned: success
check_id:
  description: Stable id of the failure.
  type: str
  returned: failure
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

PROTOCOL = 1


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "verb": {"type": "str", "required": True},
            "request": {"type": "dict", "default": {}},
            "agent": {"type": "path", "default": "/var/lib/trispark/bin/trispark-node"},
        },
        supports_check_mode=True,
    )
    verb = module.params["verb"]
    request = dict(module.params["request"], protocol=PROTOCOL)
    if module.check_mode:
        request["check"] = True
    try:
        rc, stdout, stderr = module.run_command(
            [module.params["agent"], verb], data=json.dumps(request), handle_exceptions=False
        )
    except OSError as error:
        fail(
            module,
            {
                "id": "TS-AGENT-MISSING",
                "what": "the node agent cannot be run",
                "where": module.params["agent"],
                "expected": "an executable file",
                "observed": error.strerror,
                "remedy": "run the site's set-up again, it installs the agent (lab: ./trispark lab up)",
            },
        )
    try:
        answer = json.loads(stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (stderr.strip().splitlines() or ["nothing"])[-1]
        fail(
            module,
            {
                "id": "TS-AGENT-SILENT",
                "what": f"the node agent gave no JSON answer to {verb}",
                "where": module.params["agent"],
                "expected": "one JSON object",
                "observed": f"exit {rc}, {last}",
                "remedy": "run the site's set-up again, it installs the agent (lab: ./trispark lab up)",
            },
        )
    if rc != 0 or not answer.get("ok", False):
        unknown = {"id": "TS-AGENT-FAILED", "what": f"{verb} failed", "observed": f"exit {rc}"}
        fail(module, answer.get("error", unknown), answer=answer)
    result = {"changed": bool(answer.get("changed", False)), "answer": answer}
    if module._diff and answer.get("diff"):
        result["diff"] = answer["diff"]
    module.exit_json(**result)


if __name__ == "__main__":
    main()
