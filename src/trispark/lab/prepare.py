"""Makes what must exist before playbooks/lab_up.yml: bases, packages, checkpoint, agent, keys, build contexts."""

from __future__ import annotations

import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from trispark.agent_file import ensure_agent
from trispark.errors import TrisparkError
from trispark.host import Say, alone, private_directory, state_directory
from trispark.lab.bases import ensure_bases, load_recipes
from trispark.lab.engine_api import EngineApi, connect
from trispark.lab.images import Base, ensure_contexts
from trispark.lab.inputs import ensure_checkpoint, ensure_site_packages
from trispark.lab.keys import ensure_keys
from trispark.lab.layout import Paths, load_layout
from trispark.lab.package_drift import drift_line
from trispark.lab.prepared import Prepared, save_prepared
from trispark.lab.programs import PACKAGES, ensure_programs

MACHINES = ("x86_64", "aarch64")
LOCK_WAIT_S = 1800
"""A first preparation may take as long as its downloads."""


def prepare(repo: Path, say: Say, client: EngineApi | None = None) -> None:
    """Make or find everything and write `.trispark/lab/prepared.json`; a second call changes nothing.

    What is complete is kept, whatever an interrupted call left is made again. Only the bootstrap needs root (or sudo).
    """
    paths = Paths(repo.resolve())
    machine = platform.machine()
    if machine not in MACHINES:
        raise TrisparkError(
            "TS-LAB-MACHINE",
            "the lab runs on two architectures",
            where="this machine",
            expected=", ".join(MACHINES),
            observed=machine,
            remedy="use a machine of one of them",
        )
    layout = load_layout(paths.repo)
    engine = client if client is not None else connect()
    state_directory(paths.repo)
    for directory in (paths.cache, paths.cache / "registry", paths.state):
        private_directory(directory)
    lock = paths.cache / "lock"
    with alone(lock, error_id="TS-LAB-BUSY", doing="preparation", wait_s=LOCK_WAIT_S, say=say):
        ensure_programs(PACKAGES, say)
        recipes = load_recipes(paths.repo, machine)
        # One bootstrap keeps one core busy; the rest fits on the other.
        with ThreadPoolExecutor(max_workers=2) as pool:
            bases = pool.submit(ensure_bases, paths, engine, recipes, say)
            site_packages = ensure_site_packages(paths, machine, say)
            checkpoint = ensure_checkpoint(paths, say)
            agent, agent_sha256 = ensure_agent(paths.repo, paths.cache)
            keys = ensure_keys(paths.ssh, layout)
            made = {name: Base(reference, recipes[name].key) for name, reference in bases.result().items()}
            images = ensure_contexts(paths, made, site_packages)
        save_prepared(
            paths.prepared,
            Prepared(
                images=images,
                bases=bases.result(),
                checkpoint=str(checkpoint),
                agent=str(agent),
                agent_sha256=agent_sha256,
                keys=keys,
            ),
        )
        if drifted := drift_line(paths, recipes, machine):
            say(drifted)
