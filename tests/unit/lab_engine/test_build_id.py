"""An image of the lab's engine says which build it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from trispark_lab.build_id import FILE, UNNAMED, build_id
from trispark_lab.errors import EngineError


def test_the_file_beside_the_package_names_the_build(tmp_path: Path) -> None:
    file = tmp_path / "BUILD"
    file.write_text("canary\n", encoding="utf-8")
    assert build_id(file) == "canary"
    assert Path(__file__).resolve().parents[3] / "lab" / "BUILD" == FILE, "in an image: beside trispark_lab"


def test_an_image_without_it_is_unnamed(tmp_path: Path) -> None:
    assert build_id(tmp_path / "BUILD") == UNNAMED


@pytest.mark.parametrize("text", [b"", b"\n", b"Canary", b"two\nlines", b"a" * 64, b"\xff", b"-x"])
def test_what_is_no_id_is_refused(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "BUILD"
    file.write_bytes(text)
    with pytest.raises(EngineError) as caught:
        build_id(file)
    assert (caught.value.error_id, caught.value.where) == ("TS-ENGINE-BUILD", str(file))
