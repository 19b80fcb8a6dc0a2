"""`./trispark site init` and `site check`: exit statuses, one line a problem, one JSON object."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trispark import cli
from trispark.cli import verb

ROOT = Path(__file__).resolve().parents[3]
Run = Callable[..., tuple[int, list[str], str]]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("experiments", "templates", "adapters", "inventory"):
        shutil.copytree(ROOT / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def run(checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.setattr(verb, "REPO", checkout)
    monkeypatch.delenv("TRISPARK_SITE", raising=False)

    def call(*arguments: str) -> tuple[int, list[str], str]:
        monkeypatch.setattr(sys, "argv", ["trispark", *arguments])
        status = cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.out + captured.err
        return status, captured.out.splitlines(), captured.err

    return call


def test_all_sites_without_a_name(run: Run) -> None:
    status, out, _ = run("site", "check")
    assert status == 0
    assert out == ["site: lab: no problem", "site: sparks (not configured: verbs refuse it): no problem"]


def test_a_new_site_is_made_checked_and_not_made_twice(run: Run, checkout: Path) -> None:
    status, out, _ = run("site", "init", "fleet")
    assert (status, out[0]) == (0, "site: fleet")
    assert "written: inventory/fleet/hosts.yml" in out
    assert run("site", "check", "fleet")[0] == 0
    status, _, err = run("site", "init", "fleet")
    assert (status, err.split(":")[1].strip()) == (3, "TS-SITE-EXISTS")


@pytest.mark.parametrize("arguments", [("init", "No Name"), ("check", "nope"), ("check", "../lab"), ("init",)])
def test_mistakes_of_the_command_line(run: Run, arguments: tuple[str, ...]) -> None:
    assert run("site", *arguments)[0] == 2


def test_each_problem_is_one_line_and_one_object(run: Run, checkout: Path) -> None:
    path = checkout / "inventory" / "sparks" / "group_vars" / "all" / "site.yml"
    text = path.read_text(encoding="utf-8").replace("site_stop_deadline_s: 420", "site_stop_deadline_s: -1")
    path.write_text(text.replace("site_boot_minutes: 30", "site_boot_minutes: soon"), encoding="utf-8")
    status, out, _ = run("site", "check", "sparks", "--json")
    assert status == 3
    report = json.loads(out[-1])["sites"][0]
    assert (report["name"], report["configured"], len(report["problems"])) == ("sparks", False, 2)
    assert out[0].endswith("2 problems")
    assert [line.split(":")[0] for line in out[1:3]] == ["TS-SITE-SCHEMA", "TS-SITE-SCHEMA"]
    assert {problem["id"] for problem in report["problems"]} == {"TS-SITE-SCHEMA"}


def test_a_directory_that_a_killed_init_left_is_no_site(run: Run, checkout: Path) -> None:
    (checkout / "inventory" / ".site-abc").mkdir()
    assert run("site", "check")[0] == 0
    assert run("status", "--site", ".site-abc")[0] == 2
