"""What rank 0 makes of its launch arguments, environment and port."""

import io
import socket
from pathlib import Path

import pytest

from trispark_lab.config import load_model_config, parse
from trispark_lab.errors import EngineError
from trispark_lab.head import delay_of, limits_of, run_head, speculation_of
from trispark_lab.health import HealthServer
from trispark_lab.logs import EngineLog
from trispark_lab.scheduler import Limits

FLAGS = {
    "--max-running-requests": 6,
    "--chunked-prefill-size": 77,
    "--max-total-tokens": 512,
    "--speculative-dspark-block-size": 5,
    "--decode-log-interval": 13,
    "--max-queued-requests": 9,
    "--min-free-slots-delay": 1,
}


def test_limits_are_the_launch_arguments(checkpoint: Path) -> None:
    argv = ["--model-path", str(checkpoint), *(word for pair in FLAGS.items() for word in map(str, pair))]
    config = load_model_config(checkpoint)
    limits = limits_of(parse(argv, {}), config)
    ids = {"history": 3, "eos": config.eos_token, "pad": config.engram_pad_token}
    assert limits == Limits(
        max_running=6,
        chunk=77,
        max_total_tokens=512,
        block_size=5,
        log_interval=13,
        max_queued=9,
        min_free_slots=1,
        **ids,
    )


def test_speculation_is_the_environment() -> None:
    environ = {"DSV41_DRAFT_TAU": "0.8", "DSV41_BLOCK_VERIFY": "1", "DSV41_VERIFY_CAP": "2"}
    told = speculation_of(parse(["--model-path", "/m"], environ))
    assert (told.draft_tau, told.block_verify, told.cap.fixed) == (0.8, True, 2)
    plain = speculation_of(parse(["--model-path", "/m"], {}))
    assert (plain.draft_tau, plain.block_verify, plain.cap.armed) == (1.0, False, False)


def test_the_planted_delay_is_a_share_of_the_environment_s_per_cent() -> None:
    shares = [delay_of(parse(["--model-path", "/m"], env)).share for env in ({}, {"DSV41_LAB_STEP_DELAY_PCT": "15"})]
    assert shares == [0.0, 0.15]


def test_a_taken_api_port_is_one_line_before_anything_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        engine = parse(["--model-path", "/absent", "--port", str(port)], {})
        with pytest.raises(EngineError, match=rf"TS-ENGINE-PORT: .*127\.0\.0\.1:{port}.*a free port") as caught:
            run_head(engine, EngineLog(0, 1, io.StringIO()))
        with pytest.raises(EngineError, match="TS-ENGINE-PORT"):
            HealthServer("127.0.0.1", port)
    assert "\n" not in str(caught.value)
