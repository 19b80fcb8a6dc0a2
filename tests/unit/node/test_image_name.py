"""The names under which Docker lists an image, beside those that sites write."""

import pytest

from trispark_node.image_name import IMAGE, familiar, is_among

D, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64


@pytest.mark.parametrize(
    ("written", "listed"),
    [
        ("docker.io/lmsysorg/sglang", "lmsysorg/sglang"),
        ("index.docker.io/lmsysorg/sglang", "lmsysorg/sglang"),
        ("lmsysorg/sglang", "lmsysorg/sglang"),
        ("docker.io/library/debian", "debian"),
        ("library/debian", "debian"),
        ("docker.io/debian", "debian"),
        ("registry:5000/trispark/lab-engine", "registry:5000/trispark/lab-engine"),
        ("registry.example/library/debian", "registry.example/library/debian"),
        ("docker.io.example/a/b", "docker.io.example/a/b"),
        ("docker.iox/a", "docker.iox/a"),
    ],
)
def test_as_docker_lists_it(written, listed):
    assert familiar(f"{written}@{D}") == f"{listed}@{D}"
    assert is_among(f"{written}@{D}", [f"{listed}@{D}", f"x@{OTHER}"])
    assert not is_among(f"{written}@{D}", [f"{listed}@{OTHER}", f"x@{D}"])
    assert not is_among(f"{written}@{D}", [])


@pytest.mark.parametrize(
    ("reference", "right"),
    [
        (f"docker.io/lmsysorg/sglang@{D}", True),
        (f"registry:5000/trispark/lab-engine@{D}", True),
        (f"127.0.0.1:5055/engine@{D}", True),
        (f"debian@{D}", True),
        (f"lmsysorg/sglang:dev@{D}", False),
        (f"registry:5000/engine:1@{D}", False),
        (f"registry:5000@{D}", False),
        (f"engine:latest@{D}", False),
        (f"a//b@{D}", False),
        (f"a/@{D}", False),
        (f"-a@{D}", False),
        (f"engine@{D}0", False),
        ("engine@sha256:" + "A" * 64, False),
        ("engine:latest", False),
    ],
)
def test_by_digest_alone_and_never_beside_a_tag(reference, right):
    assert (IMAGE.fullmatch(reference) is not None) is right
