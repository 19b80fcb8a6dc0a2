"""What proves where an image comes from lies on the node, whole, as long as a record or a generation needs it."""

from __future__ import annotations

import json

import pytest

from trispark_node import provenance
from trispark_node.canonical import canonical_json, sha256_hex
from trispark_node.fields import Fields
from trispark_node.mutation import Mode, mutate
from trispark_node.provenance import FACT, Fact, StoreRequest
from trispark_node.provenance_files import MOST_BYTES, SBOM, SIGNATURE, STATEMENT

DIGEST = "a" * 64
IMAGE = f"registry:5000/trispark/lab-engine@sha256:{DIGEST}"
"""That of the generations of these tests."""
OTHER = "registry:5000/trispark/lab-engine@sha256:" + "c" * 64
ME = {"site": "lab", "node": "spark1"}


def request(tag="one", image=IMAGE, signed=True):
    files = {STATEMENT: f'{{"tag":"{tag}"}}\n', SBOM: "{}\n"}
    if signed:
        files[SIGNATURE] = f"signature {tag}\n"
    hashes = {name: sha256_hex(text.encode()) for name, text in files.items()}
    fact = {
        "image": image,
        "statement_sha256": hashes[STATEMENT],
        "sbom_sha256": hashes[SBOM],
        "signature_sha256": hashes.get(SIGNATURE),
        "signer": "builder@example" if signed else None,
        "key": "ED25519 key SHA256:x" if signed else None,
    }
    return {"fact": fact, "files": files}


def kept(bench):
    """{path below provenance/: text}."""
    root = bench.node.layout.provenance
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


def record(bench, *facts):
    head = bench.ask("record-head")["head"]
    previous = {"seq": head["seq"], "hash": head["hash"]} if head else None
    seq = previous["seq"] + 1 if previous else 1
    body = {"id": f"r{seq}", "seq": seq, "previous": previous, "provenance": list(facts)}
    bench.ask("record-append", record=body, previous=previous)


def test_it_is_stored_once_and_a_rollback_finds_what_was_judged(bench, active):
    one = request()
    generation = active["generation"]
    assert bench.ask("generation-show", generation=generation)["provenance"] is None
    planned = bench.ask("provenance-store", **one, check=True)
    assert planned["changed"]
    assert not bench.node.layout.provenance.exists()
    done = bench.ask("provenance-store", **one)
    assert done == planned
    assert {name.rpartition("/")[2]: text for name, text in kept(bench).items()} == {
        **one["files"],
        FACT: canonical_json(one["fact"]).decode() + "\n",
    }
    before = bench.tree()
    assert not bench.ask("provenance-store", **one)["changed"]
    assert bench.tree() == before
    assert bench.ask("generation-show", generation=generation)["provenance"] == one["fact"]
    modes = {path.stat().st_mode & 0o777 for path in bench.node.layout.provenance.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_an_image_that_is_signed_anew_leaves_what_a_record_points_to(bench, active):
    first = bench.ask("provenance-store", **request("one"))
    second = bench.ask("provenance-store", **request("two"))
    assert first["id"] != second["id"]
    assert kept(bench)[f"{DIGEST}/{first['id']}/{STATEMENT}"] == request("one")["files"][STATEMENT]
    shown = bench.ask("generation-show", generation=active["generation"])["provenance"]
    assert shown == request("two")["fact"]
    # Back to the first one: its files are there, the fact is not.
    assert bench.ask("provenance-store", **request("one"))["changed"]
    assert bench.ask("generation-show", generation=active["generation"])["provenance"] == request("one")["fact"]


def changed(**values):
    return lambda asked: asked["fact"].update(values)


BAD = {
    "a byte of the statement": (lambda asked: asked["files"].update({STATEMENT: "{}\n"}), "TS-AGENT-PROVENANCE"),
    "a byte of the signature": (lambda asked: asked["files"].update({SIGNATURE: "x"}), "TS-AGENT-PROVENANCE"),
    "no bill": (lambda asked: asked["files"].pop(SBOM), "TS-AGENT-REQUEST"),
    "no signature": (lambda asked: asked["files"].pop(SIGNATURE), "TS-AGENT-REQUEST"),
    "a signature that is not named": (changed(signature_sha256=None), "TS-AGENT-REQUEST"),
    "another file": (lambda asked: asked["files"].update({"../x": "x"}), "TS-AGENT-REQUEST"),
    "a huge statement": (
        lambda asked: asked["files"].update({STATEMENT: "x" * (MOST_BYTES[STATEMENT] + 1)}),
        "TS-AGENT-REQUEST",
    ),
    "an image by tag": (changed(image="registry:5000/x:latest"), "TS-AGENT-REQUEST"),
    "a short hash": (changed(sbom_sha256="0"), "TS-AGENT-REQUEST"),
    "two lines of a signer": (changed(signer="a\nb"), "TS-AGENT-REQUEST"),
    "one key more": (changed(more=1), "TS-AGENT-REQUEST"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_not_what_was_judged_is_refused(bench, what):
    asked = request()
    change, error_id = BAD[what]
    change(asked)
    assert bench.refused("provenance-store", **asked)["id"] == error_id
    assert not bench.node.layout.provenance.exists()


@pytest.mark.parametrize("damage", ["changed", "removed", "added", "a link", "a file in its place", "unreadable fact"])
def test_damage_is_mended_by_the_same_again(bench, active, damage):
    done = bench.ask("provenance-store", **request())
    directory = bench.node.layout.provenance / DIGEST / done["id"]
    if damage == "changed":
        (directory / STATEMENT).write_text("x")
    elif damage == "removed":
        (directory / SBOM).unlink()
    elif damage == "added":
        (directory / "more").write_text("x")
    elif damage == "a link":
        (directory / SBOM).unlink()
        (directory / SBOM).symlink_to(directory / STATEMENT)
    elif damage == "a file in its place":
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
        directory.write_text("x")
    else:
        (directory.parent / FACT).write_text("{")
        # No way back depends on it.
        assert bench.ask("generation-show", generation=active["generation"])["provenance"] is None
    assert bench.ask("provenance-store", **request())["changed"]
    whole = kept(bench)
    assert not bench.ask("provenance-store", **request())["changed"]
    assert kept(bench) == whole
    assert len(whole) == 4


def test_a_death_at_any_step_leaves_whole_files_and_the_same_again_ends_it(bench, crashes):
    asked = StoreRequest.parse(Fields(request(), "request"))
    mode = Mode(check=False, lock_wait_s=0)

    def reset():
        bench.node.disk.remove_tree(bench.node.layout.root)

    def operation(disk):
        node = bench.with_disk(disk)
        mutate(node, "provenance-store", mode, lambda: provenance.plan_store(node, asked))

    steps = 0
    for _ in crashes(operation, reset):
        steps += 1
        fact = provenance.read_fact(bench.node, IMAGE)
        directory = bench.node.layout.provenance_of(DIGEST) / asked.fact.id
        if fact is not None:
            assert {path.name for path in directory.iterdir()} == set(asked.content)
        if bench.node.layout.journal.exists():
            bench.ask("recover")
        bench.ask("provenance-store", **request())
        assert len(kept(bench)) == 4
        assert not bench.node.journal.read().pending()
    assert steps > 10


def test_prune_keeps_what_a_record_or_a_generation_needs(bench, active):
    first = bench.ask("provenance-store", **request("one"))
    record(bench, request("one")["fact"])
    second = bench.ask("provenance-store", **request("two"))
    bench.ask("provenance-store", **request("one", OTHER))
    third = bench.ask("provenance-store", **request("two", OTHER))
    said = bench.ask("prune", check=True)
    assert said["provenance"] == {"removed": ["c" * 64]}
    bench.ask("prune")
    there = {"/".join(name.split("/")[:2]) for name in kept(bench)}
    assert there == {f"{DIGEST}/{FACT}", f"{DIGEST}/{first['id']}", f"{DIGEST}/{second['id']}"}
    assert not bench.ask("prune")["changed"]
    # Recorded, it stays without a generation; what was never recorded goes, but not what a rollback would name.
    bench.ask("provenance-store", **request("one", OTHER))
    record(bench, request("one", OTHER)["fact"])
    bench.ask("provenance-store", **request("three", OTHER))
    bench.ask("provenance-store", **request("two", OTHER))
    bench.ask("prune")
    ids = {path.name for path in (bench.node.layout.provenance / ("c" * 64)).iterdir()}
    assert ids == {FACT, third["id"], Fact.parse(Fields(request("one", OTHER)["fact"], "x")).id}


def test_prune_removes_nothing_of_it_while_a_generation_cannot_be_read(bench, active, stage_request):
    bench.ask("provenance-store", **request("one", OTHER))
    other = stage_request("other")
    bench.ask("stage", **other)
    (bench.node.layout.generation(other["generation"]) / "spec.json").write_text("{")
    assert bench.ask("prune")["provenance"] == {"removed": []}
    assert (bench.node.layout.provenance / ("c" * 64)).is_dir()


def test_records_of_other_shapes_name_nothing(bench, active):
    bench.ask("provenance-store", **request("one", OTHER))
    record(bench, {"image": OTHER}, 1, None)
    assert bench.ask("prune")["provenance"]["removed"] == ["c" * 64]


def test_it_goes_with_a_backup_and_stays_with_the_records(bench, make_bench, quick_path, active):
    bench.ask("provenance-store", **request())
    record(bench, request()["fact"])
    content = bench.ask("backup", **ME)["content"]
    fresh = make_bench(quick_path / "fresh")
    fresh.ask("restore", **ME, content=content)
    assert kept(fresh) == kept(bench)
    assert len(kept(fresh)) == 4
    assert not fresh.ask("restore", **ME, content=content)["changed"]
    assert "provenance" in fresh.ask("uninstall")["keep"]
    assert kept(fresh) == kept(bench)
    fresh.ask("uninstall", records="remove")
    assert not fresh.node.layout.provenance.exists()


def test_a_support_bundle_lists_it(bench, active):
    bench.ask("provenance-store", **request())
    listed = [entry["path"] for entry in bench.ask("support")["files"]["listed"]]
    assert any(path.startswith(f"provenance/{DIGEST}/") and path.endswith(STATEMENT) for path in listed)
    assert json.dumps(request()["fact"]["key"]) not in json.dumps(listed)
