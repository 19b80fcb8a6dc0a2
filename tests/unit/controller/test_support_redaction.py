"""Planted secrets never survive, and what is no secret stays readable."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.support_redaction import HIDDEN, Anonymous, names_a_secret, redacted, secrets_in

SECRET = "s3kr1t-Value_09"
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\nAAAA\n-----END OPENSSH PRIVATE KEY-----"


@pytest.mark.parametrize(
    "text",
    [
        f"API_KEY={SECRET}",
        f"WANDB_API_KEY={SECRET} next",
        f"HF_TOKEN: {SECRET}",
        f"export HUGGING_FACE_HUB_TOKEN='{SECRET}'",
        f'"DB_PASSWORD": "{SECRET}",',
        f"ansible_become_password: {SECRET}",
        f"ansible_ssh_pass_passwd: {SECRET}",
        f"client_secret = \"{SECRET}\"",
        f"python3 -m sglang --api-key {SECRET} --tp 3",
        f"--api-key={SECRET}",
        f"--admin-api-key {SECRET}",
        json.dumps(["--api-key", SECRET, "--tp"]),
        json.dumps({"stdout": f"{{\"X_API_KEY\": \"{SECRET}\"}}"}),
        json.dumps({"Env": [f"X_API_KEY={SECRET}", "A=1"]}),
        f"Authorization: Bearer {SECRET}",
        f"https://user:{SECRET}@registry.example/v2",
        json.dumps({"owner": {"token": SECRET, "pid": 4}}),
        "hf_AbCdEfGhIjKlMnOp",
        "sk-abcdefghijklmnopqrst",
        KEY,
        KEY[:70],
        "password: $ANSIBLE_VAULT;1.1;AES256\n          6230616263646566303132333435363738393031\n",
    ],
)  # fmt: skip
def test_a_planted_secret_is_gone(text: str) -> None:
    found = redacted({"a": f"before\n{text}\nafter"})["a"]
    for secret in (SECRET, "hf_AbCd", "sk-abcd", "b3BlbnNz", "623061626364"):
        assert secret not in found
    assert HIDDEN in found
    assert found.startswith("before\n")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("max_tokens: 32\nwarmup_tokens: 16", None),
        ("completion_tokens=512 tokens=8", None),
        ("API_KEY=", None),
        ("HF_TOKEN: null", None),
        ("password: '{{ vault_password }}'", None),
        ("tokenizer: /models/x", None),
        ("the key of a row", None),
        ("API_KEY=x", "API_KEY=<redacted>"),
    ],
)
def test_what_is_no_secret_stays(text: str, kept: str | None) -> None:
    assert redacted({"a": text})["a"] == (text if kept is None else kept)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        *((name, True) for name in ("HF_TOKEN", "api-key", "PIP_PASSWORD", "PASSWD", "SSH_PRIVATE_KEY")),
        *((name, False) for name in ("MAX_TOKENS", "TOKENIZER", "PYTHON", "KEY", "", "A TOKEN")),
    ],
)
def test_a_name_that_is_a_secret_whatever_its_value(name: str, secret: bool) -> None:
    assert names_a_secret(name) is secret


def test_a_secret_named_in_one_text_is_hidden_in_all() -> None:
    found = redacted({"env": f"HF_TOKEN={SECRET}\n", "log": f"using {SECRET} for the hub\n"})
    assert found["log"] == f"using {HIDDEN} for the hub\n"


@pytest.mark.parametrize(
    "text",
    [
        "ansible_ssh_private_key_file: /home/ann/.ssh/id_ed25519",
        "ssh -o IdentityFile=/srv/keys/lab -p 22",
        "-i ~/.ssh/id_rsa host",
        "open /root/.ssh/known_hosts failed",
        "UserKnownHostsFile=/work/.trispark/lab/ssh/known_hosts",
    ],
)
def test_places_of_ssh_keys_are_gone(text: str) -> None:
    found = redacted({"a": text})["a"]
    assert "<ssh file>" in found
    for part in ("id_ed25519", "id_rsa", "known_hosts", "/srv/keys"):
        assert part not in found


@given(st.from_regex(r"[A-Za-z0-9+/_.-]{8,40}", fullmatch=True), st.sampled_from(["{}", '"{}"', "'{}'"]))
def test_any_value_of_a_secret_name_is_gone(secret: str, form: str) -> None:
    found = redacted({"a": f"X_API_KEY={form.format(secret)}\n", "b": f"x {secret} y"})
    if secret.casefold() not in ("redacted",):
        assert secret not in found["a"].replace(HIDDEN, "")
        assert secret not in found["b"].replace(HIDDEN, "")


def test_short_values_hide_no_ordinary_words() -> None:
    assert secrets_in(["API_KEY=abc"]) == []


def test_names_and_addresses_have_one_stand_in_everywhere() -> None:
    hide = Anonymous(["spark-a", "spark-b"], ["build-host", "ann"])
    first = hide.text("spark-a (192.0.2.10) asked spark-b at 192.0.2.11, fe80::1; ann@build-host:/home/ann/x")
    assert first == "node0 (address1) asked node1 at address2, address3; host3@host4:/home/user/x"
    assert hide.text("192.0.2.11 spark-a spark-b.example") == "address2 node0 node1.example"
    kept = "127.0.0.1 0.0.0.0 1.2.3 spark-ab 12:30:45 v1.2.3.4.5"
    assert hide.text(kept) == kept


@pytest.mark.parametrize(
    "part",
    [
        "a_b.c-d",
        "/a b.c",
        "ab:",
        '"token": "abc", ',
        "=",
        "a=",
        "--",
        "-a-",
        "1.",
        "'",
        "A",
        "/",
        "\\",
        "~/.ssh",
        "secret",
    ],
)
def test_no_text_takes_long(part: str) -> None:
    """A log of the bundle's full length, of one line; what is quadratic takes minutes."""
    text = part * (131072 // len(part))
    began = time.process_time()
    Anonymous(["spark0"], ["head"]).text(redacted({"a": text})["a"])
    assert time.process_time() - began < 5
