"""Everything that is wrong with a site's files, found offline: every problem, where a boot would stop at the first."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from trispark.allowlist import EXTRA_SOURCE, Scope, Support, is_address
from trispark.bench_plan import client_input
from trispark.catalog import Catalog, load_catalog
from trispark.errors import TrisparkError
from trispark.images.demanded import verifier_of
from trispark.images.dockerfile import PINNED, parse_dockerfile
from trispark.images.secret_arguments import secret_arguments
from trispark.images.signer_files import problems_of
from trispark.memory_model import load_memory_models, require_memory_model
from trispark.resolve import extra_value, given_value, node_value, resolve
from trispark.site import DOCKERFILES, LAB, Site, judge_site
from trispark.site_files import site_files
from trispark.site_names import misspelled_keys, same_images
from trispark.site_time import zone_named

_DOCUMENTATION: Final = tuple(
    ipaddress.ip_network(text) for text in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")
)
_NO_IMAGE: Final = "none@sha256:" + "0" * 64
"""Stands for an image that a site lacks, so that everything else is still checked."""


@dataclass(frozen=True)
class SiteReport:
    """`configured`: whether verbs accept the site; None where its files cannot be read so far."""

    name: str
    configured: bool | None
    problems: tuple[TrisparkError, ...]

    def headline(self) -> str:
        """`site: sparks (not configured: verbs refuse it): 2 problems`."""
        unknown = " (whether it is configured cannot be read)"
        state = {True: "", False: " (not configured: verbs refuse it)", None: unknown}[self.configured]
        count = len(self.problems)
        return f"site: {self.name}{state}: {'no problem' if not count else f'{count} problem' + 's' * (count > 1)}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "configured": self.configured,
            "problems": [problem.as_dict() for problem in self.problems],
        }


@dataclass
class _Found:
    """Problems in the order of their discovery, each once."""

    problems: list[TrisparkError] = field(default_factory=list)

    @contextmanager
    def collecting(self) -> Iterator[None]:
        try:
            yield
        except TrisparkError as error:
            self.add(error)

    def add(self, error: TrisparkError) -> None:
        if str(error) not in map(str, self.problems):
            self.problems.append(error)


def check_site(root: Path, name: str) -> SiteReport:
    """The report of `inventory/<name>`; paths in it are relative to `root`. Changes nothing, asks no node."""
    found = _Found()
    judged = judge_site(root / "inventory" / name, _stand_ins(root))
    for problem in judged.problems:
        found.add(problem)
    if judged.site is not None:
        with found.collecting():
            _check(judged.site, judged.wrong, name, load_catalog(root), root, found)
            if name != LAB and judged.configured:
                _check_ready(judged.site, judged.reached_at, found)
    configured = name == LAB or judged.configured
    return SiteReport(name, configured, tuple(_relative(problem, root) for problem in found.problems))


def _stand_ins(root: Path) -> dict[str, Any]:
    """Values of the template, for keys whose own value is wrong: the check of the others goes on with them."""
    found: dict[str, Any] = {}
    for path, text in site_files(root, "template").items():
        if path.startswith("group_vars/all/"):
            found |= yaml.safe_load(text)
    return found


def _check(site: Site, wrong: frozenset[str], name: str, catalog: Catalog, root: Path, found: _Found) -> None:
    if site.name != name and "site_name" not in wrong:
        found.add(
            TrisparkError(
                "TS-SITE-SCHEMA",
                "site_name is not the name of its directory",
                where=str(site.path),
                expected=name,
                observed=site.name,
                remedy="rename one of them",
            )
        )
    for key, place in sorted(site.other_keys.items()):
        with found.collecting():
            catalog.refuse_misplaced({key: place})
    if "site_bench" not in wrong:
        with found.collecting():
            client_input(site, root)
    if site.time_zone is not None and "site_unattended_window" not in wrong:
        with found.collecting():
            zone_named(site.time_zone, f"{site.path}: site_unattended_window")
    _check_dockerfile(site, root, found)
    verifier = verifier_of(site)
    if verifier is not None:
        with found.collecting():
            for problem in problems_of(verifier):
                found.add(problem)
    for problem in misspelled_keys(site):
        found.add(problem)
    if "site_engine_images" not in wrong and "site_engine_image" not in wrong:
        for problem in same_images(site):
            found.add(problem)
    if site.memory_model is not None and "site_memory_model" not in wrong:
        with found.collecting():
            require_memory_model(load_memory_models(root), site.memory_model, f"{site.path}: site_memory_model")
    if site.engine in catalog.engines:
        _check_values(site, wrong, catalog, found)
    unknown_engine = site.engine not in catalog.engines and "site_engine" not in wrong
    if not found.problems or unknown_engine:
        # What is left: rules that the resolver alone knows, and an engine that this version cannot run.
        whole = site if site.engine_image is not None else site.model_copy(update={"engine_image": _NO_IMAGE})
        with found.collecting():
            resolve(whole, catalog, None, None, root)


def _check_values(site: Site, wrong: frozenset[str], catalog: Catalog, found: _Found) -> None:
    """What the site and its nodes give the engine, one variable after the other."""
    for variable in catalog.allowlist.variables():
        if variable.support(site.engine) is Support.REFUSED:
            continue
        for node in site.nodes:
            with found.collecting():
                node_value(site, catalog, variable, node)
        elsewhere = ("baseline", EXTRA_SOURCE)
        known_wrong = f"site_{variable.source.removeprefix('site.')}" in wrong
        if variable.scope is Scope.COMMON and variable.source not in elsewhere and not known_wrong:
            with found.collecting():
                variable.check(given_value(site, catalog, variable), f"{site.path} ({variable.source})")
    extras = site.extra_container_env if "site_extra_container_env" not in wrong else {}
    for extra in sorted(extras):
        with found.collecting():
            extra_value(site, catalog, extra)


def _check_dockerfile(site: Site, root: Path, found: _Found) -> None:
    for secret in secret_arguments(site.build_args, f"{site.path}, site_build_args"):
        found.add(secret)
    given = site.build_dockerfile
    if given is None:
        if site.build_args:
            _wrong_build(site, found, "site_build_dockerfile", "site_build_args alone", "name its Dockerfile")
        return
    path = root / DOCKERFILES / given
    if not path.is_file():
        found.add(
            TrisparkError(
                "TS-SITE-DOCKERFILE",
                "the Dockerfile that the site names is not there",
                where=str(site.path),
                expected=f"{DOCKERFILES}/{given}",
                observed="no such file",
                remedy="correct site_build_dockerfile, or set it to null",
            )
        )
        return
    known = parse_dockerfile(path).declared() - PINNED
    for name in site.build_args:
        if name not in known:
            expected = "one of " + (", ".join(sorted(known)) or "no ARG at all")
            _wrong_build(site, found, expected, name, "remove it; what pins an image is in Dockerfiles/images.yml")


def _wrong_build(site: Site, found: _Found, expected: str, observed: str, remedy: str) -> None:
    found.add(
        TrisparkError(
            "TS-SITE-BUILDARGS",
            "a build argument of the site does not fit its Dockerfile",
            where=str(site.path),
            expected=expected,
            observed=observed,
            remedy=remedy,
        )
    )


def _check_ready(site: Site, reached_at: Mapping[str, str], found: _Found) -> None:
    """What a site must have before verbs may use it."""
    with found.collecting():
        site.require_engine_image()
    for node in site.nodes:
        given = {"node_address": node.address, "ansible_host": reached_at.get(node.name, "")}
        given |= {f"node_pair_links, peer {link.peer}": link.local for link in node.pair_links}
        for key, address in given.items():
            # ansible_host may be a name, too.
            if is_address(address) and any(ipaddress.ip_address(address) in network for network in _DOCUMENTATION):
                found.add(
                    TrisparkError(
                        "TS-SITE-EXAMPLE",
                        "an address of the documentation ranges is still there",
                        where=f"{site.path}/hosts.yml {node.name}",
                        expected=f"your own address in {key}",
                        observed=address,
                        remedy="replace it, or set site_configured: false",
                    )
                )


def _relative(problem: TrisparkError, root: Path) -> TrisparkError:
    values = {key: value.replace(f"{root}/", "") for key, value in problem.as_dict().items()}
    return TrisparkError(**values)
