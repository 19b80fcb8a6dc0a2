"""``./trispark stats``: what the rules of decision do, and campaigns that were made by hand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from trispark.cli import exit_codes, verb
from trispark.cli.terminal import Terminal
from trispark.cli.verb import JsonOption
from trispark.errors import TrisparkError

FIGURES = ("false_keep", "false_keep_family", "coverage", "power", "boots_mean")
GOALS = {
    "false_keep": (0.0, 0.025),
    "false_keep_family": (0.0, 0.03),
    "coverage": (0.93, 0.97),
}


def stats_simulate(
    trials: Annotated[int, typer.Option("--trials", min=100, max=1_000_000, help="Trials of each scenario.")] = 20_000,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of all random numbers.")] = 20_260_924,
    noise: Annotated[str, typer.Option("--noise", help="How boots vary: normal, t3 or drift.")] = "normal",
    boot_sd: Annotated[
        float | None, typer.Option("--boot-sd", min=1e-6, max=0.5, help="Between boots, as a share.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Also the table of power, in Markdown.")] = False,
    as_json: JsonOption = False,
) -> None:
    """False KEEP, coverage, power and boots of the verdict over many simulated trials.

    Needs no site. Status 1 when a figure misses its goal with noise normal.
    """
    from trispark.noise_model import BOOT_SD, SHAPES, NoiseModel
    from trispark.stats_simulate import headline, power_table

    shape = next((each for each in SHAPES if each == noise), None)
    if shape is None:
        raise TrisparkError(
            "TS-STATS-NOISE",
            "there is no such noise",
            where="--noise",
            expected=", ".join(SHAPES),
            observed=noise[:80],
            remedy="choose one of them",
        )
    terminal = _begin()
    model = NoiseModel(shape=shape, boot_sd=BOOT_SD if boot_sd is None else boot_sd)
    found = headline(model, trials, seed)
    for line in headline_lines(found):
        terminal.say(line)
    tables = {str(count): power_table(model, count, trials, seed) for count in (1, 3)} if table else {}
    for count, rows in tables.items():
        for line in table_lines(int(count), rows):
            terminal.say(line)
    missed = missed_goals(found)
    for line in missed:
        terminal.say(line)
    if as_json:
        goals = {name: found.pop(name) for name in FIGURES}
        terminal.json({**found, "tables": tables, "missed": missed, **goals})
    raise typer.Exit(exit_codes.FAILED if missed and shape == "normal" else exit_codes.OK)


def stats_campaign(
    summary: Annotated[Path, typer.Argument(help="A CSV file: a row an arm and tag, medians over a boot.")],
    twins: Annotated[str, typer.Option("--twins", help="Two arms of one configuration, with a comma between.")],
    as_json: JsonOption = False,
) -> None:
    """Verdict and interval for every pair of arms of a campaign with one boot an arm. Needs no site."""
    from trispark.stats_campaign import as_form, campaign_lines, compare_campaign, read_summary

    first, _, second = twins.partition(",")
    campaign = compare_campaign(read_summary(summary), (first, second))
    terminal = _begin()
    for line in campaign_lines(campaign):
        terminal.say(line)
    if as_json:
        terminal.json(as_form(campaign))


def stats_floor(
    generation: Annotated[
        str | None, typer.Option("--generation", help="Of which boots; the newest measured boot's without it.")
    ] = None,
    trial: Annotated[
        str | None, typer.Option("--trial", help="Of the boots of this trial alone, an A/A trial for instance.")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Plans take it from now on; without it, it is only shown.")
    ] = False,
    site: Annotated[
        str | None, typer.Option("--site", envvar="TRISPARK_SITE", help="A directory of inventory/.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """How equal boots of this site differ, by the controller's records: floor, and what a trial can find.

    Counts valid, measured boots of one generation, those of trials' baselines among them.
    """
    from trispark.cli.records import record_cache
    from trispark.noise_floor import keep_noise, measure_noise
    from trispark.stats_power import site_power

    terminal, name = verb.begin(site, changing=keep, offline=True)
    noise = measure_noise(name, record_cache(verb.REPO, name).list(), generation, trial)
    rows = [row.as_dict() for row in site_power(noise)]
    for line in floor_lines(noise.generation, len(noise.boots), rows):
        terminal.say(line)
    if keep:
        terminal.say(f"kept: {keep_noise(verb.REPO, noise).relative_to(verb.REPO)}")
    if as_json:
        terminal.json({"site": name, "noise": noise.model_dump(mode="json"), "power": rows, "kept": keep})


def floor_lines(generation: str, boots: int, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: a row a metric and size of a trial."""

    def share(value: float | None) -> str:
        return "none" if value is None else f"{100 * value:.3g} %"

    yield f"{boots} boots of {generation}"
    yield "| metric | boots an arm | sd of a boot | floor | gain kept in 80 % | slow-down rejected in 95 % |"
    yield "|---|---|---|---|---|---|"
    for row in rows:
        cells = (share(row[name]) for name in ("sd", "floor", "gain", "slow_down"))
        yield f"| {row['metric']} | {row['boots']} | {' | '.join(cells)} |"


def _begin() -> Terminal:
    """Every verb's first line is the site."""
    terminal = Terminal()
    terminal.say("site: none is needed")
    return terminal


def headline_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The figures of a simulation for a person."""
    model = found["model"]
    yield (
        f"{found['trials']} trials a scenario, seed {found['seed']}, noise {model['shape']}, "
        f"boot sd {100 * model['boot_sd']:g} %"
    )
    for name, each in found["scenarios"].items():
        covers = ", ".join(f"{share:.3f} at {size}" for size, share in each["covers"].items())
        yield (
            f"{name}: KEEP {each['keep']:.4f}, REJECT {each['reject']:.4f} (HARM {each['harm']:.4f}), "
            f"futile {each['futile']:.4f}, boots {each['boots']:.2f}; "
            f"interval covers {covers}, {each['covers_at_end']:.3f} at the end"
        )
    for name, keep in found["false_keep_by_noise"].items():
        yield f"no gain, {name}: KEEP {keep:.4f}"
    yield (
        f"false_keep {found['false_keep']:.4f}, false_keep_family {found['false_keep_family']:.4f}, "
        f"coverage {found['coverage']:.4f}, power {found['power']:.4f}, boots_mean {found['boots_mean']:.2f}"
    )


def missed_goals(found: Mapping[str, Any]) -> list[str]:
    """One line for each figure that is out of its goal."""
    return [
        f"MISSED: {name} {found[name]:.4f} is not within {low:g} and {high:g}"
        for name, (low, high) in GOALS.items()
        if not low <= found[name] <= high
    ]


def table_lines(primaries: int, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Markdown: a row a true effect, a column a boot sd."""
    sds = list(dict.fromkeys(row["boot_sd"] for row in rows))
    text = "one primary" if primaries == 1 else f"{primaries} primaries that move together"
    yield f"{text}: chance of KEEP (of HARM, where slower), and boots of both arms on average, by boot sd"
    yield f"| true effect | {' | '.join(f'{100 * sd:g} %' for sd in sds)} |"
    yield "|---" * (1 + len(sds)) + "|"
    for effect in dict.fromkeys(row["effect"] for row in rows):
        own = {row["boot_sd"]: row for row in rows if row["effect"] == effect}
        name = "keep" if effect >= 0 else "harm"
        cells = [f"{own[sd][name]:.3f} ({own[sd]['boots']:.1f})" for sd in sds]
        yield f"| {100 * effect:+g} % | {' | '.join(cells)} |"
