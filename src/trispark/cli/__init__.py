"""The command line. :func:`main` turns every user mistake and known failure into one line and an exit status."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the verb of ``sys.argv``; the exit status (``trispark.cli.exit_codes``)."""
    from trispark.cli import exit_codes
    from trispark.cli.app import app
    from trispark.cli.terminal import Terminal
    from trispark.errors import TrisparkError
    from trispark.host import PRIVATE_UMASK

    terminal = Terminal()
    umask = os.umask(PRIVATE_UMASK)  # also that of ansible-playbook: records, logs and events are the user's own
    try:
        app(prog_name="./trispark")
    except TrisparkError as error:
        terminal.error(str(error))
        if "--json" in sys.argv:
            terminal.json({"error": error.as_dict()})
        return exit_codes.of_error(error)
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        return exit_codes.OK
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else exit_codes.OK if end.code is None else exit_codes.FAILED
    finally:
        os.umask(umask)
    return exit_codes.OK
