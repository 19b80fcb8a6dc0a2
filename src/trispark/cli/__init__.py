"""The command line. :func:`main` turns every user mistake and known failure into one line and an exit status."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trispark.cli.terminal import Terminal
    from trispark.errors import TrisparkError


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
        return _told(terminal, error)
    except KeyboardInterrupt:
        terminal.error("interrupted")
        return exit_codes.INTERRUPTED
    except BrokenPipeError:
        return exit_codes.OK
    except OSError as error:  # a full disk, a file of another user, a path that leads through a file
        refused = TrisparkError(
            "TS-CLI-SYSTEM",
            "the system of this machine refused something",
            where=str(error.filename or "this command"),
            expected="files that can be read and written, and room for them",
            observed=error.strerror or str(error) or type(error).__name__,
            remedy="make room or correct the path or its owner, then run the same command again",
        )
        return _told(terminal, refused)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else exit_codes.OK if end.code is None else exit_codes.FAILED
    finally:
        os.umask(umask)
    return exit_codes.OK


def _told(terminal: Terminal, error: TrisparkError) -> int:
    from trispark.cli import exit_codes

    terminal.error(str(error))
    if "--json" in sys.argv:
        terminal.json({"error": error.as_dict()})
    return exit_codes.of_error(error)
