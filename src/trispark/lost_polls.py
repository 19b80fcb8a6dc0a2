"""A question that changes nothing on a node is put again when the connection breaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

AT_MOST: Final = 3
"""Lost connections in a row, each of which has taken its own time-out."""
PAUSE_S: Final = 2.0
Answer = TypeVar("Answer")


def again(
    ask: Callable[[], Answer], lost: tuple[type[Exception], ...], pause: Callable[[float], None], at_most: int = AT_MOST
) -> Answer:
    """What `ask` returns. Raises what it raises, those of `lost` only after `at_most` of them."""
    for _ in range(at_most):
        try:
            return ask()
        except lost:
            pause(PAUSE_S)
    return ask()
