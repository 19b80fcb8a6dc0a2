"""Where the rows of a forward come from: told the row ids of all layers at once, then asked for each layer's rows.

The functions of this module are what the prefetch adapter replaces. The engine always calls them through the module.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .row_store import LayerRows

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Lookup:
    """Row ids [M] that one layer of this rank must fetch for a forward, all owned."""

    store: LayerRows
    ids: npt.NDArray[np.int64]


def attach(stores: Sequence[LayerRows]) -> None:
    """Told once of the stores of all layers; nothing to do for the synchronous path."""


def ids_known(lookups: Sequence[Lookup]) -> None:
    """Told of the lookups of a forward, in layer order, before the first `gather`; nothing to do either."""


def gather(lookup: Lookup) -> Bytes:
    """[M, 264] row bytes."""
    return lookup.store.fetch(lookup.ids)
