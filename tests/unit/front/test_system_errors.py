"""What the system refuses is one line with an id and a status, whatever the verb."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from trispark.cli import exit_codes, main


@pytest.mark.parametrize("error", [OSError(28, "No space left on device", "/d/f"), PermissionError("no"), OSError()])
def test_an_error_of_the_system_is_no_traceback(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(**_: object) -> None:
        raise error

    monkeypatch.setattr("trispark.cli.app.app", fails)
    monkeypatch.setattr(sys, "argv", ["trispark", "images", "attest", "x", "--json"])
    assert main() == exit_codes.FAILED
    shown = capsys.readouterr()
    assert "TS-CLI-SYSTEM" in shown.err
    assert "Traceback" not in shown.err
    assert json.loads(shown.out.splitlines()[-1])["error"]["observed"]


def test_a_context_below_a_file_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file/out")
    given = ["trispark", "images", "context", "engine-dev-dsv41-2", "--offline", "--out", out]
    monkeypatch.setattr(sys, "argv", given)
    assert main() == exit_codes.FAILED
    assert "TS-CLI-SYSTEM" in capsys.readouterr().err
