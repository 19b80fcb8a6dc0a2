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

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.adopt import container_names, loggable_names, plan_adopt
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.site import load_site


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "site": {"type": "str", "required": True},
            "surveys": {"type": "dict", "default": {}},
            "container": {"type": "str", "default": ""},
            "back_to": {"type": "str", "default": ""},
            "confirm": {"type": "bool", "default": False},
            "remove": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = Path(given["root"]).resolve()
    try:
        site = load_site(root / "inventory" / given["site"], images="optional")
        loggable = loggable_names(load_catalog(root).allowlist)
        question = {"names": list(container_names(given["container"])), "loggable": loggable}
        plan = {}
        if given["surveys"]:
            answered = {name: answer for name, answer in given["surveys"].items() if answer}
            plan = plan_adopt(
                site,
                answered,
                container=given["container"],
                back_to=given["back_to"],
                confirm=given["confirm"],
                remove=given["remove"],
                loggable=loggable,
            ).as_dict()
    except TrisparkError as error:
        fail(module, error.as_dict())
    module.exit_json(changed=False, question=question, plan=plan)


if __name__ == "__main__":
    main()
