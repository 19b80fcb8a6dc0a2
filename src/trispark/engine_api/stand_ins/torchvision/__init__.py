"""Names of torchvision that transformers and the engine import; see the README beside this package."""

from . import io, transforms

__all__ = ["io", "transforms"]
__version__ = "0.28.0"
