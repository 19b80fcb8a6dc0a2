"""Plays one playbook of the user's choice on a site; what ``./trispark play`` and ``bench run`` do."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

from trispark.cli import exit_codes, lab, verb
from trispark.cli.play import READ_ONLY, result_json
from trispark.cli.sites import LAB
from trispark.play_variables import VARIABLES, require_variables


def play_on_site(
    playbook: str, values: Mapping[str, str], named: str | None, *, check: bool, diff: bool, as_json: bool
) -> int:
    """The exit status. Raises TS-PLAY-*, TS-SITE-*, TS-LAB-*."""
    lab_only = playbook.startswith(("lab_", "demo_"))
    changing = not check and playbook not in READ_ONLY
    terminal, name = (verb.begin_lab(), LAB) if lab_only else verb.begin(named, changing=changing)
    given = dict(values)
    require_variables(verb.REPO, name, playbook, given)
    # One that is not there is refused as such.
    there = playbook in VARIABLES or (verb.REPO / "playbooks" / f"{playbook}.yml").is_file()
    if name == LAB and there and playbook not in lab.LAB_PLAYBOOKS:
        lab.require_lab(verb.REPO, any_version=playbook in READ_ONLY)
    with lab.lab_alone(verb.REPO, terminal.say) if playbook in lab.LAB_PLAYBOOKS else nullcontext():
        result = verb.player(name, terminal).play(playbook, given, check=check, diff=diff)
    if result.ok:
        terminal.say(f"{playbook}: done in {result.seconds:.1f} s; events: .trispark/runs/{result.run_id}")
    if as_json:
        terminal.json(result_json(result, name))
    return exit_codes.of_run(result)
