"""The long quality set on the controller: what to ask, what to execute, what came of it; the work is in
trispark.quality.run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from trispark.controller_action import ControllerAction, failure
from trispark.errors import TrisparkError
from trispark.gates import failed
from trispark.quality.run import LongSet, reference_path


class ActionModule(ControllerAction):
    """plugins/modules/trispark_quality.py has its documentation."""

    ARGUMENTS: ClassVar = {
        "root": {"type": "path", "required": True},
        "site": {"type": "str", "required": True},
        "step": {"type": "str", "choices": ["ask", "execute", "judge"], "required": True},
        "plan": {"type": "dict", "required": True},
        "answers": {"type": "list", "elements": "dict", "default": []},
        "sandbox": {"type": "dict", "default": {}},
        "reference": {"type": "str", "choices": ["", "keep"], "default": ""},
    }

    def work(self, given: dict[str, Any]) -> dict[str, Any]:
        root = Path(given["root"]).resolve()
        asked = LongSet.load(root, given["site"], given["plan"]["resolved"])
        answers = given["answers"]
        if given["step"] == "ask":
            return {"changed": False, "rounds": asked.requests()}
        if given["step"] == "execute":
            return {"changed": False, **asked.sandbox(answers)}
        path = reference_path(root, given["site"])
        results = asked.results(answers, given["sandbox"] or None)
        lines = [each.line() for each in results] + asked.notes(answers)
        keep = given["reference"] == "keep"
        if not keep:
            beside = asked.beside(path, answers)
            lines.append("no reference is kept, nothing was compared" if beside is None else beside.line())
            results += [] if beside is None else [beside]
        bad = failed(results)
        gates = [each.as_dict() for each in results]
        published = {"verb": "quality", "generation": given["plan"]["generation"], "ok": not bad, "gates": gates}
        done = {"changed": False, "lines": lines, "published": published}
        if bad:
            return {**failure(_failed(len(bad), len(results), bad[0].line()).as_dict()), **done, "failed": True}
        if keep and not self.check_mode:
            asked.keep(path, answers)
            return {**done, "changed": True, "lines": [*lines, f"kept as the reference: {path}"]}
        return done


def _failed(bad: int, count: int, first: str) -> TrisparkError:
    return TrisparkError(
        "TS-QUALITY-FAILED",
        f"{bad} of {count} quality gates failed",
        where="what runs now",
        expected="all of them",
        observed=first,
        remedy="playbooks/rollback.yml goes back to the last good generation",
    )
