"""Make the lab checkpoint: `python -m trispark_lab.make_checkpoint OUTDIR`, the same bytes on each run.

All arithmetic is on integers. A table row is the sum, over the contexts that hash to it, of the codes (+-1 a dimension,
one random code for each head and token, less the mean code) of what follows them, times 8, as 5-bit integers with a
power-of-two scale for each 32 columns. The output projection undoes a signed permutation for each n-gram size with
weights 1, 4, 16, so that longer contexts dominate. Every sum in the engine stays below 2**24 and is exact in float32.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from . import e4m3, safetensors
from .corpus import CORPUS_DIR, load_corpus
from .draft import CONFIDENCE_STEPS
from .hashing import LayerHash, build_hashes
from .ngrams import UNIT, ContextTable, bigram_pairs, count_contexts, samples, successor_shares
from .tokenizer import EOS, MASK, PAD, Tokenizer

LAYERS = (1, 14)
MAX_NGRAM = 4
HEADS = 8
HEAD_DIM = 256
ENGRAM_VOCAB_SIZE = 8192
BLOCK = 32
NGRAM_WEIGHTS = (1, 4, 16)
CODE_UNIT = 8
MAX_SCALE_EXPONENT = 3
EXPERTS, EXPERTS_CHOSEN = 12, 2
EXPERT_INNER, EXPERT_OUTPUT = 96, 32
SEED = 20260929

IntArray = npt.NDArray[np.int32]
ByteArray = npt.NDArray[np.uint8]
Tensor = tuple[str, str, ByteArray]

_SMALL_CODES = e4m3.encode_exact(np.arange(-16, 17, dtype=np.float32))


def _codes_of_small_ints(values: IntArray) -> ByteArray:
    """e4m3 codes of integers in -16..16."""
    return np.asarray(_SMALL_CODES[values + 16], dtype=np.uint8)


def _round_half_up(values: IntArray, divisor: int) -> IntArray:
    return np.asarray((2 * values + divisor) // (2 * divisor), dtype=np.int32)


def quantise_rows(sums: IntArray) -> tuple[ByteArray, ByteArray]:
    """[R, 256] integers -> e4m3 codes [R, 256] and ue8m0 codes [R, 8]; |integer| <= 15, scale 2**0 .. 2**3."""
    blocks = np.clip(sums, -15 << MAX_SCALE_EXPONENT, 15 << MAX_SCALE_EXPONENT).reshape(len(sums), -1, BLOCK)
    peak = np.abs(blocks).max(axis=2)
    exponent = sum((peak > 15 << step).astype(np.int32) for step in range(MAX_SCALE_EXPONENT))
    divisor = (1 << np.asarray(exponent, dtype=np.int32))[:, :, None]
    values = np.clip((2 * blocks + divisor) // (2 * divisor), -15, 15)
    codes = _codes_of_small_ints(values.reshape(sums.shape).astype(np.int32))
    return codes, (np.asarray(exponent) + e4m3.UE8M0_BIAS).astype(np.uint8)


def sum_by_row(rows: npt.NDArray[np.int64], values: IntArray, row_count: int) -> IntArray:
    """[row_count, width]: sums of `values` [P, width] over equal `rows` [P]."""
    order = np.argsort(rows, kind="stable")
    ordered = rows[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    result = np.zeros((row_count, values.shape[1]), dtype=np.int32)
    result[ordered[starts]] = np.add.reduceat(values[order], starts, axis=0)
    return result


def signed_permutation(generator: np.random.Generator, size: int) -> tuple[npt.NDArray[np.int64], IntArray]:
    """(target of each dimension, its sign)."""
    return generator.permutation(size).astype(np.int64), generator.choice(np.array([-1, 1], dtype=np.int32), size)


def layer_tensors(
    hashes: LayerHash, contexts: dict[int, ContextTable], codes: IntArray, mean: IntArray
) -> Iterator[tuple[str, ByteArray, ByteArray]]:
    """The engram table (weight [N, 256], scale [N, 8]) and wo_a (weight [heads * 256, 768], scale) of one layer.

    codes: [heads, V, 256] of +-1; mean: [heads, 256], the mean successor code times UNIT.
    """
    generator = np.random.default_rng((SEED, hashes.layer))
    weight = np.zeros((hashes.rows, HEAD_DIM), dtype=np.uint8)
    scale = np.full((hashes.rows, HEAD_DIM // BLOCK), e4m3.UE8M0_BIAS, dtype=np.uint8)
    projection = np.zeros((HEADS, HEAD_DIM, len(NGRAM_WEIGHTS) * HEAD_DIM), dtype=np.int32)
    for index, ngram_weight in enumerate(NGRAM_WEIGHTS):
        table = contexts[index + 2]
        windows = np.zeros((len(table.contexts), MAX_NGRAM), dtype=np.int64)
        windows[:, : index + 2] = table.contexts
        row_ids = hashes.row_ids(windows)
        for head in range(HEADS):
            column = index * HEADS + head
            target, sign = signed_permutation(generator, HEAD_DIM)
            # Column j of the table feeds output target[j] with sign[j]: rows are stored in that order.
            projection[head, target, index * HEAD_DIM + np.arange(HEAD_DIM)] = sign * ngram_weight
            centred = (UNIT * codes[head] - mean[head])[:, target] * sign
            pairs = centred[table.pair_token] * table.pair_weight[:, None].astype(np.int32)
            local = row_ids[table.pair_context, column] - hashes.offsets[column]
            sums = sum_by_row(local, pairs, int(hashes.primes[column]))
            first = int(hashes.offsets[column])
            span = slice(first, first + int(hashes.primes[column]))
            unit = UNIT * UNIT // CODE_UNIT
            weight[span], scale[span] = quantise_rows(_round_half_up(sums, unit))
    yield "engram.embed", weight, scale
    flat = projection.reshape(HEADS * HEAD_DIM, -1)
    yield "attn.wo_a", *unit_scaled(flat)


def unit_scaled(values: IntArray) -> tuple[ByteArray, ByteArray]:
    """e4m3 codes of integers in -16..16 and 32 x 32 block scales of 1."""
    shape = tuple(-(-size // BLOCK) for size in values.shape)
    return _codes_of_small_ints(values), np.full(shape, e4m3.UE8M0_BIAS, dtype=np.uint8)


def markov_head(pairs: tuple[npt.NDArray[np.int64], ...], codes: IntArray) -> tuple[IntArray, IntArray]:
    """(w1 [V, 256], w2 [V, 256]): scores of the next token are w1[previous] @ w2.T; integers in -15..15."""
    previous, token, weight = pairs
    sums = sum_by_row(previous, codes[token] * weight[:, None].astype(np.int32), len(codes))
    return np.clip(_round_half_up(sums, UNIT // CODE_UNIT), -15, 15).astype(np.int32), codes


def expert_weights(layer: int) -> Iterator[tuple[str, IntArray]]:
    """The routed block of one layer: gate and w1 of +-1, w2 of -1, 0, 1.

    What it adds to a logit, at most 32 * 96 * 3 * 3, is small beside the margins of known text: it changes nearly every
    logit and no answer.
    """
    generator = np.random.default_rng((SEED, layer, EXPERTS))
    sign = np.array([-1, 1], dtype=np.int32)
    yield f"layers.{layer}.ffn.gate", generator.choice(sign, (EXPERTS, HEAD_DIM))
    for number in range(EXPERTS):
        prefix = f"layers.{layer}.ffn.experts.{number}"
        yield f"{prefix}.w1", generator.choice(sign, (EXPERT_INNER, HEAD_DIM))
        yield f"{prefix}.w2", generator.integers(-1, 2, (EXPERT_OUTPUT, EXPERT_INNER), dtype=np.int32)


def model_config(tokenizer: Tokenizer, compressed: int, hashes: dict[int, LayerHash]) -> dict[str, object]:
    """config.json; keys of the real model where the meaning is the same."""
    return {
        "architectures": ["TrisparkLabForCausalLM"],
        "model_type": "trispark_lab",
        "vocab_size": tokenizer.vocab_size,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "engram_layer_ids": list(hashes),
        "engram_num_embeddings": [item.rows for item in hashes.values()],
        "engram_max_ngram_size": MAX_NGRAM,
        "engram_n_heads": HEADS,
        "engram_head_dim": HEAD_DIM,
        "engram_vocab_size": ENGRAM_VOCAB_SIZE,
        "engram_compressed_vocab_size": compressed,
        "engram_pad_token_id": PAD,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": EXPERTS_CHOSEN,
        "moe_intermediate_size": EXPERT_INNER,
        "moe_output_size": EXPERT_OUTPUT,
        "o_groups": HEADS,
        "o_lora_rank": HEAD_DIM,
        "dspark_block_size": 5,
        "dspark_noise_token_id": MASK,
        "max_position_embeddings": 1048576,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "scale_fmt": "ue8m0",
            "weight_block_size": [BLOCK, BLOCK],
        },
    }


def make(directory: Path, corpus: Path = CORPUS_DIR) -> None:
    """Write the checkpoint into `directory`, which may not hold another one."""
    workloads = load_corpus(corpus)
    texts = [text for load in workloads for item in load.documents for text in (item.prompt, item.answer)]
    tokenizer = Tokenizer.build(texts)
    compress = tokenizer.compressed_ids()
    history = [sample for load in workloads for sample in samples(load, tokenizer, MAX_NGRAM)]
    contexts = count_contexts(history, compress, range(2, MAX_NGRAM + 1))
    hashes = build_hashes(
        LAYERS, max_ngram=MAX_NGRAM, heads=HEADS, vocab_size=ENGRAM_VOCAB_SIZE, compressed_vocab_size=max(compress) + 1
    )
    generator = np.random.default_rng(SEED)
    sign = np.array([-1, 1], dtype=np.int32)
    codes = generator.choice(sign, (HEADS + 1, tokenizer.vocab_size, HEAD_DIM)).astype(np.int32)
    codes[:, [PAD, MASK]] = 0  # never predicted
    longest = contexts[MAX_NGRAM]
    share = np.bincount(longest.pair_token, weights=longest.pair_weight, minlength=tokenizer.vocab_size).astype(
        np.int32
    )
    mean = np.stack([_round_half_up(UNIT * (share @ codes[head]), int(share.sum())) for head in range(HEADS)])

    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, list[Tensor]] = {}
    total = len(LAYERS) + 1
    head = codes[:HEADS].transpose(1, 0, 2).reshape(tokenizer.vocab_size, HEADS * HEAD_DIM)
    markov = markov_head(bigram_pairs(history, tokenizer.vocab_size), codes[HEADS])
    shares = successor_shares(history, tokenizer.vocab_size)
    confidence = np.rint(CONFIDENCE_STEPS * shares).astype(np.int32)[:, None]
    shared: list[Tensor] = []
    for name, values in (
        ("head", head),
        ("mtp.0.markov_head.markov_w1", markov[0]),
        ("mtp.0.markov_head.markov_w2", markov[1]),
        ("mtp.0.confidence_head", confidence),
    ):
        weight, scale = unit_scaled(values)
        shared += [(f"{name}.weight", "F8_E4M3", weight), (f"{name}.scale", "F8_E8M0", scale)]
    for name, values in expert_weights(LAYERS[-1]):
        weight, scale = unit_scaled(values)
        shared += [(f"{name}.weight", "F8_E4M3", weight), (f"{name}.scale", "F8_E8M0", scale)]
    files[f"model-{total:05d}-of-{total:05d}.safetensors"] = shared
    for number, (layer, layer_hash) in enumerate(hashes.items(), start=1):
        tables = {name: (weight, scale) for name, weight, scale in layer_tensors(layer_hash, contexts, codes, mean)}
        # The projection lies between the two parts of the table: a row's scale is never near its weight.
        order = (("engram.embed", 0), ("attn.wo_a", 0), ("attn.wo_a", 1), ("engram.embed", 1))
        files[f"model-{number:05d}-of-{total:05d}.safetensors"] = [
            (f"layers.{layer}.{name}.{('weight', 'scale')[part]}", ("F8_E4M3", "F8_E8M0")[part], tables[name][part])
            for name, part in order
        ]
    write(directory, files, model_config(tokenizer, max(compress) + 1, hashes), tokenizer)


def write(directory: Path, files: dict[str, list[Tensor]], config: dict[str, object], tokenizer: Tokenizer) -> None:
    """Write tensors, index, tokenizer and, last, config.json."""
    for name in sorted(files):
        safetensors.write_file(directory / name, files[name])
    index = {
        "metadata": {"total_size": sum(tensor[2].nbytes for tensors in files.values() for tensor in tensors)},
        "weight_map": {tensor[0]: name for name, tensors in sorted(files.items()) for tensor in tensors},
    }
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    (directory / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="trispark_lab.make_checkpoint", description="Make the lab checkpoint.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--corpus", type=Path, default=CORPUS_DIR)
    options = parser.parse_args(argv)
    try:
        make(options.directory, options.corpus)
    except (OSError, ValueError) as error:
        print(
            f"TS-CHECKPOINT-MAKE: checkpoint not made [where: {options.directory}] expected: a readable corpus and a "
            f"writable directory; observed: {error}; remedy: name another directory or free space",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
