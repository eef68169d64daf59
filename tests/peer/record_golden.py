#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records golden files (schema version 1) from Hugging Face transformers, or verifies one.

  record_golden.py out.h5 --family qwen3_next --seed 7
  record_golden.py out.h5 --family qwen3_5_moe --config config.json --dtype bfloat16 \\
      --cases prefill=10 varlen=5,1,11 decode=7+1,3+1
  record_golden.py --verify data/golden/qwen3_next_tiny.h5

A case is NAME=LENGTH[,LENGTH...], a sequence each; LENGTH is NEW or CONTEXT+NEW tokens.
Exit status: 0 done or equal, 1 a verified file differs, 2 anything else, 77 a Python package is
missing.
"""

import argparse
import json
import sys

from random_config import random_config

try:
    import torch
    from golden_file import read_golden, write_golden
    from peer_model import PeerModel, RecordError, producer
except ImportError as error:
    print(f"SKIPPED: {error}; see tests/peer/requirements.txt", file=sys.stderr)
    sys.exit(77)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MAX_DRAWS = 60

# Router logits closer than this could be ordered either way by two correct implementations in
# float32 (error about 1e-6 of the logits); inputs with such a tie are drawn again.
SELECTION_MARGIN = 5e-5  # between the last expert taken and the first one left
ORDER_MARGIN = 1e-5  # between neighbours among those taken
DRAFT_MARGIN = 5e-4  # between the two largest logits of a draft

BOUND = 1e-4  # acceptance: error <= BOUND * max(1, largest value of the tap)
# The library's chunked and recurrent forms must agree to this part of the bound. They fail to where
# a norm divides by almost nothing; no other implementation could be held to such a row.
FORMS_SHARE = 0.15


def parse_case(text):
    """'decode=7+1,3+1' -> ('decode', [(7, 1), (3, 1)])."""
    name, _, lengths = text.partition("=")
    try:
        pairs = [tuple(int(n) for n in part.split("+")) for part in lengths.split(",")]
        pairs = [(0, *pair) if len(pair) == 1 else pair for pair in pairs]
        if not name or any(len(p) != 2 or p[0] < 0 or p[1] < 1 for p in pairs):
            raise ValueError
    except ValueError:
        raise RecordError(f"case is '{text}', expected NAME=[CONTEXT+]NEW[,...]") from None
    return name, pairs


def draw_inputs(pairs, vocab_size, generator):
    """Inputs of a case with random ids; pairs: (context, new) tokens of each sequence."""
    contexts, news = zip(*pairs, strict=True)

    def ids(count):
        return torch.randint(0, vocab_size, (count,), generator=generator)

    def starts(lengths):
        return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)

    return {
        "input_ids": ids(sum(news)),
        "positions": torch.cat([torch.arange(c, c + n) for c, n in pairs]),
        "query_start_loc": starts(news),
        "context_ids": ids(sum(contexts)),
        "context_start_loc": starts(contexts),
    }


def is_decided(case):
    """Whether no router choice and no draft of the case hangs on the last bits."""
    steps = case["mtp"]
    for taps in [case["taps"], *steps]:
        for name, ids in taps.items():
            if not name.endswith(".mlp.gate.ids"):
                continue
            logits = taps[name.removesuffix("ids") + "logits"]
            num_taken = ids.shape[1]
            ordered = logits.sort(dim=-1, descending=True).values[:, : num_taken + 1]
            gaps = ordered[:, :-1] - ordered[:, 1:]
            if gaps.shape[1] == num_taken and gaps[:, -1].min() < SELECTION_MARGIN:
                return False
            if num_taken > 1 and gaps[:, : num_taken - 1].min() < ORDER_MARGIN:
                return False
    last = case["inputs"]["query_start_loc"][1:].long() - 1
    judged = [case["taps"]["lm_head"][last], steps[0]["logits"][last]]
    judged += [step["logits"] for step in steps[1:]]
    best = torch.stack(judged).topk(2, dim=-1).values
    return bool((best[..., 0] - best[..., 1]).min() >= DRAFT_MARGIN)


def forms_gap(model, case):
    """Worst |chunked - recurrent| / allowed over the target's taps; 1 is the acceptance bound.

    Also what would show a library version that forgets the state when several tokens follow a
    context.
    """
    other = model.other_form(case["inputs"])
    gaps = []
    for name, rows in case["taps"].items():
        if rows.is_floating_point():
            allowed = BOUND * max(1.0, rows.abs().max().item())
            gaps.append((rows - other[name]).abs().max().item() / allowed)
        elif not torch.equal(rows, other[name]):
            gaps.append(float("inf"))
    return max(gaps)


def is_finite(case):
    tensors = [t for taps in [case["taps"], *case["mtp"]] for t in taps.values()]
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point())


def decided_case(model, name, pairs, generator):
    """A case of random ids whose taps any correct implementation must reach."""
    gap = 0.0
    for _ in range(MAX_DRAWS):
        case = model.run_case(draw_inputs(pairs, model.config.vocab_size, generator))
        if not is_finite(case):
            raise RecordError(f"{name}: a tap is not finite")
        # bfloat16 has exact ties by the dozen: a reader needs its tie rule there anyway.
        if model.dtype != torch.float32:
            return case
        if is_decided(case):
            gap = forms_gap(model, case)
            if gap <= FORMS_SHARE:
                return case
    raise RecordError(
        f"{name}: {MAX_DRAWS} draws, all with ties or too badly conditioned "
        f"(forms differ by {gap:.2g} of the bound); try another seed"
    )


def golden_of(model, cases, with_weights=True):
    """The content of a golden file: a model and its cases."""
    return {
        "attributes": {
            "model_type": model.config.model_type,
            "dtype": str(model.dtype).removeprefix("torch."),
            "producer": producer(model.device),
        },
        "config": json.loads(model.config.to_json_string(use_diff=False)),
        "weights": {name: value.detach() for name, value in model.parameters().items()}
        if with_weights
        else {},
        "cases": cases,
    }


def record(config, cases, seed, dtype, device="cpu"):
    """A whole golden: random weights from `seed`, then the cases {name: [(context, new), ...]}."""
    generator = torch.Generator().manual_seed(seed)
    model = PeerModel(config, DTYPES[dtype], device)
    model.randomise(generator)
    return golden_of(
        model, {name: decided_case(model, name, pairs, generator) for name, pairs in cases.items()}
    )


class Comparison:
    """Found against recorded tensors; remembers the worst one."""

    def __init__(self, tolerance):
        self.tolerance = tolerance
        self.compared, self.faults, self.unequal = 0, [], 0
        self.worst = (0.0, "none")

    def add(self, where, found, expected):
        if set(found) != set(expected):
            self.faults.append(f"{where}: names differ: {sorted(set(found) ^ set(expected))}")
        for name in sorted(set(found) & set(expected)):
            self._add_tensor(f"{where}/{name}", found[name], expected[name])

    def _add_tensor(self, where, found, expected):
        self.compared += 1
        if found.dtype != expected.dtype or found.shape != expected.shape:
            self.faults.append(
                f"{where}: {found.dtype} {list(found.shape)}, "
                f"expected {expected.dtype} {list(expected.shape)}"
            )
            return
        if torch.equal(found, expected):
            return
        self.unequal += 1
        if not expected.is_floating_point():
            self.faults.append(f"{where}: {int((found != expected).sum())} ids differ")
            return
        error = (found.double() - expected.double()).abs().max()
        relative = float(error / max(1.0, float(expected.double().abs().max())))
        if not relative <= self.worst[0]:
            self.worst = (relative, where)
        if not relative <= self.tolerance:
            self.faults.append(f"{where}: error {relative:.2e}, allowed {self.tolerance:.0e}")


def verify(path, tolerance):
    """Records the model and inputs of `path` again; whether everything agrees. Prints one line."""
    golden = read_golden(path)
    dtype = golden["attributes"]["dtype"]
    if tolerance is None:
        tolerance = 1e-5 if dtype == "float32" else 1e-4
    model = PeerModel(golden["config"], DTYPES[dtype])
    model.load(golden["weights"])
    comparison = Comparison(tolerance)
    for name, expected in golden["cases"].items():
        found = model.run_case(expected["inputs"])
        comparison.add(name, found["taps"], expected["taps"])
        if len(found["mtp"]) != len(expected["mtp"]):
            comparison.faults.append(f"{name}: {len(expected['mtp'])} MTP steps")
        for step, pair in enumerate(zip(found["mtp"], expected["mtp"], strict=False)):
            comparison.add(f"{name}/mtp/step{step}", *pair)
        drafts = ({"draft_ids": d["draft_ids"]} for d in (found, expected))
        comparison.add(f"{name}/mtp", *drafts)
    error, where = comparison.worst
    print(
        f"{path}: {'DIFFERS' if comparison.faults else 'equal'}, "
        f"{len(golden['cases'])} cases, {comparison.compared} tensors, "
        f"{comparison.compared - comparison.unequal} bit for bit, "
        f"worst {error:.2e} of {tolerance:.0e} ({where})"
    )
    for fault in comparison.faults[:20]:
        print(f"  {fault}")
    return not comparison.faults and comparison.compared > 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", nargs="?", help="file to write")
    parser.add_argument("--family", choices=["qwen3_next", "qwen3_5_moe"], default="qwen3_next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", help="config.json; without it a random one from the seed")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="float32")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--cases", nargs="+", metavar="NAME=LENGTHS")
    parser.add_argument("--verify", nargs="+", metavar="GOLDEN", help="record again and compare")
    parser.add_argument("--tolerance", type=float, help="default: 1e-5 float32, 1e-4 bfloat16")
    arguments = parser.parse_args()
    if (arguments.out is None) == (arguments.verify is None):
        parser.error("give either a file to write or --verify")
    torch.set_num_threads(1)  # tiny matrices; and one order of summation

    if arguments.verify:
        verdicts = [verify(path, arguments.tolerance) for path in arguments.verify]
        return 0 if all(verdicts) else 1

    config, cases = random_config(arguments.family, arguments.seed)
    if arguments.config:
        with open(arguments.config, encoding="utf-8") as file:
            config = json.load(file)
        config = config.get("text_config", config)
    if arguments.cases:
        cases = dict(parse_case(text) for text in arguments.cases)
    write_golden(
        arguments.out,
        record(config, cases, arguments.seed, arguments.dtype, arguments.device),
    )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RecordError, OSError, ValueError, KeyError) as error:
        print(f"record_golden.py: {error}", file=sys.stderr)
        sys.exit(2)
