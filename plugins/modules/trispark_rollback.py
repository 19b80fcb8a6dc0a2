#!/usr/bin/python
"""Chooses the generation to go back to; the work is in trispark.rollback."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_rollback
short_description: Choose the generation that a rollback goes to
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
  to:
    description: A generation id, V(previous), or empty for the last good one.
    type: str
    default: ""
  statuses:
    description: Answers of the agent's verb C(status) by node.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
    description: It never changes anything.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Choose the generation to go back to
  trispark_rollback:
    root: "{{ playbook_dir }}/.."
    site: lab
    statuses: "{{ statuses }}"
"""

RETURN = r"""
generation:
  description: The chosen generation.
  type: str
  returned: success
line:
  description: What was chosen and why.
  type: str
  returned: success
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.boot_plan import Project
from trispark.errors import TrisparkError
from trispark.promoted import on_nodes, settings_of
from trispark.resolve import resolve
from trispark.rollback import choose


def baseline_id(root: Path, site: str, statuses: dict[str, Any]) -> str | None:
    """The id of the site's baseline; None when tree or nodes cannot tell, which must not stop a rollback."""
    try:
        project = Project.load(root, site)
        promoted = settings_of(on_nodes(statuses), project.catalog)
        return resolve(project.site, project.catalog, None, None, root, promoted=promoted).id
    except TrisparkError:
        return None


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "site": {"type": "str", "required": True},
            "to": {"type": "str", "default": ""},
            "statuses": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        baseline = baseline_id(Path(given["root"]).resolve(), given["site"], given["statuses"])
        target = choose(given["statuses"], given["to"], baseline)
    except TrisparkError as error:
        fail(module, error.as_dict())
    line = f"from {target.current or 'differing generations'} to {target.generation}: {target.reason}"
    module.exit_json(changed=False, generation=target.generation, line=line)


if __name__ == "__main__":
    main()
