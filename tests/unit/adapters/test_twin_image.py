"""The committed GPU kernels: of this source, whole, for both chips; and the modules import where there is no torch."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from trispark.device_build import CAPABILITIES, FILE, MANIFEST, SOURCE, TARGET, main, source_sha256
from trispark.errors import TrisparkError
from trispark_adapters.twin_device import TwinError, checked_image
from trispark_adapters.twin_plan import KERNELS

ROOT = Path(__file__).resolve().parents[3]
MODULES = ("twin", "twin_device", "twin_format", "twin_plan", "wo_a_twin", "wo_a_w8", "draft_head_fp8")


def manifest() -> dict[str, str]:
    return json.loads((ROOT / TARGET / MANIFEST).read_text(encoding="utf-8"))


def test_the_manifest_is_of_this_source_and_these_kernels() -> None:
    listed = manifest()
    assert listed["source_sha256"] == source_sha256(ROOT), "run: python -m trispark.device_build"
    image = (ROOT / TARGET / FILE).read_bytes()
    assert listed["sha256"] == hashlib.sha256(image).hexdigest()
    assert checked_image() == image
    assert "release 13.0" in listed["compiler"]


def test_the_image_holds_code_for_both_chips_and_names_no_place() -> None:
    image = (ROOT / TARGET / FILE).read_bytes()
    assert image[:4] == b"\x50\xed\x55\xba"  # a fat binary
    flags = [struct.unpack_from("<I", image, found.start() + 48)[0] for found in re.finditer(b"\x7fELF", image)]
    assert sorted(str(each >> 8 & 0xFF) for each in flags) == sorted(CAPABILITIES)
    for kernel in KERNELS:
        assert image.count(b".text." + kernel.name.encode() + b"\0") >= len(CAPABILITIES), kernel.name
    for place in (str(ROOT), str(SOURCE.parent), "/usr/"):
        assert place.encode() not in image


@pytest.mark.parametrize("broken", ["missing", "changed", "no manifest", "manifest"])
def test_other_kernels_than_those_of_the_manifest_are_refused(tmp_path: Path, broken: str) -> None:
    (tmp_path / FILE).write_bytes((ROOT / TARGET / FILE).read_bytes())
    (tmp_path / MANIFEST).write_bytes((ROOT / TARGET / MANIFEST).read_bytes())
    assert checked_image(tmp_path)
    if broken == "missing":
        (tmp_path / FILE).unlink()
    elif broken == "changed":
        with (tmp_path / FILE).open("r+b") as file:
            file.seek(5000)
            file.write(b"\xff\x00\xff")
    elif broken == "no manifest":
        (tmp_path / MANIFEST).unlink()
    else:
        (tmp_path / MANIFEST).write_text("[]", encoding="utf-8")
    with pytest.raises(TwinError, match=r"TS-ADAPTER-KERNEL.*remedy"):
        checked_image(tmp_path)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["--check"]) == 1
    assert "TS-NATIVE-COMPILER" in capsys.readouterr().err


def test_a_source_that_does_not_compile_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from trispark import device_build

    compiler = tmp_path / "bin/nvcc"
    compiler.parent.mkdir()
    compiler.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'release 1.0' && exit 0\necho broken line >&2\nexit 2\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:/usr/bin:/bin")
    with pytest.raises(TrisparkError, match="broken line") as caught:
        device_build.build(ROOT, tmp_path / "out")
    assert caught.value.id == "TS-NATIVE-BUILD"


@pytest.mark.parametrize("name", MODULES)
def test_modules_import_without_torch(name: str) -> None:
    code = (
        "import sys; sys.modules.update(torch=None, sglang=None, triton=None);"
        f"import trispark_adapters.{name}; print('imported')"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(ROOT / "adapters")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "imported\n"
