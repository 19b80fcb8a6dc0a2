"""What the preparation of the lab refuses before it makes anything."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from trispark.errors import TrisparkError
from trispark.lab.prepare import prepare


@pytest.mark.parametrize("machine", ["riscv64", "armv7l", ""])
def test_a_machine_without_images_is_refused_before_anything_is_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    with pytest.raises(TrisparkError) as refused:
        prepare(tmp_path, print)
    assert (refused.value.id, refused.value.observed) == ("TS-LAB-MACHINE", machine)
    assert list(tmp_path.iterdir()) == []
