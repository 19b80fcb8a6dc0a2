"""What a site's own images keep from being tried there; what its engine cannot do is in the catalog itself."""

from __future__ import annotations

from trispark.allowlist import ENGINE_IMAGE, SITE_IMAGE, Value
from trispark.errors import TrisparkError
from trispark.plan import NO_IMAGE, Ground


def refused_at(ground: Ground, feature: str) -> list[TrisparkError]:
    """As a plan of the feature would refuse it: the site lacks the image that it names (TS-PLAN-IMAGE-MISSING), or the
    image's build lacks what its adapters bind to (TS-PLAN-IMAGE, TS-PLAN-BUILD). Empty where the engine cannot run it
    at all: that is said once."""
    catalog, site = ground.catalog, ground.site
    if catalog.features[feature].refusal_on(site.engine) is not None:
        return []
    held: dict[str, Value] = {**catalog.baseline, **ground.promoted}
    needed = catalog.required_by(feature)
    arms = {
        str({**held, **sets}.get(ENGINE_IMAGE, SITE_IMAGE)): names
        for sets, names in (({}, needed), (catalog.sets_of(feature), (feature, *needed)))
    }
    found: list[TrisparkError] = []
    for name, names in arms.items():
        try:
            image = site.image_named(name)
        except TrisparkError as error:
            found.append(error)
        else:
            found += catalog.judge_build(names, site.engine, NO_IMAGE if ground.image == NO_IMAGE else image)[0]
    return found
