"""Rules for Dockerfiles: each finds its bad examples, and nothing in what is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trispark.images.declaration import load_declaration
from trispark.images.dockerfile import PINNED, parse, parse_dockerfile
from trispark.images.dockerfile_lint import RULES, Expected, controlled_names, expected_of, lint, lint_all

ROOT = Path(__file__).resolve().parents[2]
DIGEST = "sha256:" + "a" * 64
BASE = f"FROM r/a@{DIGEST}\n"
PLAIN = Expected(frozenset({"DSV41_CACHE_GIB", "PYTHONPATH"}), labels=False)
ENGINE = Expected(PLAIN.variables, engine=True, labels=True)
GOOD_ENGINE = f"""
FROM r/a@{DIGEST} AS engine
RUN rm -f /etc/nccl.conf
FROM engine AS check
COPY image_check.py image_check.json /check/
RUN python3 -B /check/image_check.py /check/image_check.json /check/result.json
FROM engine
COPY --from=check /check/result.json /x
LABEL org.opencontainers.image.title="a" org.opencontainers.image.version="b" org.opencontainers.image.revision="c" \\
      org.opencontainers.image.base.name="d" org.opencontainers.image.base.digest="e"
USER 0
"""

BAD = [
    ("base-without-digest", "FROM debian:12"),
    ("base-without-digest", "FROM debian"),
    ("base-without-digest", "FROM --platform=linux/arm64 debian:12 AS x"),
    ("base-without-digest", "ARG BASE=debian:12\nFROM ${BASE}"),
    ("base-without-digest", "ARG BASE=debian@sha256:abc\nFROM $BASE"),
    ("base-without-digest", "FROM ${BASE}"),
    ("base-without-digest", "ARG TAG\nFROM debian:${TAG}"),
    ("base-without-digest", BASE + "COPY --from=docker:cli /x /x"),
    ("base-without-digest", "RUN true"),
    ("image-by-mount", BASE + "RUN --mount=type=bind,from=debian:13,target=/m cp -r /m/x /x"),
    ("image-by-mount", BASE + "ONBUILD RUN pip install x"),
    ("unchecked-download", BASE + "RUN /usr/bin/curl -o x https://example.org/x"),
    ("unchecked-download", BASE + "RUN true&&curl -o x https://example.org/x"),
    ("unchecked-download", BASE + "RUN X=`curl https://example.org/x`"),
    ("unpinned-package", BASE + "RUN apt-get -y dist-upgrade"),
    ("unpinned-package", BASE + "RUN uv sync"),
    ("unpinned-package", BASE + "RUN pipx install x"),
    ("moving-tag", "FROM debian:latest"),
    ("moving-tag", "ARG BASE=debian:latest\nFROM ${BASE}"),
    ("moving-tag", BASE + "RUN skopeo copy docker://a/b:latest dir:x"),
    ("frontend-without-digest", "# syntax=docker/dockerfile:1\n" + BASE),
    ("pip-without-hashes", BASE + "RUN pip install x==1"),
    ("pip-without-hashes", BASE + "RUN pip3 --no-input install -r r.txt"),
    ("pip-without-hashes", BASE + "RUN a && python3 -m pip download x"),
    ("pip-without-hashes", BASE + "RUN uv pip install x"),
    ("pip-without-hashes", BASE + 'RUN set -- /w/pip-*.whl && python "$1/pip" install x'),
    ("pip-without-hashes", BASE + 'RUN ["pip", "install", "x"]'),
    ("pip-without-hashes", BASE + "RUN pip install x \\\n  # why\n  y"),
    ("pip-without-hashes", BASE + "RUN <<EOF\npip install x\nEOF"),
    (
        "pip-without-hashes",
        BASE + "RUN pip install x # --require-hashes is below\nRUN pip install --require-hashes -r y",
    ),
    ("unpinned-package", BASE + "RUN apt-get update && apt-get install -y curl"),
    ("unpinned-package", BASE + "RUN apt-get -o A::B=1 install --yes a=1 b"),
    ("unpinned-package", BASE + "RUN apt install $(cat list)"),
    ("unpinned-package", BASE + "RUN xargs apt-get install -y < list"),
    ("unpinned-package", BASE + "RUN apk add curl"),
    ("unpinned-package", BASE + "RUN npm ci"),
    ("unchecked-download", BASE + "RUN curl -fsSL https://x/y | sh"),
    ("unchecked-download", BASE + "RUN wget https://x/y && sha256sum y"),
    ("unchecked-download", BASE + "RUN wget https://x/y # sha256sum -c"),
    ("unchecked-download", BASE + "ADD https://x/y /y"),
    ("unchecked-download", BASE + "ADD --checksum=sha256:abc https://x/y /y"),
    ("unchecked-download", BASE + "RUN git clone https://x/y"),
    ("experiment-variable", BASE + "ENV DSV41_CACHE_GIB=16"),
    ("experiment-variable", BASE + "ENV A=1 \\\n DSV41_CACHE_GIB=0"),
    ("experiment-variable", BASE + "ENV DSV41_CACHE_GIB 16"),
    ("experiment-variable", BASE + "ENV PYTHONPATH=/x"),
    ("experiment-variable", BASE + "ENV NCCL_ANYTHING=1"),
    ("adapters-inside", BASE + "COPY adapters /opt/adapters"),
    ("adapters-inside", BASE + "COPY ./x/trispark_hooks/ /opt/"),
    ("adapters-inside", BASE + 'COPY ["adapters/a.py", "/opt/"]'),
    ("nccl-configuration", BASE + "RUN echo NCCL_IB_USE_INLINE=1 > /etc/nccl.conf"),
    ("nccl-configuration", BASE + "COPY nccl.conf /etc/nccl.conf"),
    ("nccl-configuration", BASE + "RUN rm -f /etc/nccl.conf && echo x >> /etc/nccl.conf"),
]
BAD_ENGINE = [
    ("nccl-configuration", "RUN rm -f /etc/nccl.conf\n", ""),
    ("user", "USER 0\n", ""),
    ("user", "USER 0\n", "USER 1000\n"),
    ("import-check", "COPY --from=check /check/result.json /x\n", ""),
    ("import-check", "result.json\nFROM", "result.json || true\nFROM"),
    ("labels", "title", "titel"),
    ("labels", "base.digest", "digest"),
    ("one-stage", GOOD_ENGINE, BASE + "RUN rm -f /etc/nccl.conf\nUSER 0"),
]


def rules(text: str, expected: Expected) -> set[str]:
    return {each.rule for each in lint(parse(text), expected)}


@pytest.mark.parametrize(("rule", "text"), BAD, ids=lambda value: value[-40:].replace("\n", " "))
def test_a_bad_example_is_found_by_its_rule(rule: str, text: str) -> None:
    assert rule in rules(text, PLAIN)


@pytest.mark.parametrize(("rule", "old", "new"), BAD_ENGINE, ids=lambda value: value[-40:].replace("\n", " "))
def test_an_engine_that_breaks_a_rule_is_found(rule: str, old: str, new: str) -> None:
    assert rules(GOOD_ENGINE, ENGINE) == set()
    assert old in GOOD_ENGINE
    assert rule in rules(GOOD_ENGINE.replace(old, new), ENGINE)


def test_every_rule_has_a_bad_example() -> None:
    assert {rule for rule, *_ in (*BAD, *BAD_ENGINE)} == set(RULES)


@pytest.mark.parametrize(
    "text",
    [
        BASE,
        "ARG BASE\nFROM ${BASE}",
        f"ARG BASE=r/a@{DIGEST}\nFROM $BASE AS one\nFROM one\nCOPY --from=one /a /a",
        "FROM scratch\nCOPY a /",
        f"# syntax=docker/dockerfile@{DIGEST}\n{BASE}",
        BASE + "# RUN pip install x\nRUN pip install --no-index --require-hashes -r r.txt",
        BASE + "RUN apt-get install -y a=1.2-3 ./b.deb",
        BASE + f"RUN curl -fsS https://x/y -o y && echo '{'a' * 64}  y' | sha256sum --check",
        BASE + f"ADD --checksum={DIGEST} https://x/y /y",
        BASE + f"RUN git fetch https://x/y {'0' * 40}",
        BASE + "ENV PATH=/a:/b LANG=C",
        BASE + "RUN rm -f /etc/nccl.conf /root/.nccl.conf && true",
        BASE + "COPY pipes /opt/",
        BASE + 'ENV NOTE="an apt-get install curl in a text"',
    ],
    ids=lambda text: text[-40:].replace("\n", " "),
)
def test_what_is_by_hash_is_let_through(text: str) -> None:
    assert rules(text, PLAIN) == set()


@pytest.mark.parametrize(
    ("user", "text", "found"),
    [
        ("1000", BASE, True),
        ("1000", BASE + "USER 1000", False),
        ("1000", BASE + "USER 1000\nUSER root", True),
        ("1000", f"FROM r/a@{DIGEST} AS a\nUSER 1000\nFROM a", False),
        ("1000", f"FROM r/a@{DIGEST} AS a\nUSER 1000\nFROM r/b@{DIGEST}", True),
        ("root", BASE, False),
        ("root", BASE + "USER 0", False),
    ],
)
def test_the_user_that_counts_is_the_last_one_of_the_last_stage(user: str, text: str, found: bool) -> None:
    assert ("user" in rules(text, Expected(frozenset(), user=user, labels=False))) is found


def test_what_is_shipped_breaks_no_rule() -> None:
    found = lint_all(ROOT, load_declaration(ROOT))
    assert set(found) >= {f"{name}/Dockerfile" for name in ("engine", "canary", "release", "bench", "lab-engine")}
    assert {name: list(map(str, each)) for name, each in found.items()} == {name: [] for name in found}


def test_every_dockerfile_belongs_to_a_declared_image() -> None:
    used = {image.dockerfile for image in load_declaration(ROOT).images.values()}
    there = {path.relative_to(ROOT / "Dockerfiles").as_posix() for path in (ROOT / "Dockerfiles").glob("*/Dockerfile*")}
    assert there == used


def test_an_engine_of_the_field_is_held_to_the_rules_of_engines() -> None:
    images = load_declaration(ROOT).images
    for name in ("engine-dev-dsv41-1", "engine-dev-dsv41-2", "canary", "release-0.5.21"):
        expected = expected_of(ROOT, images[name])
        assert expected.engine
        assert {"DSV41_CACHE_GIB", "PYTORCH_CUDA_ALLOC_CONF", "PYTHONPATH"} <= expected.variables
        declared = parse_dockerfile(ROOT / "Dockerfiles" / images[name].dockerfile).declared()
        assert declared >= PINNED
        assert set(images[name].arguments) <= declared - PINNED


def test_the_lab_engine_may_say_where_its_own_packages_lie() -> None:
    assert "PYTHONPATH" not in controlled_names(ROOT, "lab")
    assert "DSV41_CACHE_GIB" in controlled_names(ROOT, "lab")


def test_continued_lines_comments_and_documents_are_read_as_a_builder_does() -> None:
    file = parse(
        "# escape=`\n# not a directive\nARG A=1\nfrom x as One\n"
        "RUN a `\n# gone\n\n b\nRUN <<-E c\n FROM y\nE\nCOPY a b\n"
    )
    assert file.directives == {"escape": "`"}
    assert file.arguments == {"A": "1"}
    assert [(stage.base, stage.name) for stage in file.stages] == [("x", "one")]
    assert [(each.name, each.line) for each in file.instructions] == [("RUN", 5), ("RUN", 9), ("COPY", 12)]
    assert file.instructions[0].words == ["a", "b"]
    assert file.instructions[1].documents == (" FROM y",)


@given(st.text(alphabet="FROMRUN pip install:latest@\\#<E\n\"'$[],=-", max_size=200))
def test_no_text_breaks_the_reader_or_a_rule(text: str) -> None:
    lint(parse(text), ENGINE)
