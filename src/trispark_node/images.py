"""Verb `image-ensure`: the image is on the node under exactly this digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trispark_node import pulled
from trispark_node.docker_client import Image
from trispark_node.errors import AgentError
from trispark_node.fields import Fields
from trispark_node.mutation import Plan
from trispark_node.node import Node
from trispark_node.spec import IMAGE


@dataclass(frozen=True)
class ImageRequest:
    image: str

    @classmethod
    def parse(cls, fields: Fields) -> ImageRequest:
        image = fields.text("image")
        if not IMAGE.fullmatch(image):
            raise AgentError(
                "TS-AGENT-IMAGE-REF",
                "the image is not named by digest",
                where="request.image",
                expected="name@sha256:<64 hex digits>, without a tag that could move",
                observed=image,
                remedy="pin the digest in the site's data",
                status=2,
            )
        return cls(image)

    @property
    def repository(self) -> str:
        return self.image.partition("@")[0]

    @property
    def digest(self) -> str:
        return self.image.partition("@")[2]


def _check_digest(image: Image, request: ImageRequest) -> None:
    if request.image not in image.digests:
        raise AgentError(
            "TS-AGENT-IMAGE-DIGEST",
            "the image on this node has another digest",
            where=request.repository,
            expected=request.digest,
            observed=", ".join(image.digests) or "no digest: it was never pulled from a registry",
            remedy="remove the image from this node and pull it again",
        )


def plan_image(node: Node, request: ImageRequest) -> Plan:
    image = node.docker.image(request.image)
    if image is not None:
        _check_digest(image, request)
        return Plan(None, {"image_id": image.id, "pulled": False})

    def apply() -> dict[str, Any]:
        node.docker.pull(request.repository, request.digest)
        image = node.docker.image(request.image)
        if image is None:
            raise AgentError(
                "TS-AGENT-IMAGE",
                "the image is absent after its pull",
                where=request.image,
                expected="the image",
                observed="nothing",
                remedy="see the Engine's log on this node",
            )
        _check_digest(image, request)
        pulled.add(node, request.image)
        return {"image_id": image.id, "pulled": True}

    return Plan(
        apply,
        {"image_id": None, "pulled": False},
        {"image": request.image},
        ("image absent\n", f"image {request.image}\n"),
    )
