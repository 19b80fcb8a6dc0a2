"""The command line: verbs of their own, and the table of the groups' verbs, in the order of the help."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from trispark import __version__
from trispark.cli import exit_codes, lab, records, verb
from trispark.cli.adapters import adapters_check
from trispark.cli.bench import bench_rounds, bench_run, bench_truth
from trispark.cli.demo import Demo
from trispark.cli.engram import engram_bench, engram_inspect, engram_pack, engram_verify
from trispark.cli.features import feature_lines, list_features
from trispark.cli.images_build import images_build
from trispark.cli.images_context import images_context, images_lint
from trispark.cli.images_lock import images_lock
from trispark.cli.images_provenance import images_attest, images_provenance
from trispark.cli.images_push import images_push
from trispark.cli.images_verify import images_verify
from trispark.cli.plan import plan_lines, provenance_note, refusal_line, run_plan
from trispark.cli.play import PairsCommand, PlayCommand, parse_extra, result_json
from trispark.cli.play_site import play_on_site
from trispark.cli.pytest_command import make_engine_environment, pytest_argv, pytest_environment
from trispark.cli.records import record_cache
from trispark.cli.recover import recover
from trispark.cli.report import make_report
from trispark.cli.rollback import rollback
from trispark.cli.site import site_check, site_init
from trispark.cli.sites import LAB
from trispark.cli.stats import stats_campaign, stats_floor, stats_simulate
from trispark.cli.status import completer, run_status, run_watch
from trispark.cli.validate import find_problems, validate_line
from trispark.cli.verb import ExtraOption, JsonOption, SiteOption
from trispark.host import LocalMachine, ensure_packages
from trispark.host.state import PUBLIC_UMASK
from trispark.status_watch import INTERVAL_S

PASSED_ON: Final[dict[str, Any]] = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Of a verb that hands the rest of its arguments on."""
_EPILOG = "\n\n".join(["Exit status:", *(f"{code:>5}  {meaning}" for code, meaning in exit_codes.MEANING.items())])

app = typer.Typer(
    name="trispark",
    help="Runs decode-throughput experiments on three DGX Sparks, or on three lab nodes of this machine, and finds the "
    "way back.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _group(name: str, about: str, *verbs: Callable[..., None]) -> typer.Typer:
    """The verb ``NAME V`` is the function NAME_V, in cli/NAME.py or a file whose name begins so."""
    group = typer.Typer(help=about, no_args_is_help=True)
    if len(verbs) == 1:
        group.callback()(_nothing)  # else its one verb would take the place of the group
    for each in verbs:
        group.command(each.__name__.removeprefix(f"{name}_"))(each)
    app.add_typer(group, name=name)
    return group


def _nothing() -> None:
    pass


app.command()(rollback)
app.command()(recover)
_lab = _group("lab", "The lab: three nodes in containers on this machine.", lab.lab_up, lab.lab_down, lab.lab_status)
_lab.command("shell", cls=lab.ShellCommand, context_settings=PASSED_ON)(lab.lab_shell)
_group(
    "records",
    "Records of boots and trials, from the controller's cache.",
    records.records_list,
    records.records_show,
    records.records_diff,
    records.records_replay,
    records.records_verify,
    records.records_export,
    records.records_prune,
)
_group("site", "Sites: the directories of inventory/, offline.", site_init, site_check)
_group(
    "stats",
    "The rules of decision: what they do, and what they say of numbers.",
    stats_simulate,
    stats_campaign,
    stats_floor,
)
_group("bench", "Measure what runs; the load client, and how exact it is.", bench_run, bench_truth, bench_rounds)
_group("adapters", "Adapters: the builds of the engine that they bind to.", adapters_check)
_group(
    "images",
    "Images: locks, builds, and what runs on each rank.",
    images_lock,
    images_context,
    images_lint,
    images_build,
    images_attest,
    images_provenance,
    images_push,
    images_verify,
)
_group(
    "engram",
    "Packed Engram shards: pack, verify, inspect, measure.",
    engram_pack,
    engram_verify,
    engram_inspect,
    engram_bench,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"trispark {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def setup() -> None:
    """Make .venv from the hash lock; every other verb does it too."""
    terminal, _ = verb.begin(None, changing=False)
    terminal.say(f"trispark {__version__}: .venv is complete")


@app.command()
def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the lab; without it the lab is removed at the end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Lab, stage A, the trial of wo_a, an incident and a rollback, on this machine only."""
    terminal = verb.begin_lab()
    player = verb.player(LAB, terminal)
    run = Demo(verb.REPO, player, lambda: lab.prepare_machine(verb.REPO, terminal.say), keep=keep)
    with lab.lab_alone(verb.REPO, terminal.say):
        status = run.run()
    if as_json:
        terminal.json(run.report.as_json())
    raise typer.Exit(status)


@app.command("test", context_settings=PASSED_ON)
def run_tests(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Also the tests marked slow.")] = False,
) -> None:
    """Run the tests; arguments after -- go to pytest. The last line is pytest's own."""
    from trispark.host.environment import Environment

    terminal = verb.begin_lab()
    environment = Environment(verb.REPO, terminal.say)
    environment.make_test()
    make_engine_environment(verb.REPO, terminal.say)
    lab.prepare_machine(verb.REPO, terminal.say)
    if LocalMachine().which("shellcheck") is None:
        ensure_packages(["shellcheck"], terminal.say)
    cores = os.cpu_count() or 1
    argv = pytest_argv(environment.python, everything=everything, arguments=list(context.args), cores=cores)
    os.chdir(verb.REPO)
    os.umask(PUBLIC_UMASK)  # the tests are no part of what is kept in .trispark
    os.execve(argv[0], argv, pytest_environment(verb.REPO))  # pytest replaces this process: nothing is printed after it


@app.command()
def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again, print changes, until Ctrl-C; writes no run's events.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.5, max=60, help="Seconds between two looks; 2 finds all within 10 s.")
    ] = INTERVAL_S,
    for_seconds: Annotated[
        float | None, typer.Option("--for", min=0, metavar="SECONDS", help="End the watch after so many seconds.")
    ] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Whether the nodes serve together, by a completion through all ranks, and what differs; changes nothing.

    A watch completes a rollback that waited for a node as soon as all nodes answer.

    Status 0: serving or stopped, and nothing to look at; 1: anything else; 4: a node does not answer.
    """
    if not watch and for_seconds is not None:
        raise typer.BadParameter("--for belongs to --watch")
    terminal, name = verb.begin(site, changing=watch)
    if name == LAB:
        lab.require_lab(verb.REPO, any_version=True)
    player = verb.player(name, terminal)
    if watch:
        done = completer(player)
        raise typer.Exit(run_watch(player, interval_s=interval, for_s=for_seconds, json=as_json, complete=done))
    raise typer.Exit(run_status(player, json=as_json))


@app.command()
def quality(
    keep: Annotated[
        bool, typer.Option("--keep-reference", help="Answers that pass become those that later ones are compared with.")
    ] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Judge what runs by its gates and the long quality set; as ./trispark play quality."""
    terminal, name = verb.begin(site, changing=True)
    if name == LAB:
        lab.require_lab(verb.REPO, any_version=False)
    result = verb.player(name, terminal).play("quality", {"reference": "keep"} if keep else {})
    if as_json:
        terminal.json(result_json(result, name))
    raise typer.Exit(exit_codes.of_run(result))


@app.command(cls=PairsCommand)
def plan(
    stage: Annotated[str, typer.Argument(help="Letter of a stage, stage_ and its letter, or confirm.")],
    extra: ExtraOption = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A what-if: a variable of the baseline, in both arms."),
    ] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a trial would do, offline: -e feature=NAME, for one value of a sweep also -e value=V.

    Both configurations, their difference, boots, hours, evidence, memory budget; then every refusal, with status 3.
    """
    terminal, name = verb.begin(site, changing=False, offline=True)
    found = run_plan(verb.REPO, name, stage, extra or (), sets or ())
    plans = found.get("plans", [found])
    for each in plans:
        for line in plan_lines(each):
            terminal.say(line)
        for refusal in each["refusals"]:
            terminal.error(refusal_line(refusal))
    provenance = provenance_note(verb.REPO, name, plans)
    if provenance is not None:
        terminal.say(f"note: {provenance}")
    if as_json:
        terminal.json(found)
    raise typer.Exit(exit_codes.of_refusals(refusal["id"] for each in plans for refusal in each["refusals"]))


@app.command()
def validate(site: SiteOption = None, as_json: JsonOption = False) -> None:
    """Check catalog, baseline, allowlist, exclusions, site and templates together; every problem, with status 3."""
    terminal, name = verb.begin(site, changing=False, offline=True)
    problems = find_problems(verb.REPO, name)
    terminal.say(validate_line(problems))
    for problem in problems:
        terminal.error(str(problem))
    if as_json:
        terminal.json({"site": name, "problems": [problem.as_dict() for problem in problems]})
    raise typer.Exit(exit_codes.REFUSED if problems else exit_codes.OK)


@app.command()
def features(
    stage: Annotated[str | None, typer.Option("--stage", help="Letter of a stage; all without it.")] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """What can be tried: kind, stages, what it sets, and where it cannot be run and why; offline.

    Of a site its engine images are asked, too: one that it lacks, or whose build lacks what a feature binds to.
    """
    terminal, name = verb.begin(site, changing=False, offline=True)
    entries = list_features(verb.REPO, name, stage)
    for line in feature_lines(entries):
        terminal.say(line)
    if as_json:
        terminal.json({"site": name, "stage": stage, "features": entries})


@app.command(cls=PlayCommand)
def play(
    playbook: Annotated[str, typer.Argument(help="Name of a file in playbooks/, without .yml.")],
    extra: ExtraOption = None,
    check: Annotated[bool, typer.Option("--check", help="Change nothing, say what would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Keep differences with the run's events.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run playbooks/NAME.yml with progress.

    Its events are kept in .trispark/runs, which holds the newest 50 runs of all verbs.
    """
    values = parse_extra(extra or ())
    raise typer.Exit(play_on_site(playbook, values, site, check=check, diff=diff, as_json=as_json))


@app.command()
def report(
    name: Annotated[str, typer.Argument(help="A trial's id (or its beginning) or number, or a campaign's name.")],
    form: Annotated[str, typer.Option("--format", help="html or md.")] = "html",
    out: Annotated[Path | None, typer.Option("--out", help="The file; without it one below .trispark.")] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """One self-contained file on a trial or campaign, from records alone: verdict, intervals, evidence, raw data."""
    terminal, chosen = verb.begin(site, changing=False, offline=True)
    made = make_report(verb.REPO, chosen, name, form, out)
    terminal.say(f"{made['kind']} {made['id']}: {made['path']} ({made['bytes']} bytes)")
    if as_json:
        terminal.json({"site": chosen, **made})


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="Boots: numbers or ids of `records list` or generations, with commas.")],
    second: Annotated[str, typer.Argument(help="The boots that are compared with them.")],
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """What two groups of boots measured, with intervals over boots and what else differs; never a verdict."""
    from trispark.boot_comparison import choose_boots, compare_boots
    from trispark.cli.compare import comparison_lines
    from trispark.noise_floor import kept_noise
    from trispark.older_records import older_caches

    terminal, name = verb.begin(site, changing=False, offline=True)
    cache = record_cache(verb.REPO, name)
    records, older = cache.list(), [chain.list() for chain in older_caches(cache)]
    chosen = [choose_boots(names, records, older) for names in (first, second)]
    found = compare_boots(chosen[0], chosen[1], kept_noise(verb.REPO, name))
    for line in comparison_lines(found):
        terminal.say(line)
    if as_json:
        terminal.json({"site": name, **found.as_dict()})


@app.command("support-bundle")
def support_bundle(
    out: Annotated[Path | None, typer.Option("--out", help="The file; without it one below .trispark.")] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Names of nodes, hosts and users, and addresses, as stand-ins.")
    ] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """One tar.gz for a report on a fault, without secrets. Also with nodes down: they are named, with status 4."""
    from trispark.cli.support import bundle_lines
    from trispark.cli.support import support_bundle as make_bundle

    terminal, name = verb.begin(site, changing=False, offline=True)
    made = make_bundle(verb.REPO, name, out, anonymous=anonymous)
    for line in bundle_lines(made):
        terminal.say(line)
    if as_json:
        terminal.json(
            {"site": name, "path": str(made.path), "bytes": made.size, "files": made.files, "missing": made.missing}
        )
    raise typer.Exit(exit_codes.UNREACHABLE if made.missing else exit_codes.OK)
