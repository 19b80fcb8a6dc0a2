"""Facts of a node: addresses as the real iproute2 gives them, and a program that is missing or says something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def program(path: Path, text: str) -> None:
    path.mkdir()
    (path / "ip").write_text(f"#!/bin/sh\n{text}\n")
    (path / "ip").chmod(0o755)


def test_addresses_by_interface(bench, tmp_path, monkeypatch):
    said = (
        '[{"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}, {"local": "::1"}]}, '
        '{"ifname": "roce0", "addr_info": [{"local": "198.51.100.9"}, {"family": "inet6"}]}, {"ifname": "down0"}]'
    )
    program(tmp_path / "bin", f"[ \"$*\" = '-j address' ] && echo '{said}'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert bench.ask("host", paths=[])["addresses"] == {
        "lo": ["127.0.0.1", "::1"],
        "roce0": ["198.51.100.9"],
        "down0": [],
    }


@pytest.mark.parametrize("text", [None, "exit 1", "echo no json"])
def test_addresses_that_cannot_be_read_are_no_empty_list(bench, tmp_path, monkeypatch, text):
    """A node without addresses would be judged as one that lacks a cable."""
    if text is None:
        (tmp_path / "bin").mkdir()
    else:
        program(tmp_path / "bin", text)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    error = bench.refused("host", paths=[])
    assert (error["id"], error["where"]) == ("TS-AGENT-ADDRESSES", "ip -j address")
    assert error["remedy"] == "install iproute2 on the node"
