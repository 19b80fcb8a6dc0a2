"""What is known about a container of ours beside its own state."""

from __future__ import annotations

from trispark_node import generations
from trispark_node.containers import identity
from trispark_node.docker_client import Container
from trispark_node.node import Node
from trispark_node.spec import Spec


def spec_of(node: Node, container: Container) -> Spec:
    """The spec of the generation that the container was started from, which need not be the current one."""
    who = identity(container)
    return generations.load_spec(node, who.generation if who else "")
