#!/usr/bin/python
"""Builds and keeps the record of a boot; the work is in trispark.boot_outcome."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_record
short_description: Build and check the record of a boot, and keep the controller's copy
description:
  - Runs on the controller.
  - The copy is kept before any node gets the record.
  - So a controller that is killed while appending can give the nodes what they lack.
options:
  root:
    description: Root of the project.
    type: path
    required: true
  site:
    description: Name of the site.
    type: str
    required: true
  plan:
    description: What M(trispark_plan) returned as C(plan).
    type: dict
    required: true
  facts:
    description: What the tasks of the boot registered, by node.
    type: dict
    required: true
  statuses:
    description: What the agent's verb C(status) answered before the boot by node, null for no answer.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
    description: Nothing is written to the cache in check mode.
author:
  - trispark developers
"""

EXAMPLES = r"""
- name: Build the record
  trispark_record:
    root: "{{ playbook_dir }}/.."
    site: lab
    plan: "{{ plan }}"
    facts: "{{ facts }}"
    statuses: "{{ statuses }}"
"""

RETURN = r"""
record:
  description: The checked record.
  type: dict
  returned: success
append:
  description: By node what to append, in order; more than one record for a node that was down.
  type: dict
  returned: success
set_aside:
  description: Where the copy of an older chain was kept, when all nodes are new; else empty.
  type: str
  returned: success
failure_line:
  description: One line when the boot was not valid, else empty.
  type: str
  returned: success
path:
  description: The controller's copy.
  type: str
  returned: success
"""

from datetime import UTC, datetime
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark import __version__
from trispark.allowlist import Allowlist
from trispark.boot_outcome import record_boot
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.project import project_state
from trispark.record_chain import appends, heads_of, leading_head, set_aside_older_chain
from trispark.records import RecordCache
from trispark.reporting import record_path


def loggable_names(root: Path) -> Allowlist:
    """The catalog's allowlist; an empty one, which withholds every value, when the tree cannot be read.

    A rollback is recorded even then.
    """
    try:
        return load_catalog(root).allowlist
    except TrisparkError:
        return Allowlist.nothing()


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "site": {"type": "str", "required": True},
            "plan": {"type": "dict", "required": True},
            "facts": {"type": "dict", "required": True},
            "statuses": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = Path(given["root"]).resolve()
    cache = RecordCache(root / ".trispark" / given["site"] / "records")
    try:
        now = datetime.now(UTC)
        nodes, heads = given["statuses"], heads_of(given["statuses"])
        aside = set_aside_older_chain(nodes, heads, cache) if not module.check_mode else None
        previous = leading_head(heads, cache)
        allowlist = loggable_names(root)
        project = project_state(root, __version__)
        if project.problem:
            module.warn(project.problem)
        record = record_boot(project, given["site"], allowlist, given["plan"], given["facts"], previous, now)
        append = appends(nodes, heads, cache, record)
        added = False if module.check_mode else cache.add(record)
    except TrisparkError as error:
        fail(module, error.as_dict())
    outcome = record["outcome"]
    module.exit_json(
        changed=added or aside is not None,
        record=record,
        append=append,
        set_aside=str(aside) if aside else "",
        failure_line="" if outcome["state"] == "valid" else outcome["reason"],
        path=record_path(cache, record, root),
    )


if __name__ == "__main__":
    main()
