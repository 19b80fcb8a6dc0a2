"""The fingerprint of a launch and the files that it guards."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark_adapters.autotune_files import Kept, folder_of
from trispark_adapters.autotune_launch import (
    BY_BOOT,
    BY_NODE,
    PACKAGES,
    UNKNOWN,
    VOLATILE,
    Launch,
    arguments,
    launch_of,
    sources,
    versions,
)
from trispark_hooks.registry import HookError

ARGV = ["launch_server.py", "--tp", "3", "--chunked-prefill-size", "768", "--node-rank", "1", "--port=8888"]
ENVIRON = {"DSV41_WO_A_W8": "1", "NCCL_BUFFSIZE": "1048576", "NCCL_IB_HCA": "roceP2p1s0f0", "HOME": "/root"}
PACKED = {"sglang": "0.5.21", "flashinfer-python": "0.6.18"}
BASE = launch_of(ARGV, ENVIRON, PACKED)
TUNER = {"gpu": "GB10"}


@pytest.mark.parametrize(
    ("argv", "environ", "packages", "same_common", "same_own"),
    [
        ([*ARGV[:5], "--node-rank", "2", "--port=9999"], ENVIRON, PACKED, True, True),
        ([*ARGV, "--dist-init-addr", "10.0.0.1:20001"], ENVIRON, PACKED, True, True),
        ([*ARGV, "--api-key", "secret"], ENVIRON, PACKED, True, True),
        ([*ARGV, "--ep-size", "1"], ENVIRON, PACKED, False, False),
        (["other.py", *ARGV[1:]], ENVIRON, PACKED, True, True),
        (ARGV, {**ENVIRON, "HOME": "/other", "PATH": "/bin"}, PACKED, True, True),
        (ARGV, {**ENVIRON, "DSV41_WO_A_W8": "0"}, PACKED, False, False),
        (ARGV, {**ENVIRON, "SGLANG_RUN_ID": "17"}, PACKED, True, True),
        (ARGV, {**ENVIRON, "DSV41_ENGRAM_PREFETCH": "1"}, PACKED, True, True),
        (ARGV, {**ENVIRON, "NCCL_IB_HCA": "rocep1s0f1"}, PACKED, True, False),
        (ARGV, {**ENVIRON, "B12X_ANY": "1"}, PACKED, False, False),
        (ARGV, {**ENVIRON, "DSV41_ENGINE_BUILD": "da64c5cbb"}, PACKED, False, False),
        (ARGV, ENVIRON, {**PACKED, "flashinfer-python": "0.7.1"}, False, False),
    ],
)
def test_what_belongs_to_a_launch(
    argv: list[str], environ: dict[str, str], packages: dict[str, str], same_common: bool, same_own: bool
) -> None:
    other = launch_of(argv, environ, packages)
    assert (other.common == BASE.common, other.own == BASE.own) == (same_common, same_own)


@given(st.dictionaries(st.sampled_from(sorted(VOLATILE)), st.text(max_size=5)))
def test_volatile_variables_never_count(volatile: dict[str, str]) -> None:
    assert launch_of(ARGV, {**ENVIRON, **volatile}, PACKED) == BASE


@given(
    st.sampled_from(["SGLANG_X", "DSV41_X", "SPARK_X", "B12X_X", "NCCL_X"]), st.text(max_size=5), st.text(max_size=5)
)
def test_every_other_controlled_variable_counts(name: str, one: str, other: str) -> None:
    assert (launch_of(ARGV, {name: one}, PACKED).common == launch_of(ARGV, {name: other}, PACKED).common) == (
        one == other
    )


@given(st.sampled_from(sorted(BY_NODE)), st.text(max_size=5))
def test_ranks_agree_although_their_fabric_names_differ(name: str, value: str) -> None:
    assert launch_of(ARGV, {**ENVIRON, name: value}, PACKED).common == BASE.common


@given(st.lists(st.sampled_from(["--tp", "3", "--x", "--y=1"]), max_size=6), st.sampled_from(sorted(BY_BOOT)))
def test_options_of_rank_and_boot_vanish_in_both_forms(words: list[str], option: str) -> None:
    assert arguments(["p", *words, option, "v"]) == arguments(["p", *words, f"{option}=v"]) == arguments(["p", *words])


def test_words_do_not_run_together() -> None:
    assert launch_of(["p", "ab", "c"], {}, PACKED).own != launch_of(["p", "a", "bc"], {}, PACKED).own


@pytest.mark.parametrize(
    ("argv", "packages"), [(["p"], PACKED), ([], PACKED), (["p", "--port", "1"], PACKED), (ARGV, {"sglang": "absent"})]
)
def test_an_unknown_launch_equals_nothing(argv: list[str], packages: dict[str, str]) -> None:
    launch = launch_of(argv, ENVIRON, packages)
    assert launch == UNKNOWN
    assert not launch.matches("")
    assert not launch.matches(launch.own)
    assert not BASE.matches("")


def test_versions_say_what_is_absent() -> None:
    def version_of(name: str) -> str:
        if name == "torch":
            return "2.13"
        raise metadata.PackageNotFoundError(name)

    assert versions(version_of) == {name: "2.13" if name == "torch" else "absent" for name in PACKAGES}


def test_sources_are_known_by_content_and_place(tmp_path: Path) -> None:
    def made(**files: str) -> str:
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        for name, text in files.items():
            path = place / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".py").write_text(text)
        (place / "cache.pyc").write_text(str(place))
        return sources(place)

    known = made(a="x", b__c="y")
    assert made(b__c="y", a="x") == known
    others = [made(a="x", b__c="z"), made(a="x", b__d="y"), made(a="x"), made(a="xy", b__c=""), made(a="x", c="y")]
    assert len({known, *others}) == len(others) + 1


def cache(directory: Path, launch: Launch = BASE, rank: int = 0, tactics: int = 0) -> Kept:
    path = directory / f"rank_tp{rank}_pp0_dp0.json"
    path.write_text(json.dumps({"_metadata": TUNER, "tactic": tactics}))
    return Kept(path, launch)


def test_ranks_with_other_tactics_agree(tmp_path: Path) -> None:
    ranks = [cache(tmp_path, rank=rank, tactics=rank) for rank in range(3)]
    assert [kept.digest(TUNER) for kept in ranks] == [""] * 3  # no sidecar yet
    assert all(kept.save() for kept in ranks)
    digests = {kept.digest(TUNER) for kept in ranks}
    assert len(digests) == 1
    assert digests != {""}


def test_a_rank_that_ended_before_it_saved_makes_the_ranks_differ(tmp_path: Path) -> None:
    ranks = [cache(tmp_path, rank=rank, tactics=rank) for rank in range(3)]
    assert all(kept.save(4) for kept in ranks)
    assert len({kept.digest(TUNER) for kept in ranks}) == 1
    assert all(kept.save(kept.tunings + 1) for kept in ranks[:2])
    first, second, third = (kept.digest(TUNER) for kept in ranks)
    assert first == second != third
    assert third


def test_ranks_of_another_launch_or_tuner_do_not(tmp_path: Path) -> None:
    kept = cache(tmp_path)
    kept.save()
    other = Kept(kept.path, launch_of([*ARGV, "--x"], ENVIRON, PACKED))
    assert kept.digest(TUNER) != ""
    assert other.digest(TUNER) == ""
    assert kept.digest({"gpu": "H200"}) == ""


@pytest.mark.parametrize(
    ("sidecar", "usable"),
    [
        (BASE.own + " 1\n", True),
        (BASE.own + " 17\n", True),
        (BASE.own + "\n", False),
        (BASE.own + " 0\n", False),
        (BASE.own + " x\n", False),
        ("", False),
        ("0" * 64 + " 1", False),
        (BASE.common + " 1", False),
        (None, False),
        ("\xff", False),
    ],
)
def test_a_cache_of_another_launch_is_deleted_and_nothing_else(
    tmp_path: Path, sidecar: str | None, usable: bool
) -> None:
    kept = cache(tmp_path)
    if sidecar is not None:
        kept.sidecar.write_bytes(sidecar.encode("latin-1"))
    neighbours = [tmp_path / name for name in ("rank_tp1_pp0_dp0.json", "rank_tp0_pp0_dp0.txt", "note.json")]
    for path in neighbours:
        path.write_text("x")
    assert kept.prepare() is usable
    assert kept.path.is_file() is usable
    assert kept.sidecar.is_file() is usable
    assert all(path.read_text() == "x" for path in neighbours)


def test_a_damaged_cache_is_deleted(tmp_path: Path) -> None:
    kept = cache(tmp_path)
    kept.save()
    kept.path.write_text("{")
    assert kept.prepare() is False
    assert not kept.path.exists()


def test_an_unknown_launch_uses_and_saves_nothing(tmp_path: Path) -> None:
    kept = cache(tmp_path, UNKNOWN)
    kept.sidecar.write_text("\n")
    assert kept.digest(TUNER) == ""
    assert kept.prepare() is False
    kept = cache(tmp_path, UNKNOWN)
    assert kept.save() is False
    assert not kept.sidecar.exists()


def test_a_file_of_another_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tactics.json"
    path.write_text("{}")
    with pytest.raises(HookError, match="TS-ADAPTER-AUTOTUNE-FILE"):
        Kept(path, BASE).prepare()
    assert path.exists()


def test_launches_do_not_share_a_file() -> None:
    path = Path("/cache/key/rank_tp0_pp0_dp0.json")
    other = launch_of([*ARGV, "--x"], ENVIRON, PACKED)
    assert folder_of(path, BASE) == Path(f"/cache/key/{BASE.common[:16]}/rank_tp0_pp0_dp0.json")
    assert folder_of(path, BASE) != folder_of(path, other)
    assert folder_of(path, UNKNOWN) == path
