"""Names of torchvision.transforms."""

from enum import Enum

from . import functional, v2

__all__ = ["InterpolationMode", "functional", "v2"]


class InterpolationMode(Enum):
    """Its members, with the values that torchvision gives them."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"
