"""The benchmark of lookups: every arm reads, and says how often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trispark import row_store_bench


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    argv = ["--directory", str(tmp_path), "--rows", "2000", "--rounds", "4", "--readers", "4"]
    assert row_store_bench.main(argv) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["cache_hit_ns"] > 0
    for batch in ("8", "32", "64"):
        figures = result["batches"][batch]
        assert figures["reads_per_row"]["threads"] == 1.0
        assert figures["reads_per_row"]["threads_unpacked"] == 2.0
        assert figures["us"]["python"] > 0
        assert figures.get("lookup_vs_fio", "not measured: fio missing") == "not measured: fio missing"
    assert list(tmp_path.iterdir()) == []
