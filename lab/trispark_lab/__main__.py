"""Start one rank: `python -m trispark_lab --model-path ... --tp 3 --nnodes 3 --node-rank R ...`."""

import os
import sys
from collections.abc import Sequence

from .config import parse
from .errors import EngineError, EngramFailure
from .logs import EngineLog, set_current

EXIT_REFUSED = 2
EXIT_FAILED = 1
EXIT_ENGRAM = 134
SWITCH_INTERVAL_S = 0.0005


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 after a stop, 2 for a refused start, 1 for a failure, 134 when exact rows can not be served."""
    try:
        engine = parse(sys.argv[1:] if argv is None else argv, os.environ)
    except EngineError as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_REFUSED
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    log = EngineLog(engine.rank, engine.ep_size)
    set_current(log)
    try:
        if engine.rank == 0:
            from .head import run_head

            return run_head(engine, log)
        from .worker import run_worker

        return run_worker(engine, log)
    except EngineError as error:
        log.rank_line(f"Scheduler hit an exception: {error}")
        print(error, file=sys.stderr, flush=True)
        return EXIT_FAILED
    except EngramFailure as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_ENGRAM


if __name__ == "__main__":
    # The reader pool may hold a thread in a read that never returns; the exit must not wait for it.
    code = main()
    sys.stdout.flush()
    os._exit(code)
