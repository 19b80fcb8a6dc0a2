"""Names of torchvision.io."""

from enum import Enum
from typing import Any, NoReturn


class ImageReadMode(Enum):
    """Its members, with the values that torchvision gives them."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


def _absent(*_: Any, **__: Any) -> NoReturn:
    raise NotImplementedError("this is a stand-in for torchvision, which reads no images")


decode_image = decode_jpeg = read_image = read_video = _absent


class VideoReader:
    """Raises when it is made."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        _absent(*arguments, **options)
