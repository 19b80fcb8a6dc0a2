"""Entry of the zipapp. Written so that an older Python reaches the message instead of a syntax error."""

import json
import sys

if sys.version_info < (3, 10):  # noqa: UP036 - the node's python3 is not ours to choose
    found = "%d.%d" % sys.version_info[:2]  # noqa: UP031
    error = {
        "id": "TS-AGENT-PYTHON",
        "what": "the node's Python is too old for the agent",
        "where": sys.executable,
        "expected": "3.10 or newer",
        "observed": found,
        "remedy": "install a newer python3 on the node",
    }
    print(json.dumps({"ok": False, "error": error}))
    sys.exit(1)

from trispark_node.cli import main
from trispark_node.docker_client import without_certificate_file

without_certificate_file()
sys.exit(main(sys.argv[1:]))
