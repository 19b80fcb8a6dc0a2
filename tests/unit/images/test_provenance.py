"""Statements, bills of materials and signatures: made the same each time, and refused when one byte is another one."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from importlib.resources import files as resources

import pytest
from built_images import BUILT, allow, built, make_key, write_root
from hypothesis import given, settings
from hypothesis import strategies as st

from trispark.canonical import canonical_json
from trispark.errors import TrisparkError
from trispark.images.attestation import fact_of, read_attestation, require_signed
from trispark.images.built import BuiltImage, Dependency, read_built, write_built
from trispark.images.chain import chain, find_digest, lines, provenance_of
from trispark.images.provenance import attest, statement
from trispark.images.root_inventory import inventory_of
from trispark.images.sbom import sbom
from trispark.images.signing import NAMESPACE, SshKeygen, SshSigner, SshVerifier
from trispark_node.canonical import sha256_hex
from trispark_node.provenance_files import MOST_BYTES, SBOM, SIGNATURE, STATEMENT

DIGEST = BUILT.manifest_digest


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    directory = tmp_path_factory.mktemp("keys")
    return {name: make_key(directory, name) for name in ("builder", "other")}


@pytest.fixture
def store(tmp_path, keys):
    """(directory of statements, verifier) of an image that `builder` signed, who is trusted."""
    root = write_root(tmp_path / "root")
    attest(BUILT, inventory_of(root), SshSigner(keys["builder"], SshKeygen()), tmp_path / "store")
    signers = allow(tmp_path / "signers", ("builder@example", keys["builder"], ""))
    return tmp_path / "store", SshVerifier(signers, SshKeygen())


def place(directory):
    return directory / DIGEST.partition(":")[2]


def judge(directory, verifier, digest=DIGEST):
    return require_signed(read_attestation(directory, digest), verifier)


def refused(call, *arguments, **named) -> TrisparkError:
    with pytest.raises(TrisparkError) as caught:
        call(*arguments, **named)
    assert "\n" not in str(caught.value)
    return caught.value


def test_what_was_signed_is_verified_and_says_who(store, keys):
    directory, verifier = store
    found = judge(directory, verifier)
    fingerprint = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(keys["builder"])], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    assert (found.signer, found.key) == ("builder@example", f"ED25519 key {fingerprint}")
    fact = fact_of(read_attestation(directory, DIGEST), BUILT.reference, found).as_dict()
    for name, key in ((STATEMENT, "statement_sha256"), (SBOM, "sbom_sha256"), (SIGNATURE, "signature_sha256")):
        assert fact[key] == sha256_hex((place(directory) / name).read_bytes())
    # Also by hand, with nothing of ours.
    by_hand = ["ssh-keygen", "-Y", "verify", "-n", NAMESPACE, "-I", "builder@example", "-f", str(verifier.signers)]
    with (place(directory) / STATEMENT).open("rb") as message:
        subprocess.run([*by_hand, "-s", str(place(directory) / SIGNATURE)], stdin=message, check=True)


def flip(name, at):
    def change(path, _keys):
        data = bytearray((path / name).read_bytes())
        data[at if at >= 0 else len(data) + at] ^= 1
        (path / name).write_bytes(bytes(data))

    return change


def flip_in_hash(path, _keys):
    """A byte that leaves canonical JSON canonical: only the signature can tell."""
    text = (path / STATEMENT).read_text()
    (path / STATEMENT).write_text(text.replace("4" * 64, "4" * 63 + "6", 1))


def consistent(path, _keys):
    """Bill and statement agree with each other, and not with the signature."""
    bill = json.loads((path / SBOM).read_text())
    bill["components"] = bill["components"][1:]
    (path / SBOM).write_text(canonical_json(bill) + "\n")
    said = json.loads((path / STATEMENT).read_text())
    digest = {"sha256": sha256_hex((path / SBOM).read_bytes())}
    said["predicate"]["runDetails"]["byproducts"][0]["digest"] = digest
    (path / STATEMENT).write_text(canonical_json(said) + "\n")


def bill_alone(path, _keys):
    bill = json.loads((path / SBOM).read_text())
    bill["components"] = bill["components"][1:]
    (path / SBOM).write_text(canonical_json(bill) + "\n")


def no_bill_named(path, _keys):
    said = json.loads((path / STATEMENT).read_text())
    del said["predicate"]["runDetails"]["byproducts"]
    (path / STATEMENT).write_text(canonical_json(said) + "\n")


def other_subject(path, keys):
    said = statement(built(manifest_digest="sha256:" + "9" * 64), sha256_hex((path / SBOM).read_bytes()))
    (path / STATEMENT).write_text(canonical_json(said) + "\n")
    sign(path, keys["builder"])


def sign(path, key, namespace=NAMESPACE):
    done = subprocess.run(
        ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", str(key)],
        input=(path / STATEMENT).read_bytes(),
        capture_output=True,
        check=True,
    )
    (path / SIGNATURE).write_bytes(done.stdout)


def linked(name):
    def change(path, _keys):
        (path / name).rename(path.parent / name)
        (path / name).symlink_to(path.parent / name)

    return change


def fifo(path, _keys):
    (path / STATEMENT).unlink()
    os.mkfifo(path / STATEMENT)


def huge(name):
    def change(path, _keys):
        with (path / name).open("ab") as file:
            file.write(b" " * (MOST_BYTES[name] + 1))

    return change


def shown_again(path, _keys):
    content = json.loads((path / STATEMENT).read_text())
    (path / STATEMENT).write_text(json.dumps(content, indent=1))


def another_type(path, _keys):
    said = json.loads((path / STATEMENT).read_text()) | {"_type": "https://in-toto.io/Statement/v0.1"}
    (path / STATEMENT).write_text(canonical_json(said) + "\n")


TAMPERS = {
    "statement: first byte": (flip(STATEMENT, 0), "TS-PROVENANCE-FORM"),
    "statement: last byte": (flip(STATEMENT, -1), "TS-PROVENANCE-FORM"),
    "statement: written with blanks": (shown_again, "TS-PROVENANCE-FORM"),
    "statement: another type": (another_type, "TS-PROVENANCE-FORM"),
    "statement: one digit of a hash": (flip_in_hash, "TS-PROVENANCE-SIGNATURE"),
    "statement and sbom, in agreement": (consistent, "TS-PROVENANCE-SIGNATURE"),
    "statement: a list": (lambda path, _: (path / STATEMENT).write_text("[]\n"), "TS-PROVENANCE-FORM"),
    "statement: no utf-8": (lambda path, _: (path / STATEMENT).write_bytes(b"\xff"), "TS-PROVENANCE-FORM"),
    "statement: deep": (lambda path, _: (path / STATEMENT).write_text("[" * 5000), "TS-PROVENANCE-FORM"),
    "statement: of another image": (other_subject, "TS-PROVENANCE-SUBJECT"),
    "statement: removed": (lambda path, _: (path / STATEMENT).unlink(), "TS-PROVENANCE-FILE"),
    "statement: a link": (linked(STATEMENT), "TS-PROVENANCE-FILE"),
    "statement: a fifo": (fifo, "TS-PROVENANCE-FILE"),
    "statement: huge": (huge(STATEMENT), "TS-PROVENANCE-FILE"),
    "statement: names no sbom": (no_bill_named, "TS-PROVENANCE-SBOM"),
    "sbom: last byte": (flip(SBOM, -1), "TS-PROVENANCE-FORM"),
    "sbom: a component less": (bill_alone, "TS-PROVENANCE-SBOM"),
    "sbom: no components": (lambda path, _: (path / SBOM).write_text("{}\n"), "TS-PROVENANCE-FORM"),
    "sbom: removed": (lambda path, _: (path / SBOM).unlink(), "TS-PROVENANCE-FILE"),
    "sbom: a link": (linked(SBOM), "TS-PROVENANCE-FILE"),
    "sbom: huge": (huge(SBOM), "TS-PROVENANCE-FILE"),
    "signature: in its armor": (flip(SIGNATURE, 0), "TS-PROVENANCE-SIGNATURE"),
    "signature: cut off": (
        lambda path, _: (path / SIGNATURE).write_bytes((path / SIGNATURE).read_bytes()[:100]),
        "TS-PROVENANCE-SIGNATURE",
    ),
    "signature: empty": (lambda path, _: (path / SIGNATURE).write_bytes(b""), "TS-PROVENANCE-SIGNATURE"),
    "signature: another namespace": (lambda path, keys: sign(path, keys["builder"], "file"), "TS-PROVENANCE-NAMESPACE"),
    "signature: another signer": (lambda path, keys: sign(path, keys["other"]), "TS-PROVENANCE-SIGNER"),
    "signature: removed": (lambda path, _: (path / SIGNATURE).unlink(), "TS-PROVENANCE-UNSIGNED"),
    "signature: a link": (linked(SIGNATURE), "TS-PROVENANCE-FILE"),
    "signature: huge": (huge(SIGNATURE), "TS-PROVENANCE-FILE"),
    "directory: a link": (
        lambda path, _: (path.rename(path.parent / "x"), path.symlink_to(path.parent / "x")),
        "TS-PROVENANCE-NONE",
    ),
}


@pytest.mark.parametrize("what", TAMPERS)
def test_every_change_is_refused_by_its_id(store, keys, what):
    directory, verifier = store
    change, error_id = TAMPERS[what]
    change(place(directory), keys)
    error = refused(judge, directory, verifier)
    assert error.id == error_id
    assert str(place(directory)) in error.where


def test_no_bit_of_a_signature_can_be_another_one(store):
    directory, verifier = store
    path = place(directory) / SIGNATURE
    whole = path.read_bytes()
    body = range(whole.index(b"\n") + 1, whole.rindex(b"\n-----END"))
    # The end of a base64 text may have bits that say nothing.
    for at in random.Random(1).sample(body[:-4], 12):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert refused(judge, directory, verifier).id in ("TS-PROVENANCE-SIGNATURE", "TS-PROVENANCE-NAMESPACE"), at


def test_the_provenance_of_another_image_is_not_there(store):
    directory, verifier = store
    assert refused(judge, directory, verifier, "sha256:" + "9" * 64).id == "TS-PROVENANCE-NONE"
    # Copied to the other one's place, it is of another subject.
    place(directory).rename(directory / ("9" * 64))
    assert refused(judge, directory, verifier, "sha256:" + "9" * 64).id == "TS-PROVENANCE-SUBJECT"


PAST, FUTURE = 'valid-before="20200101"', 'valid-after="20990101"'


@pytest.mark.parametrize(
    ("name", "options", "error_id"),
    [
        ("builder@example", PAST, "TS-PROVENANCE-EXPIRED"),
        ("builder@example", FUTURE, "TS-PROVENANCE-EXPIRED"),
        ("builder@example", 'namespaces="git"', "TS-PROVENANCE-SIGNER"),
        ("*@example", "", "TS-PROVENANCE-SIGNER"),
        ("builder@example", f'namespaces="git,{NAMESPACE}"', None),
        ("*@example,builder@example", "", None),
    ],
)
def test_whom_the_site_trusts(store, keys, tmp_path, name, options, error_id):
    directory, verifier = store
    verifier = replace(verifier, signers=allow(tmp_path / "some", (name, keys["builder"], options)))
    if error_id is None:
        assert judge(directory, verifier).signer == "builder@example"
    else:
        assert refused(judge, directory, verifier).id == error_id


def test_a_key_that_was_valid_then(store, keys, tmp_path):
    directory, verifier = store
    verifier = replace(verifier, signers=allow(tmp_path / "some", ("builder@example", keys["builder"], PAST)))
    assert judge(directory, replace(verifier, at=datetime(2019, 6, 1, tzinfo=UTC))).signer == "builder@example"
    assert refused(judge, directory, replace(verifier, at=datetime(2020, 6, 1, tzinfo=UTC))).id.endswith("EXPIRED")


def test_a_revoked_key(store, keys, tmp_path):
    directory, verifier = store
    assert judge(directory, replace(verifier, revoked=keys["other"].with_suffix(".pub")))
    error = refused(judge, directory, replace(verifier, revoked=keys["builder"].with_suffix(".pub")))
    assert error.id == "TS-PROVENANCE-REVOKED"
    # A list that cannot be read trusts nobody.
    error = refused(judge, directory, replace(verifier, revoked=tmp_path / "nothing"))
    assert (error.id, error.where) == ("TS-PROVENANCE-SIGNERS", str(tmp_path / "nothing"))


@pytest.mark.parametrize("content", [None, b"", b"builder@example no key\n"])
def test_signers_that_name_nobody(store, tmp_path, content):
    directory, verifier = store
    if content is not None:
        (tmp_path / "some").write_bytes(content)
    error = refused(judge, directory, replace(verifier, signers=tmp_path / "some"))
    assert error.id == ("TS-PROVENANCE-SIGNERS" if content is None else "TS-PROVENANCE-SIGNER")


def test_without_ssh_keygen(store):
    directory, verifier = store
    error = refused(judge, directory, replace(verifier, tool=SshKeygen("/nowhere/ssh-keygen")))
    assert error.id == "TS-PROVENANCE-TOOL"


def test_a_tool_that_does_not_end(store, tmp_path, monkeypatch):
    directory, verifier = store
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr("trispark.images.signing.DEADLINE_S", 0.2)
    assert refused(judge, directory, replace(verifier, tool=SshKeygen(str(slow)))).id == "TS-PROVENANCE-TOOL"


@pytest.mark.parametrize("state", ["missing", "open", "passphrase", "no key"])
def test_a_key_that_cannot_sign(tmp_path, state):
    key = tmp_path / "k" if state == "missing" else make_key(tmp_path, "k", "secret" if state == "passphrase" else "")
    if state == "open":
        key.chmod(0o644)
    if state == "no key":
        key.write_text("SECRET-CONTENT\n")
        key.with_suffix(".pub").unlink()
    tool = SshKeygen(environment={"PATH": os.environ["PATH"], "HOME": str(tmp_path)})
    error = refused(attest, BUILT, inventory_of(write_root(tmp_path / "root")), SshSigner(key, tool), tmp_path / "s")
    assert (error.id, error.where) == ("TS-PROVENANCE-KEY", str(key))
    assert (error.remedy == f"chmod 600 {key}") == (state == "open")
    assert ("Permissions 0644" in error.observed) == (state == "open")
    assert "SECRET" not in str(error)
    assert not (tmp_path / "s").exists() or not list((tmp_path / "s").iterdir())


def test_an_agent_signs_for_a_key_with_a_passphrase(tmp_path):
    key = make_key(tmp_path, "k", "secret")
    socket = tmp_path / "agent"
    # It has its socket when this returns, and goes on in the background.
    said = subprocess.run(["ssh-agent", "-a", str(socket)], capture_output=True, text=True, check=True).stdout
    agent = int(re.search(r"SSH_AGENT_PID=(\d+)", said)[1])
    try:
        tool = SshKeygen(environment={**os.environ, "SSH_AUTH_SOCK": str(socket)})
        helper = tmp_path / "askpass"
        helper.write_text("#!/bin/sh\necho secret\n")
        helper.chmod(0o755)
        adding = {**os.environ, "SSH_AUTH_SOCK": str(socket), "SSH_ASKPASS": str(helper)}
        subprocess.run(
            ["ssh-add", "-q", str(key)],
            check=True,
            stdin=subprocess.DEVNULL,
            env={**adding, "SSH_ASKPASS_REQUIRE": "force"},
        )
        signers = allow(tmp_path / "signers", ("b@example", key, ""))
        key.unlink()  # the public one alone, whose private half the agent has
        attest(
            BUILT, inventory_of(write_root(tmp_path / "root")), SshSigner(key.with_suffix(".pub"), tool), tmp_path / "s"
        )
        assert judge(tmp_path / "s", SshVerifier(signers, SshKeygen())).signer == "b@example"
    finally:
        os.kill(agent, signal.SIGTERM)


def test_where_nothing_can_be_written_it_is_said(tmp_path):
    (tmp_path / "store").write_text("a file in the place of the directory")
    error = refused(attest, BUILT, inventory_of(write_root(tmp_path / "root")), None, tmp_path / "store")
    assert (error.id, error.observed) == ("TS-PROVENANCE-FILE", "File exists")


def test_again_with_something_else_replaces_the_whole(store, keys, tmp_path):
    directory, verifier = store
    before = {path.name: path.read_bytes() for path in place(directory).iterdir()}
    inventory = inventory_of(write_root(tmp_path / "root"))
    same = attest(BUILT, inventory, SshSigner(keys["builder"], SshKeygen()), directory)
    assert {path.name: path.read_bytes() for path in same.directory.iterdir()} == before
    attest(replace(BUILT, commit=None), inventory, None, directory)
    assert sorted(path.name for path in place(directory).iterdir()) == sorted([STATEMENT, SBOM])
    assert refused(judge, directory, verifier).id == "TS-PROVENANCE-UNSIGNED"
    assert [path.name for path in directory.iterdir()] == [place(directory).name]


hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=12)
images = st.builds(
    BuiltImage,
    name=st.just("x"),
    repository=st.just("r.example/x"),
    manifest_digest=hashes.map("sha256:".__add__),
    config_digest=hashes.map("sha256:".__add__),
    architecture=st.sampled_from(["amd64", "arm64"]),
    dockerfile=names,
    dockerfile_sha256=hashes,
    base=st.none() | names,
    base_digest=hashes.map("sha256:".__add__),
    arguments=st.dictionaries(names, names, max_size=4),
    context=st.dictionaries(names, hashes, max_size=6),
    dependencies=st.lists(
        st.builds(Dependency, names, names, st.sampled_from(["pkg:pypi/a@1", "pkg:deb/debian/b@2"]), hashes), max_size=5
    ).map(tuple),
    commit=st.none() | st.just("e" * 40),
)


def test_without_a_key_a_signature_of_the_same_bytes_stays(store, keys, tmp_path):
    directory, verifier = store
    before = (place(directory) / SIGNATURE).read_bytes()
    found = attest(BUILT, inventory_of(tmp_path / "root"), None, directory)
    assert (place(directory) / SIGNATURE).read_bytes() == before
    assert found.signature == sha256_hex(before)
    assert (found.kept, found.lost) == (judge(directory, verifier).key, False)
    # A statement that was changed on the disk is written anew, and then the signature is of it again.
    flip_in_hash(place(directory), keys)
    assert attest(BUILT, inventory_of(tmp_path / "root"), None, directory).kept == found.kept
    assert judge(directory, verifier).signer == "builder@example"


SPOILED = {
    "of another statement": lambda path, keys: None,
    "a bit of it": flip(SIGNATURE, 60),
    "for another purpose": lambda path, keys: sign(path, keys["builder"], "file"),
    "a link": linked(SIGNATURE),
    "too large": huge(SIGNATURE),
}


@pytest.mark.parametrize("what", SPOILED)
def test_without_a_key_another_signature_does_not_stay(store, keys, tmp_path, what):
    directory, _ = store
    SPOILED[what](place(directory), keys)
    image = built(arguments={"PYTHON": "3.12"}) if what == "of another statement" else BUILT
    found = attest(image, inventory_of(tmp_path / "root"), None, directory)
    assert (found.signature, found.kept, found.lost) == (None, None, True)
    assert not (place(directory) / SIGNATURE).exists()


def test_a_signature_that_nobody_can_look_at_is_not_lost(store, tmp_path):
    directory, verifier = store
    root = inventory_of(tmp_path / "root")
    assert refused(attest, BUILT, root, None, directory, SshKeygen("/nowhere/ssh-keygen")).id == "TS-PROVENANCE-TOOL"
    assert judge(directory, verifier).signer == "builder@example"


def shuffled(image, chance):
    def turned(values):
        pairs = list(values.items())
        chance.shuffle(pairs)
        return dict(pairs)

    entries = list(image.dependencies)
    chance.shuffle(entries)
    return replace(image, arguments=turned(image.arguments), context=turned(image.context), dependencies=tuple(entries))


@given(image=images, chance=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_same_image_gives_the_same_bytes_whatever_the_order(image, chance):
    inventory = inventory_of_nothing()
    for make in (lambda one: statement(one, "0" * 64), lambda one: sbom(one, inventory)):
        assert canonical_json(make(image)) == canonical_json(make(shuffled(image, chance)))


@given(image=images, other=images)
@settings(max_examples=60, deadline=None)
def test_other_contents_give_another_statement_and_serial_number(image, other):
    if (image.manifest_digest, image.context) != (other.manifest_digest, other.context):
        inventory = inventory_of_nothing()
        assert canonical_json(statement(image, "0" * 64)) != canonical_json(statement(other, "0" * 64))
        assert sbom(image, inventory)["serialNumber"] != sbom(other, inventory)["serialNumber"]


def inventory_of_nothing():
    from trispark.images.root_inventory import RootInventory

    return RootInventory(None, (), ())


def test_a_bill_is_valid_by_the_published_schema(tmp_path):
    from jsonschema import Draft7Validator
    from referencing import Registry, Resource
    from referencing.jsonschema import DRAFT7

    published = resources("cyclonedx.schema") / "_res"
    schemas = {
        name: json.loads((published / f"{name}.SNAPSHOT.schema.json").read_text())
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    }
    registry = Registry().with_resources(
        (schema["$id"], Resource(schema, specification=DRAFT7)) for schema in schemas.values()
    )
    validator = Draft7Validator(schemas["bom-1.6"], registry=registry)
    bill = sbom(BUILT, inventory_of(write_root(tmp_path / "root")))
    assert [error.message for error in validator.iter_errors(bill)] == []
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references))
    assert list(validator.iter_errors({**bill, "timestamp": 1}))
    assert list(validator.iter_errors({**bill, "serialNumber": "urn:uuid:x"}))


def test_a_statement_is_one_by_the_published_definition():
    """Fields that the definition does not know are refused by its parser."""
    from google.protobuf.json_format import ParseDict, ParseError
    from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
    from in_toto_attestation.v1.statement import Statement
    from in_toto_attestation.v1.statement_pb2 import Statement as Message

    said = statement(BUILT, "0" * 64)
    Statement.copy_from_pb(ParseDict(said, Message())).validate()
    predicate = ParseDict(said["predicate"], Provenance())
    assert predicate.build_definition.external_parameters["architecture"] == "amd64"
    assert predicate.run_details.builder.id
    with pytest.raises(ParseError):
        ParseDict({**said["predicate"], "startedOn": "now"}, Provenance())


def test_what_a_statement_says():
    said = statement(BUILT, "0" * 64)
    assert [(each["name"], each["digest"]["sha256"]) for each in said["subject"]] == [
        (BUILT.repository, "a" * 64),
        (BUILT.repository, "b" * 64),
    ]
    definition = said["predicate"]["buildDefinition"]
    assert definition["externalParameters"] == {
        "image": "lab-engine",
        "dockerfile": "Dockerfiles/lab-engine/Dockerfile",
        "arguments": {"PYTHON": "3.11"},
        "architecture": "amd64",
    }
    found = {each["name"]: each["digest"] for each in definition["resolvedDependencies"]}
    assert found["dockerfile"] == {"sha256": "c" * 64}
    assert found["context"] == {"sha256": BUILT.context_sha256}
    assert found[BUILT.base] == {"sha256": "d" * 64}
    assert found["source"] == {"gitCommit": "e" * 40}
    assert (found["numpy"], found["libc6"]) == ({"sha256": "4" * 64}, {"sha256": "5" * 64})
    assert said["predicate"]["runDetails"]["byproducts"] == [{"name": SBOM, "digest": {"sha256": "0" * 64}}]
    scratch = statement(built(base=None, base_digest=None, commit=None), "0" * 64)
    roles = [each["annotations"]["role"] for each in scratch["predicate"]["buildDefinition"]["resolvedDependencies"]]
    assert roles == ["dockerfile", "context", "lock", "lock"]


def test_the_chain_for_a_reader(store):
    directory, verifier = store
    found = chain(directory, DIGEST, verifier=verifier)
    assert found["image"] == BUILT.reference
    assert (found["config_digest"], found["dependencies"]) == (BUILT.config_digest, 2)
    assert found["components"] == {"pypi": 2, "deb": 2, "context": 2}
    text = "\n".join(lines(found))
    for part in (BUILT.base, "PYTHON=3.11", "e" * 40, "builder@example", "verified", found["fact"]["statement_sha256"]):
        assert part in text
    unverified = chain(directory, DIGEST)
    assert (unverified["signed"], unverified["verified"], unverified["fact"]["signer"]) == (True, False, None)
    assert "not verified" in "\n".join(lines(unverified))
    assert provenance_of(directory, BUILT.reference, verifier) == {**found, "problem": None}
    missing = provenance_of(directory, "r/x@sha256:" + "9" * 64, verifier)
    assert (missing["verified"], missing["problem"]["id"]) == (False, "TS-PROVENANCE-NONE")


@pytest.mark.parametrize("text", [DIGEST, DIGEST.partition(":")[2], BUILT.reference, "a" * 8])
def test_an_image_is_found_by_its_digest_or_its_beginning(store, text):
    assert find_digest(store[0], text) == DIGEST


@pytest.mark.parametrize("text", ["", "a" * 7, "b" * 8, "../" + "a" * 61, "a" * 63 + "/", "lab-engine:latest"])
def test_nothing_is_found_by_anything_else(store, text):
    assert refused(find_digest, store[0], text).id == "TS-PROVENANCE-NONE"


def test_what_a_build_leaves_is_read_back(tmp_path):
    path = tmp_path / "built" / "lab-engine.json"
    layers = (tmp_path / "blobs/one.tar", tmp_path / "blobs/two.tar")
    for image in (BUILT, built(base=None, base_digest=None, commit=None, dependencies=(), context={})):
        write_built(path, image, layers)
        found, places = read_built(path)
        assert found == image
        assert [place.resolve() for place in places] == list(layers)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["image"].update(manifest_digest="latest"),
        lambda data: data["image"].update(dockerfile_sha256="c" * 63),
        lambda data: data["image"].update(more=1),
        lambda data: data["image"].pop("architecture"),
        lambda data: data["image"]["dependencies"][0].update(purl="numpy"),
        lambda data: data["image"].update(commit="main"),
        lambda data: data.update(schema_version=2),
        lambda data: data.update(layers=[]),
        lambda data: data.pop("image"),
    ],
)
def test_a_description_of_another_shape_is_refused(tmp_path, change):
    path = tmp_path / "x.json"
    write_built(path, BUILT, [tmp_path])
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    assert refused(read_built, path).id == "TS-PROVENANCE-DAMAGED"


@pytest.mark.parametrize("arguments", [{"INDEX_TOKEN": "x"}, {"PYTHON": "hf_n0tAKeyOfAnybody"}])
def test_a_secret_of_a_description_reaches_no_statement(tmp_path, arguments):
    path = tmp_path / "x.json"
    write_built(path, built(arguments=arguments), [tmp_path])
    error = refused(read_built, path)
    assert (error.id, error.where) == ("TS-IMAGES-SECRET", str(path))
    assert "n0tAKeyOfAnybody" not in str(error)


@pytest.mark.parametrize("content", [None, b"", b"[]", b"\xff"])
def test_a_description_that_is_none(tmp_path, content):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    assert refused(read_built, path).id == ("TS-PROVENANCE-BUILT" if content is None else "TS-PROVENANCE-DAMAGED")
