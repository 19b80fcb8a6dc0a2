"""The verbs of ``./trispark``."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trispark import __version__
from trispark.cli import exit_codes, images_build, images_provenance  # noqa: F401 commands of their own
from trispark.cli.adapters import adapters_app
from trispark.cli.bench import add_rounds, bench_app
from trispark.cli.demo import Demo
from trispark.cli.engram import engram_app
from trispark.cli.features import feature_lines, list_features
from trispark.cli.images import images_app
from trispark.cli.images_verify import add_images_verify
from trispark.cli.lab import (
    LAB_PLAYBOOKS,
    lab_alone,
    lab_lines,
    lab_state,
    prepare_machine,
    require_lab,
)
from trispark.cli.plan import plan_lines, refusal_line, run_plan
from trispark.cli.play import READ_ONLY, PlayCommand, Player, parse_extra, result_json
from trispark.cli.pytest_command import make_engine_environment, pytest_argv, pytest_environment
from trispark.cli.records import (
    compared,
    export_target,
    kept_boot_logs,
    prune_lines,
    record_cache,
    replay_lines,
    replayed,
    summaries,
    summary,
)
from trispark.cli.report import make_report
from trispark.cli.rollback import add_rollback
from trispark.cli.sites import LAB, choose_site, known_sites, require_known
from trispark.cli.stats import stats_app
from trispark.cli.status import completer, run_status, run_watch
from trispark.cli.terminal import Terminal
from trispark.cli.validate import find_problems, validate_line
from trispark.errors import TrisparkError
from trispark.host import LocalMachine, ensure_packages
from trispark.host.state import PUBLIC_UMASK
from trispark.lab.share_mode import ShareMode, declare_share
from trispark.play_variables import VARIABLES, require_variables
from trispark.status_watch import INTERVAL_S

REPO = Path(__file__).resolve().parents[3]

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
lab_app = typer.Typer(help="The lab: three nodes in containers on this machine.", no_args_is_help=True)
records_app = typer.Typer(help="Records of boots and trials, from the controller's cache.", no_args_is_help=True)
site_app = typer.Typer(help="Sites: the directories of inventory/, offline.", no_args_is_help=True)
app.add_typer(lab_app, name="lab")
app.add_typer(records_app, name="records")
app.add_typer(site_app, name="site")
app.add_typer(stats_app, name="stats")
app.add_typer(bench_app, name="bench")
app.add_typer(adapters_app, name="adapters")
app.add_typer(images_app, name="images")

SiteOption = Annotated[
    str | None, typer.Option("--site", envvar="TRISPARK_SITE", help="A directory of inventory/; the lab by default.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line.")]
ExtraOption = Annotated[list[str] | None, typer.Option("--extra-vars", "-e", metavar="NAME=VALUE")]


def _begin(named: str | None, *, changing: bool, offline: bool = False) -> tuple[Terminal, str]:
    """Every verb's first line is the site."""
    terminal = Terminal()
    choice = choose_site(REPO, named, changing=changing, offline=offline)
    terminal.say(choice.line)
    return terminal, choice.name


add_rounds(_begin, lambda site, terminal: Player(REPO, site, terminal))
add_rollback(app, _begin, lambda site, terminal: Player(REPO, site, terminal))
add_images_verify(images_app, _begin, lambda site, terminal: Player(REPO, site, terminal))
app.add_typer(engram_app(_begin, lambda site, terminal: Player(REPO, site, terminal)), name="engram")


def _begin_lab() -> Terminal:
    terminal = Terminal()
    terminal.say(f"site: {LAB}")
    return terminal


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
    terminal, _ = _begin(None, changing=False)
    terminal.say(f"trispark {__version__}: .venv is complete")


@app.command()
def demo(
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the lab; without it the lab is removed at the end.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Lab, stage A, the trial of wo_a, an incident and a rollback, on this machine only."""
    terminal = _begin_lab()
    player = Player(REPO, LAB, terminal)
    run = Demo(REPO, player, lambda: prepare_machine(REPO, terminal.say), keep=keep)
    with lab_alone(REPO, terminal.say):
        status = run.run()
    if as_json:
        terminal.json(run.report.as_json())
    raise typer.Exit(status)


@app.command("test", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def run_tests(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Also the tests marked slow.")] = False,
) -> None:
    """Run the tests; arguments after -- go to pytest. The last line is pytest's own."""
    from trispark.host.environment import Environment

    terminal = _begin_lab()
    environment = Environment(REPO, terminal.say)
    environment.make_test()
    make_engine_environment(REPO, terminal.say)
    prepare_machine(REPO, terminal.say)
    if LocalMachine().which("shellcheck") is None:
        ensure_packages(["shellcheck"], terminal.say)
    cores = os.cpu_count() or 1
    argv = pytest_argv(environment.python, everything=everything, arguments=list(context.args), cores=cores)
    os.chdir(REPO)
    os.umask(PUBLIC_UMASK)  # the tests are no part of what is kept in .trispark
    os.execve(argv[0], argv, pytest_environment(REPO))  # pytest replaces this process: nothing is printed after it


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
    terminal, name = _begin(site, changing=watch)
    if name == LAB:
        require_lab(REPO, any_version=True)
    player = Player(REPO, name, terminal)
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
    terminal, name = _begin(site, changing=True)
    if name == LAB:
        require_lab(REPO, any_version=False)
    result = Player(REPO, name, terminal).play("quality", {"reference": "keep"} if keep else {})
    if as_json:
        terminal.json(result_json(result, name))
    raise typer.Exit(exit_codes.of_run(result))


@app.command()
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
    terminal, name = _begin(site, changing=False, offline=True)
    found = run_plan(REPO, name, stage, extra or (), sets or ())
    plans = found.get("plans", [found])
    for each in plans:
        for line in plan_lines(each):
            terminal.say(line)
        for refusal in each["refusals"]:
            terminal.error(refusal_line(refusal))
    if as_json:
        terminal.json(found)
    raise typer.Exit(exit_codes.REFUSED if any(each["refusals"] for each in plans) else exit_codes.OK)


@app.command()
def validate(site: SiteOption = None, as_json: JsonOption = False) -> None:
    """Check catalog, baseline, allowlist, exclusions, site and templates together; every problem, with status 3."""
    terminal, name = _begin(site, changing=False, offline=True)
    problems = find_problems(REPO, name)
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
    terminal, name = _begin(site, changing=False, offline=True)
    entries = list_features(REPO, name, stage)
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
    lab_only = playbook.startswith(("lab_", "demo_"))
    terminal, name = (_begin_lab(), LAB) if lab_only else _begin(site, changing=not check and playbook not in READ_ONLY)
    require_variables(REPO, name, playbook, values)
    # One that is not there is refused as such.
    there = playbook in VARIABLES or (REPO / "playbooks" / f"{playbook}.yml").is_file()
    if name == LAB and there and playbook not in LAB_PLAYBOOKS:
        require_lab(REPO, any_version=playbook in READ_ONLY)
    with lab_alone(REPO, terminal.say) if playbook in LAB_PLAYBOOKS else nullcontext():
        result = Player(REPO, name, terminal).play(playbook, values, check=check, diff=diff)
    if result.ok:
        terminal.say(f"{playbook}: done in {result.seconds:.1f} s; events: .trispark/runs/{result.run_id}")
    if as_json:
        terminal.json(result_json(result, name))
    raise typer.Exit(exit_codes.of_run(result))


@app.command()
def report(
    name: Annotated[str, typer.Argument(help="A trial's id (or its beginning) or number, or a campaign's name.")],
    form: Annotated[str, typer.Option("--format", help="html or md.")] = "html",
    out: Annotated[Path | None, typer.Option("--out", help="The file; without it one below .trispark.")] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """One self-contained file on a trial or campaign, from records alone: verdict, intervals, evidence, raw data."""
    terminal, chosen = _begin(site, changing=False, offline=True)
    made = make_report(REPO, chosen, name, form, out)
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

    terminal, name = _begin(site, changing=False, offline=True)
    cache = record_cache(REPO, name)
    records, older = cache.list(), [chain.list() for chain in older_caches(cache)]
    chosen = [choose_boots(names, records, older) for names in (first, second)]
    found = compare_boots(chosen[0], chosen[1], kept_noise(REPO, name))
    for line in comparison_lines(found):
        terminal.say(line)
    if as_json:
        terminal.json({"site": name, **found.as_dict()})


@app.command("support-bundle")
def support(
    out: Annotated[Path | None, typer.Option("--out", help="The file; without it one below .trispark.")] = None,
    anonymous: Annotated[
        bool, typer.Option("--anonymous", help="Names of nodes, hosts and users, and addresses, as stand-ins.")
    ] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """One tar.gz for a report on a fault, without secrets. Also with nodes down: they are named, with status 4."""
    from trispark.cli.support import bundle_lines, support_bundle

    terminal, name = _begin(site, changing=False, offline=True)
    made = support_bundle(REPO, name, out, anonymous=anonymous)
    for line in bundle_lines(made):
        terminal.say(line)
    if as_json:
        terminal.json(
            {"site": name, "path": str(made.path), "bytes": made.size, "files": made.files, "missing": made.missing}
        )
    raise typer.Exit(exit_codes.UNREACHABLE if made.missing else exit_codes.OK)


@lab_app.command("up")
def lab_up(
    share: Annotated[
        ShareMode | None,
        typer.Option(help="How the workers see the checkpoint: a copy each, or the head's. Kept until changed."),
    ] = None,
) -> None:
    """Make the lab, or bring it to its declared state; a second time changes nothing."""
    terminal = _begin_lab()
    with lab_alone(REPO, terminal.say):
        if share is not None:
            declare_share(REPO, share)
        prepare_machine(REPO, terminal.say)
        result = Player(REPO, LAB, terminal).play("lab_up")
    if result.ok:
        terminal.say(f"the lab is up{'' if result.changed else ' (nothing to change)'}; {result.seconds:.1f} s")
    raise typer.Exit(exit_codes.of_run(result))


@lab_app.command("down")
def lab_down() -> None:
    """Remove the lab and everything it made in Docker; the cache stays."""
    terminal = _begin_lab()
    if not lab_state(REPO)["docker"]:
        terminal.say("no Docker Engine answers: there is no lab")
        return
    with lab_alone(REPO, terminal.say):
        result = Player(REPO, LAB, terminal).play("lab_down")
    if result.ok:
        terminal.say(f"the lab is gone{'' if result.changed else ' (there was none)'}; {result.seconds:.1f} s")
    raise typer.Exit(exit_codes.of_run(result))


@lab_app.command("status")
def lab_status(as_json: JsonOption = False) -> None:
    """The lab's containers, as Docker shows them."""
    terminal = _begin_lab()
    state = lab_state(REPO)
    for line in lab_lines(state):
        terminal.say(line)
    if as_json:
        terminal.json({"site": LAB, **state})


class ShellCommand(TyperCommand):
    """`lab shell`, whose usage shows the command that may follow."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND...]"]


@lab_app.command("shell", cls=ShellCommand, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab_shell(
    context: typer.Context,
    node: Annotated[str, typer.Argument(metavar="NODE", help="spark0, spark1 or spark2.")],
) -> None:
    """A shell on a node as user trispark (sudo for root), or a command after --: words, or one text for its shell."""
    from trispark.lab.status import shell_command

    _begin_lab()
    argv = shell_command(node, REPO, context.args)
    if LocalMachine().which(argv[0]) is None:
        raise TrisparkError(
            "TS-LAB-DOWN",
            "there is no ssh client, so no lab",
            where="PATH",
            expected=f"the program {argv[0]}",
            observed="no such program",
            remedy="./trispark lab up",
        )
    os.execvp(argv[0], argv)


@site_app.command("init")
def site_init(name: Annotated[str, typer.Argument(help="Name of the new directory of inventory/.")]) -> None:
    """Write the files of a new site, with comments, to be filled in; never over something that is there."""
    from trispark.site_files import write_site

    terminal = Terminal()
    terminal.say(f"site: {name}")
    for path in write_site(REPO, name):
        terminal.say(f"written: {path.relative_to(REPO)}")
    terminal.say(f"fill them in, then: ./trispark site check {name}")


@site_app.command("check")
def site_check(
    name: Annotated[str | None, typer.Argument(help="A directory of inventory/; all of them without it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check all of a site's files offline, one line for each problem."""
    from trispark.site_check import check_site

    if name is not None:
        require_known(REPO, name)
    terminal = Terminal()
    reports = [check_site(REPO, each) for each in ([name] if name is not None else known_sites(REPO))]
    for report in reports:
        terminal.say(report.headline())
        for problem in report.problems:
            terminal.say(str(problem))
    if as_json:
        terminal.json({"sites": [report.as_dict() for report in reports]})
    raise typer.Exit(exit_codes.REFUSED if any(report.problems for report in reports) else exit_codes.OK)


@records_app.command("list")
def records_list(
    older: Annotated[bool, typer.Option("--older", help="Also those of nodes that were made anew.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """All cached records, oldest first."""
    terminal, name = _begin(site, changing=False)
    found, chains = summaries(record_cache(REPO, name), REPO, older=older)
    for one in found:
        terminal.say(f"{one['seq']:>5}  {one['id']}  {one['kind'] or '-'}  {one['outcome'] or '-'}  {one['path']}")
    if not found:
        terminal.say("no records yet" if older or not chains else "no records yet of these nodes")
    if chains and not older:
        terminal.say(f"records of nodes that were made anew (--older lists them): {', '.join(chains)}")
    if as_json:
        terminal.json({"site": name, "records": found, "older": chains})


@records_app.command("show")
def records_show(
    record: Annotated[str, typer.Argument(help="A number or id of `records list`.")],
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """One record: indented, or as one line with --json."""
    terminal, name = _begin(site, changing=False)
    from trispark.older_records import find_record

    chain, found = find_record(record_cache(REPO, name), record)
    if as_json:
        terminal.json({"site": name, "path": summary(chain, found, REPO)["path"], "record": found})
    else:
        terminal.say(json.dumps(found, ensure_ascii=False, indent=2))


@records_app.command("diff")
def records_diff(
    first: Annotated[str, typer.Argument(help="A number or id of `records list`.")],
    second: Annotated[str, typer.Argument(help="Another one of the same kind.")],
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """What differs in what was asked for, resolved and observed; ports, times and counters are no difference."""
    terminal, name = _begin(site, changing=False, offline=True)
    lines, form = compared(record_cache(REPO, name), first, second)
    for line in lines:
        terminal.say(line)
    if as_json:
        terminal.json({"site": name, **form})


@records_app.command("replay")
def records_replay(
    record: Annotated[str, typer.Argument(help="A number or id of `records list`.")],
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """The plan and the command that repeat a boot or trial; refused when a pinned input is gone or differs."""
    terminal, name = _begin(site, changing=False, offline=True)
    found = replayed(REPO, name, record)
    for line in replay_lines(found):
        terminal.say(line)
    if as_json:
        terminal.json({"site": name, **found})


@records_app.command("verify")
def records_verify(site: SiteOption = None, as_json: JsonOption = False) -> None:
    """Check every cached record by the published schema, and the hash chain; the first broken one is named."""
    terminal, name = _begin(site, changing=False, offline=True)
    cache = record_cache(REPO, name)
    head = cache.verify()
    count = len(cache.list())
    newest = f", the newest is {head['seq']} ({head['id']}) with {head['hash'][:12]}" if head else ""
    terminal.say(f"{count} records are whole{newest}")
    if as_json:
        terminal.json({"site": name, "records": count, "head": head})


@records_app.command("export")
def records_export(
    to: Annotated[Path | None, typer.Option("--to", help="A new file; below .trispark without it.")] = None,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Records and kept logs as one tar.gz for you alone; the same records give the same bytes."""
    from trispark.record_archive import export_records, kept_logs

    terminal, name = _begin(site, changing=False, offline=True)
    cache = record_cache(REPO, name)
    target = export_target(REPO, name, cache, to)
    manifest = export_records(name, cache, kept_logs(kept_boot_logs(REPO, name)), target)
    terminal.say(f"{manifest['records']} records, {len(manifest['files'])} files in {target}")
    if as_json:
        terminal.json({"site": name, "path": str(target), "manifest": manifest})


@records_app.command("prune")
def records_prune(
    keep: Annotated[int, typer.Option("--keep", min=0, help="How many boots' logs stay.")],
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only named.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove the controller's kept logs of all but the newest boots. Records and the nodes' own logs stay."""
    from trispark.record_archive import logs_to_prune, prune_logs

    terminal, name = _begin(site, changing=yes, offline=True)
    logs = logs_to_prune(kept_boot_logs(REPO, name), keep)
    lines = list(prune_lines(logs, done=yes))
    if yes:
        prune_logs(logs)
    for line in lines:
        terminal.say(line)
    if as_json:
        removed = [{"boot": log.boot_id, "files": len(log.files)} for log in logs]
        terminal.json({"site": name, "removed" if yes else "would_remove": removed})
