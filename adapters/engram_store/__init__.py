"""Rows of the engine's Engram tables through the built row store; see `store.RowStore`.

It needs NumPy and no compiler: the library of this machine's architecture lies beside it and is checked before it is
loaded. Sources: native/engram_store in the project.
"""

from .errors import Code, StoreError
from .job import Job, Places, Scratch, serve_address
from .library import available
from .store import ROW_BYTES, Backend, Counters, Options, Rows, RowStore

__all__ = [
    "ROW_BYTES",
    "Backend",
    "Code",
    "Counters",
    "Job",
    "Options",
    "Places",
    "RowStore",
    "Rows",
    "Scratch",
    "StoreError",
    "available",
    "serve_address",
]
