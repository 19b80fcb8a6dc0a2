"""Broken on purpose: rows and their cache, prefetch, twins, autotune, placements, ranks, and the engine's variables."""

from __future__ import annotations

from mutation_run import Mutation

_LAB, _HOOKS, _TESTS = "lab/trispark_lab", "adapters/trispark_hooks", "tests/unit/lab_engine"
_STORE, _CACHE, _MODEL = (f"{_LAB}/{name}.py" for name in ("row_store", "row_cache", "model"))
_AUTOTUNE, _EXPERTS, _COLLECTIVE, _LINKS = (
    f"{_LAB}/{name}.py" for name in ("autotune", "experts", "collective", "links")
)
_ENVIRONMENT, _CONFIG = f"{_LAB}/environment.py", f"{_LAB}/config.py"
_PREFETCH, _TWINS = f"{_HOOKS}/lab_engram_prefetch.py", f"{_HOOKS}/lab_wo_a_w8.py"
_OF_STORE, _OF_CACHE, _OF_EXACT, _OF_AUTOTUNE, _OF_EXPERTS, _OF_LINKS, _OF_ENVIRONMENT, _OF_PROCESSES = (
    f"{_TESTS}/test_{name}.py"
    for name in (
        "row_store",
        "row_cache",
        "exact_mechanisms",
        "autotune",
        "experts",
        "links",
        "environment",
        "three_ranks",
    )
)
_OF_PREFETCH, _OF_TWINS = (f"tests/unit/adapters/test_{name}.py" for name in ("lab_engram_prefetch", "lab_wo_a_w8"))
_OF_ALLOWLIST = "tests/unit/controller/test_allowlist_matches_engine.py"
_OF_CONTROLLER = "tests/unit/controller/test_resolve.py"

ROWS = (
    Mutation(
        "unpacked rows count one read",
        _STORE,
        "reads = misses if self.packed else 2 * misses",
        "reads = misses",
        f"{_OF_STORE}::test_packed_and_unpacked_give_the_same_bytes_and_count_their_reads",
    ),
    Mutation(
        "packed rows are read twice",
        _STORE,
        "view[at : at + ROW_BYTES] = read(HEADER_BYTES + ROW_BYTES * (rows[index] - first), ROW_BYTES)",
        "view[at : at + ROW_BYTES] = read(HEADER_BYTES + ROW_BYTES * (rows[index] - first), ROW_BYTES)\n"
        "            read(HEADER_BYTES, 1)",
        f"{_OF_STORE}::test_the_counted_reads_are_those_of_the_kernel",
    ),
    Mutation(
        "unpacked scales come from the row's place in the shard",
        _STORE,
        "read(self._scale_at + SCALE_BYTES * row, SCALE_BYTES)",
        "read(self._scale_at + SCALE_BYTES * (row - self.shard.first), SCALE_BYTES)",
        f"{_OF_STORE}::test_packed_and_unpacked_give_the_same_bytes_and_count_their_reads",
    ),
    Mutation(
        "a packed shard of another rank is taken",
        _STORE,
        "        if have != want:\n",
        "        if have is None:\n",
        f"{_OF_STORE}::test_a_wrong_header_field_ends_the_start",
    ),
    Mutation(
        "a short read gives old bytes",
        _STORE,
        "        if got < inside + length:\n",
        "        if got < 0:\n",
        f"{_OF_STORE}::test_a_file_that_shrinks_later_ends_the_lookup",
    ),
    Mutation(
        "packed is said of every layer",
        _STORE,
        'f"io_threads={io_threads} packed={store.packed}"',
        'f"io_threads={io_threads} packed=True"',
        f"{_OF_STORE}::test_a_start_line_tells_unpacked_rows",
    ),
    Mutation(
        "row cache: one way of all is used",
        _CACHE,
        "way = (self._victim[ordered].astype(np.int64) + turn) % self.ways",
        "way = 0 * turn",
        f"{_OF_CACHE}::test_it_holds_what_the_model_holds",
    ),
    Mutation(
        "row cache: the same victim each time",
        _CACHE,
        "self._victim[touched] = (self._victim[touched].astype(np.int64) + counts) % self.ways",
        "self._victim[touched] = 0",
        f"{_OF_CACHE}::test_it_holds_what_the_model_holds",
    ),
    Mutation(
        "row cache: the row of another id is a hit",
        _CACHE,
        "hit = found.any(axis=1)",
        "hit = self._tags[places, 0] >= 0",
        f"{_OF_CACHE}::test_it_holds_what_the_model_holds",
    ),
    Mutation(
        "row cache: each layer has the whole budget",
        _CACHE,
        "return int(gib * 2**30) // layers",
        "return int(gib * 2**30)",
        f"{_OF_CACHE}::test_the_budget_is_divided_over_the_layers",
    ),
    Mutation(
        "row cache: tags are not in the budget",
        _CACHE,
        "SLOT_BYTES = 272",
        "SLOT_BYTES = 264",
        f"{_OF_CACHE}::test_the_budget_is_divided_over_the_layers",
    ),
    Mutation(
        "row cache: whole GiB alone",
        _CONFIG,
        'cache_gib=float(environ.get("DSV41_CACHE_GIB", "0"))',
        'cache_gib=float(int(float(environ.get("DSV41_CACHE_GIB", "0"))))',
        f"{_OF_EXACT}::test_row_cache",
    ),
    Mutation(
        "row cache: rows that were read count as hits",
        _STORE,
        "hits = len(ids) - misses",
        "hits = len(ids)",
        f"{_OF_CACHE}::test_bytes_and_counts",
    ),
    Mutation(
        "row cache: its line has no hits",
        _STORE,
        'hits = f" hits={delta.hits}" if store.slots else ""',
        'hits = ""',
        f"{_OF_CACHE}::test_lines",
    ),
    Mutation(
        "row cache: a row that is wanted twice is read twice",
        _STORE,
        "distinct, inverse = np.unique(ids[missing], return_inverse=True)",
        "distinct, inverse = ids[missing], np.arange(len(missing))",
        f"{_OF_CACHE}::test_bytes_and_counts",
    ),
)

_SWITCHES, _OF_SWITCHES = f"{_LAB}/switches.py", f"{_TESTS}/test_switches.py"

SWITCHES = (
    Mutation(
        "switches: a rank in an older epoch agrees",
        _SWITCHES,
        "ack.epoch == self.order.epoch and ack.on",
        "ack.on",
        f"{_OF_SWITCHES}::test_ranks_agree_only_in_epoch_and_state",
    ),
    Mutation(
        "switches: an order never ends by itself",
        _SWITCHES,
        "self._until[name] = self._clock() + hold_s",
        "self._until.pop(name, None)",
        f"{_OF_SWITCHES}::test_every_order_has_the_next_epoch_and_ends_by_itself",
    ),
    Mutation(
        "switches: a prefetch that is off goes on",
        _PREFETCH,
        "        self._wanted = on\n",
        "        self._wanted = True\n",
        f"{_OF_SWITCHES}::test_what_is_off_does_not_act",
    ),
    Mutation(
        "switches: a cache that is off is read",
        _STORE,
        "if self.cache is None or not self._cached:",
        "if self.cache is None:",
        f"{_OF_CACHE}::test_rows_are_read_past_the_cache_and_through_it_again",
    ),
)

PREFETCH = (
    Mutation(
        "prefetch: the ids are not told when they are known",
        _MODEL,
        "engram.ids_known([lookup for _, lookup in owned if lookup.ids.size])",
        "engram.ids_known([])",
        f"{_OF_EXACT}::test_engram_prefetch",
    ),
    Mutation(
        "prefetch: the gather does not join the read",
        _PREFETCH,
        "        in_time = pending.done.wait(JOIN_DEADLINE_S)\n",
        "        if not pending.done.is_set():\n            return None\n"
        "        in_time = pending.done.wait(JOIN_DEADLINE_S)\n",
        f"{_OF_PREFETCH}::test_gather_waits_for_its_read",
    ),
    Mutation(
        "prefetch: the time that a gather waits counts as hidden",
        _PREFETCH,
        "max(min(pending.ended, joined) - pending.began, 0.0)",
        "max(pending.ended - pending.began, 0.0)",
        f"{_OF_PREFETCH}::test_what_a_gather_waits_is_exposed_and_only_the_rest_hidden",
    ),
    Mutation(
        "prefetch: rows of other ids are served",
        _PREFETCH,
        "return one.store is other.store and np.array_equal(one.ids, other.ids)",
        "return one.store is other.store",
        f"{_OF_PREFETCH}::test_other_ids_are_read_synchronously",
    ),
    Mutation(
        "prefetch: rows of the forward before are served",
        _PREFETCH,
        "        self._ids_known(lookups)\n        self._pending.clear()\n",
        "        self._ids_known(lookups)\n",
        f"{_OF_PREFETCH}::test_rows_of_the_forward_before_are_never_used",
    ),
    Mutation(
        "prefetch: the check compares nothing",
        _PREFETCH,
        "differs = not np.array_equal(rows, self._gather(lookup))",
        "differs = False",
        f"{_OF_PREFETCH}::test_check_compares_and_counts",
    ),
    Mutation(
        "prefetch: the check is never armed",
        _PREFETCH,
        "                if self._check:\n                    self._compare(lookup, rows)\n",
        "",
        f"{_OF_PREFETCH}::test_check_compares_and_counts",
    ),
    Mutation(
        "prefetch: it is disabled in silence",
        _PREFETCH,
        '        self._announce(f"{NAME} disabled after error: {type(error).__name__}: {error}")\n',
        "",
        f"{_OF_PREFETCH}::test_an_error_disables_it_visibly_and_the_rows_stay_right",
    ),
    Mutation(
        "prefetch: it goes on after an error",
        _PREFETCH,
        "        self._enabled = False\n",
        "",
        f"{_OF_PREFETCH}::test_an_error_disables_it_visibly_and_the_rows_stay_right",
    ),
    Mutation(
        "prefetch: what was read synchronously counts as served",
        _PREFETCH,
        "        self.synchronous += 1\n",
        "        self.served += 1\n",
        f"{_OF_PREFETCH}::test_other_ids_are_read_synchronously",
    ),
)

TWINS = (
    Mutation(
        "wo_a: a twin that is not exact is used",
        _TWINS,
        "    if not bool(exact.all()):\n        return None\n"
        "    twin = Twin(codes, (exponent + e4m3.UE8M0_BIAS).astype(np.uint8))\n"
        "    same = np.array_equal(twin.dequantise().view(np.uint32), np.ascontiguousarray(weight).view(np.uint32))\n"
        "    return twin if same else None\n",
        "    return Twin(codes, (exponent + e4m3.UE8M0_BIAS).astype(np.uint8))\n",
        f"{_OF_TWINS}::test_an_inexact_weight_is_left",
    ),
    Mutation(
        "wo_a: exponents are one too large",
        _TWINS,
        "np.where(mantissa == 0.5, power - 1, power)",
        "power",
        f"{_OF_TWINS}::test_the_exponent_is_the_fields",
    ),
    Mutation(
        "wo_a: the quick product takes the scales of its first rows",
        _TWINS,
        "np.ldexp(_HALF, rows[first])",
        "np.ldexp(_HALF, rows[0])",
        f"{_OF_TWINS}::test_the_quick_product_has_the_bits_of_the_slow_one",
    ),
    Mutation(
        "wo_a: one row takes the twin",
        _TWINS,
        "MIN_ROWS, MAX_ROWS, MAX_MID_ROWS = 2, 8, 192",
        "MIN_ROWS, MAX_ROWS, MAX_MID_ROWS = 1, 8, 192",
        f"{_OF_TWINS}::test_path_by_rows_and_equal_results",
    ),
    Mutation(
        "wo_a: nine rows take the twin",
        _TWINS,
        "MIN_ROWS, MAX_ROWS, MAX_MID_ROWS = 2, 8, 192",
        "MIN_ROWS, MAX_ROWS, MAX_MID_ROWS = 2, 9, 192",
        f"{_OF_TWINS}::test_path_by_rows_and_equal_results",
    ),
    Mutation(
        "wo_a MID ends a row early",
        _TWINS,
        "MIN_ROWS, MAX_ROWS, MAX_MID_ROWS = 2, 8, 192",
        "MIN_ROWS, MAX_ROWS, MAX_MID_ROWS = 2, 8, 191",
        f"{_OF_TWINS}::test_medium_rows_of_verify_forwards_alone",
    ),
    Mutation(
        "wo_a MID takes prompts too",
        _TWINS,
        "self._modes.mid and verify and MAX_ROWS < rows",
        "self._modes.mid and MAX_ROWS < rows",
        f"{_OF_TWINS}::test_medium_rows_of_verify_forwards_alone",
    ),
    Mutation(
        "wo_a MID: the engine never says that it verifies",
        _MODEL,
        "is_target_verify=verify",
        "is_target_verify=False",
        f"{_OF_EXACT}::test_wo_a_modes",
    ),
    Mutation(
        "wo_a MID is always on",
        _TWINS,
        'environ.get("DSV41_WO_A_W8_MID") == "1"',
        "True",
        f"{_OF_TWINS}::test_modes_are_the_environment",
    ),
    Mutation(
        "wo_a DROP keeps the wide weight",
        _TWINS,
        "held[index] = np.broadcast_to(np.full(1, np.nan, dtype=np.float32), weight.shape)",
        "held[index] = weight.view()",
        f"{_OF_TWINS}::test_drop_frees_the_memory_of_exact_weights_alone",
    ),
    Mutation(
        "wo_a DROP: the adapter keeps the wide weight alive",
        _TWINS,
        "            self._twins[id(held[index])] = (held[index], twin)",
        "            self._kept = [*getattr(self, '_kept', ()), weight]\n"
        "            self._twins[id(held[index])] = (held[index], twin)",
        f"{_OF_TWINS}::test_drop_frees_the_memory_of_exact_weights_alone",
    ),
    Mutation(
        "wo_a DROP: the engine keeps the wide weight alive",
        _MODEL,
        "    for layer_held, weight in zip(layers, projection.prepare([each.wo_a for each in layers]), strict=True):\n"
        "        layer_held.wo_a = weight\n",
        "    projection.prepare([each.wo_a for each in layers])\n",
        f"{_OF_EXACT}::test_wo_a_modes",
    ),
    Mutation(
        "wo_a DROP: other shapes read the released weight",
        _TWINS,
        "            weight = entry[1].dequantise()\n",
        "",
        f"{_OF_TWINS}::test_other_shapes_of_a_released_weight_are_rebuilt_afresh",
    ),
    Mutation(
        "wo_a DROP releases an inexact weight too",
        _TWINS,
        "            if twin is None:\n                continue\n",
        "            if twin is None:\n                held[index] = weight[:0]\n                continue\n",
        f"{_OF_TWINS}::test_drop_frees_the_memory_of_exact_weights_alone",
    ),
    Mutation(
        "wo_a: the draft's twins can be asked for",
        _ENVIRONMENT,
        '"DSV41_WO_A_W8_DRAFT": _OFF,',
        '"DSV41_WO_A_W8_DRAFT": _implemented(r"[01]", "0 or 1"),',
        f"{_OF_ALLOWLIST}::test_inert_variables_have_one_value_in_both_tables",
    ),
    Mutation(
        "wo_a: a weight without a twin loses arguments",
        _TWINS,
        "        if entry is None:\n            return self._project(inputs, weight, *args, **kwargs)",
        "        if entry is None:\n            return self._project(inputs, weight)",
        f"{_OF_TWINS}::test_a_left_or_unknown_weight_takes_the_dense_path_with_all_arguments",
    ),
)

RANKS = (
    Mutation(
        "autotune: a cache of another launch is reused",
        _AUTOTUNE,
        "if self.keep and launch != self.launch:",
        "if False:",
        f"{_OF_AUTOTUNE}::test_what_asks_for_a_new_tuning",
    ),
    Mutation(
        "autotune: the environment is not in the fingerprint",
        _AUTOTUNE,
        "document = [__version__, shapes, sorted(arguments.items()), engine.tuned_environment]",
        "document = [__version__, shapes, sorted(arguments.items())]",
        f"{_OF_AUTOTUNE}::test_what_asks_for_a_new_tuning",
    ),
    Mutation(
        "autotune: the launch arguments are not in the fingerprint",
        _AUTOTUNE,
        "document = [__version__, shapes, sorted(arguments.items()), engine.tuned_environment]",
        "document = [__version__, shapes, engine.tuned_environment]",
        f"{_OF_AUTOTUNE}::test_what_asks_for_a_new_tuning",
    ),
    Mutation(
        "autotune: what is volatile asks for a new tuning",
        _ENVIRONMENT,
        '        "ENGRAM_PREFETCH",\n        "ENGRAM_PREFETCH_CHECK",\n        "WO_A_W8_DRAFT",',
        '        "ENGRAM_PREFETCH_CHECK",\n        "WO_A_W8_DRAFT",',
        f"{_OF_AUTOTUNE}::test_what_asks_for_a_new_tuning",
    ),
    Mutation(
        "autotune: the fingerprint differs by rank",
        _AUTOTUNE,
        'PER_RANK = frozenset({"dist_init_addr", "host", "port", "node_rank"})',
        'PER_RANK = frozenset({"dist_init_addr", "host", "port"})',
        f"{_OF_AUTOTUNE}::test_an_identical_start_reuses_on_all_ranks",
    ),
    Mutation(
        "autotune: a rank reuses while others tune",
        _AUTOTUNE,
        "if found is not None and agreed and len(usable) == collective.world:",
        "if found is not None and agreed:",
        f"{_OF_AUTOTUNE}::test_one_bad_cache_makes_all_ranks_tune",
    ),
    Mutation(
        "autotune: files that differ are reused without KEEP",
        _AUTOTUNE,
        "if found is not None and agreed and len(usable) == collective.world:",
        "if found is not None and len(usable) == collective.world:",
        f"{_OF_AUTOTUNE}::test_without_keep_files_that_hold_timings_never_agree",
    ),
    Mutation(
        "autotune: all ranks write one file",
        _AUTOTUNE,
        'f"rank_tp{engine.rank}.json"',
        '"rank_tp0.json"',
        f"{_OF_AUTOTUNE}::test_an_identical_start_reuses_on_all_ranks",
    ),
    Mutation(
        "autotune: a variant that is not exact is taken",
        _AUTOTUNE,
        "if not np.array_equal(product(hidden, head, name), reference):",
        "if name not in VARIANTS:",
        f"{_OF_AUTOTUNE}::test_the_quickest_exact_variant_is_chosen",
    ),
    Mutation(
        "autotune: state is kept although no folder was declared",
        _AUTOTUNE,
        "    if engine.state_dir is None:\n        return None\n"
        "    shapes = (vocab_size, width, engine.tp, engine.ep_size)\n",
        "    shapes = (vocab_size, width, engine.tp, engine.ep_size)\n    if engine.state_dir is None:\n"
        '        return Cache(Path("/tmp/rank.json"), fingerprint(engine, shapes), engine.autotune_keep)\n',
        f"{_OF_AUTOTUNE}::test_without_a_state_folder_every_start_tunes",
    ),
    Mutation(
        "EP: whole experts whatever the size",
        _EXPERTS,
        "if ep_size == world:",
        "if True:",
        f"{_OF_EXPERTS}::test_who_holds_what",
    ),
    Mutation(
        "EP: slices whatever the size",
        _EXPERTS,
        "if ep_size == world:",
        "if ep_size == world == 1:",
        f"{_OF_EXPERTS}::test_who_holds_what",
    ),
    Mutation(
        "EP: every rank holds the first slice",
        _EXPERTS,
        "return Placement(0, experts, *owned_range(inner, rank, world))",
        "return Placement(0, experts, *owned_range(inner, 0, world))",
        f"{_OF_EXPERTS}::test_placements_give_the_plain_sum",
    ),
    Mutation(
        "EP: the launch argument is not used",
        _MODEL,
        "block = RoutedBlock.load(checkpoint, config, engine.ep_size, rank, world)",
        "block = RoutedBlock.load(checkpoint, config, world, rank, world)",
        f"{_OF_EXPERTS}::test_three_ranks_give_the_logits_of_one",
    ),
    Mutation(
        "EP: both chosen experts weigh the same",
        _EXPERTS,
        "weight = (self._chosen - rank_of_choice).astype(np.float32)",
        "weight = np.ones(len(rank_of_choice), dtype=np.float32)",
        f"{_OF_EXPERTS}::test_placements_give_the_plain_sum",
    ),
    Mutation(
        "partial sums: the last rank's alone",
        _COLLECTIVE,
        "total = total + parts[rank]",
        "total = parts[rank]",
        f"{_OF_LINKS}::test_every_rank_gets_the_same_bits_in_rank_order",
    ),
    Mutation(
        "partial sums: each rank adds in an order of its own",
        _COLLECTIVE,
        "        total = parts[0]\n        for rank in range(1, self.world):\n",
        "        total = own\n        for rank in sorted(set(parts) - {self.rank}):\n",
        f"{_OF_LINKS}::test_every_rank_gets_the_same_bits_in_rank_order",
    ),
    Mutation(
        "partial sums: a row at the border is of two ranks",
        _MODEL,
        "(row_ids >= shard.first) & (row_ids < shard.end)",
        "(row_ids >= shard.first) & (row_ids <= shard.end)",
        f"{_TESTS}/test_partial_sums.py::test_a_row_at_a_border_is_of_one_rank",
    ),
    Mutation(
        "partial sums: rows stay on their rank",
        _MODEL,
        'total = self._collective.all_reduce_bf16(f"engram layer {layer.store.shard.layer}", partial)',
        "total = (partial.astype(np.uint32) << 16).view(np.float32)",
        f"{_TESTS}/test_generation.py::test_three_ranks_give_the_logits_of_one",
    ),
    Mutation(
        "a missing rank is awaited as if it had answered",
        _LINKS,
        "                if not item.receive(self._peers[rank]):\n"
        '                    raise self._lost(rank, what, "connection closed")\n',
        "                if not item.receive(self._peers[rank]):\n                    item.done = True\n",
        f"{_OF_LINKS}::test_a_peer_that_dies_while_we_wait_for_it_is_named",
    ),
    Mutation(
        "a hung rank: another one is named",
        _LINKS,
        "late = sorted({*outgoing, *(rank for rank, item in incoming.items() if not item.done)})",
        "late = sorted(self._peers)",
        f"{_OF_LINKS}::test_a_hung_peer_is_named_after_the_deadline",
    ),
    Mutation(
        "ranks at different operations go on",
        _LINKS,
        "if item.sequence != self._sequence or item.kind != kind or (size is not None and len(payload) != size):",
        "if size is not None and len(payload) != size:",
        f"{_OF_LINKS}::test_a_peer_at_another_operation_is_named",
    ),
    Mutation(
        "a lost rank: the head ends as if nothing had been",
        f"{_LAB}/head.py",
        "            self._failure = error\n",
        "            pass\n",
        f"{_OF_PROCESSES}::test_without_the_adapter_its_switch_has_no_effect_and_a_lost_rank_ends_all",
    ),
    Mutation(
        "ranks that run something else meet",
        f"{_LAB}/rendezvous.py",
        "        if mine.get(name) != theirs.get(name):\n",
        "        if name not in {*mine, *theirs}:\n",
        f"{_TESTS}/test_rendezvous.py::test_a_rank_with_other_facts_is_refused_by_name",
    ),
)

VARIABLES = (
    Mutation(
        "an unknown variable is passed over",
        _ENVIRONMENT,
        'raise _error(name, value, "unknown variable", "a name of the allowlist", "remove it or correct the name")',
        "continue",
        f"{_OF_ENVIRONMENT}::test_unknown_and_refused_names_are_named",
    ),
    Mutation(
        "an unknown variable: NCCL's are not looked at",
        _ENVIRONMENT,
        'CONTROLLED_PREFIXES = ("DSV41_", "DSPARK_", "SGLANG_", "NCCL_")',
        'CONTROLLED_PREFIXES = ("DSV41_", "DSPARK_", "SGLANG_")',
        f"{_OF_ENVIRONMENT}::test_unknown_and_refused_names_are_named",
    ),
    Mutation(
        "an inert variable takes any value",
        _ENVIRONMENT,
        "        if re.fullmatch(rule.pattern, value) is None:\n",
        '        if rule.kind != "inert" and re.fullmatch(rule.pattern, value) is None:\n',
        f"{_OF_ENVIRONMENT}::test_values_without_effect_are_refused",
    ),
    Mutation(
        "an inert variable is not reported",
        _ENVIRONMENT,
        "            inert.append((name, value))\n",
        "            pass\n",
        f"{_OF_ENVIRONMENT}::test_production_values_of_inert_names_are_reported",
    ),
    Mutation(
        "a refused variable is taken",
        _ENVIRONMENT,
        '        if rule.kind == "refused":\n',
        '        if rule.kind == "refused":\n            continue\n        if rule.kind == "declined":\n',
        f"{_OF_ENVIRONMENT}::test_unknown_and_refused_names_are_named",
    ),
    Mutation(
        "a value out of range is taken",
        _ENVIRONMENT,
        "        if re.fullmatch(rule.pattern, value) is None:\n",
        "        if re.match(rule.pattern, value) is None:\n",
        f"{_OF_ENVIRONMENT}::test_values_without_effect_are_refused",
    ),
    Mutation(
        "the two block sizes may differ",
        _CONFIG,
        "if flag is not None and from_env is not None and flag != int(from_env):",
        "if False:",
        f"{_TESTS}/test_config.py::test_the_block_size_has_one_value",
    ),
    Mutation(
        "the controller delivers a variable that no list has",
        "src/trispark/allowlist.py",
        "        variable = self._by_name.get(name)\n        if variable is None:\n",
        "        variable = self._by_name.get(name) or self.variables()[0]\n        if variable is None:\n",
        f"{_OF_CONTROLLER}::test_overrides_are_refused",
    ),
    Mutation(
        "the controller delivers any value of an inert variable",
        "src/trispark/resolve.py",
        "    if value != only:\n",
        "    if value is None:\n",
        f"{_OF_CONTROLLER}::test_overrides_are_refused",
    ),
    Mutation(
        "the controller takes a value out of range",
        "src/trispark/allowlist.py",
        "                self._in_range(number)\n                return number\n            case Kind.FLOAT:",
        "                return number\n            case Kind.FLOAT:",
        f"{_OF_CONTROLLER}::test_overrides_are_refused",
    ),
)
