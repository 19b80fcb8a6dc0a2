"""The node agent: the only program that stages, starts, stops or observes an engine on a node.

Built by `trispark_node.build` into one file, `trispark-node`, which needs Python 3.10 and nothing else on the node.
"""

VERSION = "0.1.0"
PROTOCOL = 3
"""Number of the request and answer shapes; a request with another number is refused."""

NODE_ROOT = "/var/lib/trispark"
ENGINE_NAME = "trispark-engine"
"""The container name that an engine takes, also when no generation is there to say so."""
