"""Compares images, adapters and engines of all ranks; the work is in trispark.images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction
from trispark.gate_result import failed_line
from trispark.gates import failed
from trispark.images.launch_gate import judge_launch


class ActionModule(ControllerAction):
    """plugins/modules/trispark_parity.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "phase": {"type": "str", "choices": ["launch", "chain"], "required": True},
        "plan": {"type": "dict", "default": {}},
        "answers": {"type": "dict", "required": True},
        "other_image": {"type": "str", "choices": ["refuse", "clear"], "default": "refuse"},
        "root": {"type": "path", "default": "."},
        "site": {"type": "str", "default": ""},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        return launch(given) if given["phase"] == "launch" else chain(given)


def launch(given: dict[str, Any]) -> dict[str, Any]:
    plan = given["plan"]
    judged = judge_launch(plan["resolved"], given["answers"], plan["purpose"], given["other_image"])
    gates = [result.as_dict() for result in judged.results]
    bad = failed(list(judged.results))
    if bad or not gates:
        line = failed_line(bad, plan) if bad else "launch: nothing was compared"
        check_id = bad[0].check_id if bad else "launch.adapters"
        return {"failed": True, "changed": False, "msg": line, "check_id": check_id, "gates": gates}
    return {"changed": False, "gates": gates, "clear_autotune": judged.clear_autotune}


def chain(given: dict[str, Any]) -> dict[str, Any]:
    # Here, because a launch needs neither: a rollback goes on with a tree that cannot be read.
    from trispark.catalog import load_catalog
    from trispark.images.demanded import verifier_of
    from trispark.images.rank_chain import make_chain, published, wants_files
    from trispark.images.rank_chain_text import lines
    from trispark.images.site_images import SiteImages
    from trispark.site import load_site

    root = Path(given["root"]).resolve()
    site = load_site(root / "inventory" / given["site"], images="optional")
    identity = load_catalog(root).engines[site.engine].identity
    nodes = {node.rank: node.name for node in site.nodes}
    images = SiteImages(site.engine_image, site.engine_images)
    compared = make_chain(site.name, images, nodes, given["answers"], identity.same_set, identity.needed)
    found = published(compared, root, verifier_of(site))
    return {
        "changed": False,
        "list_files": wants_files(given["answers"]),
        "lines": lines(found),
        "published": {"images": found},
    }
