"""Installs the import hooks; Python runs this file in each interpreter that has the adapters on PYTHONPATH.

Without DSV41_SOURCE nothing happens. A hook that can not be installed ends the process: CPython would print the
exception and go on, and the engine would run without what was asked for.
"""

import os

if os.environ.get("DSV41_SOURCE"):
    try:
        from trispark_hooks.finder import install

        install()
    except BaseException as error:
        os.write(2, f"TS-ADAPTER-START: adapters not installed: {type(error).__name__}: {error}\n".encode())
        os._exit(70)
