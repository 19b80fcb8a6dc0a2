#!/usr/bin/python
"""Builds or caches a record; the work is in trispark.boot_outcome and trispark.trial_outcome."""

from __future__ import annotations

DOCUMENTATION = r"""
module: trispark_record
short_description: Build and check a record, then keep the controller's copy
description:
  - Runs on the controller.
  - The nodes' copies are the truth and are appended by the agent, before O(state=cached) is asked for.
options:
  state:
    description: V(built) returns the record; V(cached) writes O(record) into the controller's cache.
    type: str
    choices: [built, cached]
    default: built
  kind:
    description: What the record is about.
    type: str
    choices: [boot, trial]
    default: boot
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
    default: {}
  facts:
    description: For a boot, what its tasks registered by node; for a trial, its boots.
    type: dict
    default: {}
  heads:
    description: The agent's C(record_head) by node.
    type: dict
    default: {}
  record:
    description: The record to cache.
    type: dict
    default: {}
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
    heads: "{{ heads }}"
"""

RETURN = r"""
record:
  description: The checked record.
  type: dict
  returned: O(state=built)
append:
  description: By node what to append, in order; more than one record for a node that was down.
  type: dict
  returned: O(state=built)
set_aside:
  description: Where the copy of an older chain was kept, when all nodes are new; else empty.
  type: str
  returned: O(state=built)
failure_line:
  description: One line when the boot was not valid, else empty.
  type: str
  returned: O(state=built)
path:
  description: The cached file.
  type: str
  returned: O(state=cached)
"""

from datetime import UTC, datetime
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.trispark_failure import fail

from trispark.allowlist import Allowlist
from trispark.boot_outcome import record_boot
from trispark.catalog import load_catalog
from trispark.errors import TrisparkError
from trispark.record_chain import appends, leading_head, set_aside_older_chain
from trispark.records import RecordCache
from trispark.reporting import record_path
from trispark.trial_outcome import record_trial


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
            "state": {"type": "str", "choices": ["built", "cached"], "default": "built"},
            "kind": {"type": "str", "choices": ["boot", "trial"], "default": "boot"},
            "root": {"type": "path", "required": True},
            "site": {"type": "str", "required": True},
            "plan": {"type": "dict", "default": {}},
            "facts": {"type": "dict", "default": {}},
            "heads": {"type": "dict", "default": {}},
            "record": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    root = Path(given["root"]).resolve()
    cache = RecordCache(root / ".trispark" / given["site"] / "records")
    try:
        if given["state"] == "cached":
            changed = False if module.check_mode else cache.add(given["record"])
            module.exit_json(changed=changed, path=record_path(cache, given["record"], root))
        now = datetime.now(UTC)
        aside = set_aside_older_chain(given["heads"], cache) if not module.check_mode else None
        previous = leading_head(given["heads"], cache)
        allowlist = loggable_names(root)
        if given["kind"] == "boot":
            record = record_boot(root, given["site"], allowlist, given["plan"], given["facts"], previous, now)
        else:
            record = record_trial(
                root, given["site"], allowlist, given["plan"], cache, previous=previous, now=now, **given["facts"]
            )
        append = appends(given["heads"], cache, record)
    except TrisparkError as error:
        fail(module, error.as_dict())
    outcome = record["outcome"]
    valid = outcome.get("state", "valid") == "valid"
    module.exit_json(
        changed=aside is not None,
        record=record,
        append=append,
        set_aside=str(aside) if aside else "",
        failure_line="" if valid else outcome["reason"],
    )


if __name__ == "__main__":
    main()
