"""The engine's counters under the field's metric names."""

from .metrics import Metric
from .scheduler import Scheduler


def engine_metrics(scheduler: Scheduler) -> list[Metric]:
    """All families, in a fixed order."""
    totals, limits, last, load = scheduler.totals, scheduler.limits, scheduler.line.last, scheduler.load()
    usage = load["num_used_tokens"] / limits.max_total_tokens
    gauges = [
        ("num_running_reqs", "Requests that run.", load["num_running_reqs"]),
        ("num_queue_reqs", "Requests that wait.", load["num_waiting_reqs"]),
        ("num_used_tokens", "Token places in use.", load["num_used_tokens"]),
        ("max_total_num_tokens", "Token places.", limits.max_total_tokens),
        ("token_usage", "Share of token places in use.", usage),
        ("gen_throughput", "Tokens a second in the last decode line.", last.throughput),
        ("spec_accept_length", "Accepted drafts and bonus a step, last decode line.", last.accept_length),
        ("spec_accept_rate", "Accepted share of drafts, last decode line.", last.accept_rate),
        ("spec_num_draft_tokens", "Rows a request and verification.", limits.block_size + 1),
        ("spec_num_steps", "Draft passes a step.", 1),
        ("is_cuda_graph", "Whether decode runs in a graph; never in this engine.", 0),
    ]
    if scheduler.speculation.cap.armed:
        gauges.append(("spec_cap_length", "Verified rows a request and step, last decode line.", last.cap_length))
    counters = [
        ("prompt_tokens_total", "Prompt tokens computed.", totals.prompt_tokens),
        ("generation_tokens_total", "Tokens committed.", totals.generated_tokens),
        ("cached_tokens_total", "Prompt tokens taken from a cache; none in this engine.", 0),
        ("realtime_tokens_total", "Prompt and committed tokens.", totals.prompt_tokens + totals.generated_tokens),
        ("num_requests_total", "Finished requests.", totals.finished_requests),
        ("spec_verify_calls_total", "Request verifications.", totals.verify_count),
    ]
    histograms = [
        ("time_to_first_token_seconds", "From submission to the first token.", totals.first_token_s),
        ("inter_token_latency_seconds", "Between tokens, a step's time shared by its tokens.", totals.between_tokens_s),
        ("e2e_request_latency_seconds", "From submission to the last token.", totals.request_s),
    ]
    return [
        *(Metric(f"sglang:{name}", "gauge", text, value) for name, text, value in gauges),
        *(Metric(f"sglang:{name}", "counter", text, value) for name, text, value in counters),
        *(Metric(f"sglang:{name}", "histogram", text, value) for name, text, value in histograms),
    ]
