#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tokens per second of the Hugging Face model, the peer of bench/reference.

  reference_peer.py                        one JSON line a number of tokens
  reference_peer.py --write-config FILE    the config.json of the shape, and nothing else

One forward pass over T tokens without a cache, logits of all rows, float32. Every way in which the
library can run experts and attention on a CPU is measured; the line reports the fastest, and
`tried` the others.
"""

import argparse
import itertools
import json
import os
import statistics
import sys
import time

os.environ.setdefault("USE_HUB_KERNELS", "NO")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

EXPERTS = ("eager", "grouped_mm", "batched_mm")
ATTENTION = ("eager", "sdpa")
# batched_mm copies the weights of every (token, expert) pair: 6 MB each here.
BATCHED_MAX_TOKENS = 8

SHAPE = {
    "model_type": "qwen3_next",
    "vocab_size": 4096,
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
    },
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 16,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}


def median_seconds(calls, budget):
    """{name: (median, fastest, runs)}: at least seven runs of each call, more in the budget.

    The calls take turns, so that a busy moment of the machine hits all of them alike.
    """
    for call in calls.values():
        call()
    seconds = {name: [] for name in calls}
    rounds, started = 0, time.perf_counter()
    while rounds < 7 or time.perf_counter() - started < budget:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
        rounds += 1
    return {
        name: (statistics.median(values), min(values), rounds) for name, values in seconds.items()
    }


def measure(tokens, threads, budget):
    import torch
    import transformers

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    config = transformers.Qwen3NextConfig(**{k: v for k, v in SHAPE.items() if k != "model_type"})
    model = transformers.Qwen3NextForCausalLM(config).eval()
    for count in tokens:
        ids = torch.randint(0, config.vocab_size, (1, count))

        def variant(experts, attention, ids=ids):
            @torch.inference_mode()
            def call():
                model.set_experts_implementation(experts)
                model.set_attn_implementation(attention)
                logits = model(input_ids=ids, use_cache=False).logits
                assert logits.shape[1] == ids.shape[1]

            return call

        calls = {
            f"{experts}+{attention}": variant(experts, attention)
            for experts, attention in itertools.product(EXPERTS, ATTENTION)
            if experts != "batched_mm" or count <= BATCHED_MAX_TOKENS
        }
        medians = median_seconds(calls, budget)
        best = min(medians, key=lambda name: medians[name][0])
        line = {
            "impl": "hf",
            "T": count,
            "tokens_per_second": round(count / medians[best][0], 2),
            "variant": best,
            "fastest_run": round(count / medians[best][1], 2),
            "runs": medians[best][2],
            "threads": threads,
            "load_average": round(os.getloadavg()[0], 1),  # above `threads`: not a quiet machine
            "tried": {name: round(count / value[0], 2) for name, value in medians.items()},
            "producer": f"transformers {transformers.__version__}, torch {torch.__version__}",
        }
        print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write-config", metavar="FILE")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 128, 512], metavar="T")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0, help="least time a T (default 10)")
    arguments = parser.parse_args()
    if arguments.write_config:
        with open(arguments.write_config, "w", encoding="utf-8") as file:
            json.dump(SHAPE, file, indent=2)
            file.write("\n")
        return 0
    try:
        measure(arguments.tokens, arguments.threads, arguments.seconds)
    except ImportError as error:
        print(f"SKIPPED: {error}; see tests/peer/requirements.txt", file=sys.stderr)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
