# SPDX-License-Identifier: Apache-2.0
"""Random tiny configurations, and cases for them, that reach the corners of both families."""

import random

CHUNK_BOUNDARIES = (63, 64, 65, 127, 128, 129)
MAX_LONG_BYTES = 2_200_000  # taps of the longest case; keeps a file under about 5 MB


class Draw:
    """Random choices of one seed."""

    def __init__(self, family, seed):
        self.rng = random.Random(f"{family}:{seed}")
        self.family, self.seed = family, seed

    def one_of(self, values):
        return self.rng.choice(values)

    def each_of(self, name, values):
        """Like one_of, but each run of len(values) seeds meets every value once, shuffled."""
        block, place = divmod(self.seed, len(values))
        order = list(values)
        random.Random(f"{self.family}:{name}:{block}").shuffle(order)
        return order[place]


def layer_types(draw, num_layers):
    """Any order; in a third of the seeds only one kind."""
    linear, full = "linear_attention", "full_attention"
    stack = draw.each_of("stack", (linear, full, "any", "any", "any", "any"))
    if stack != "any":
        return [stack] * num_layers
    return [draw.one_of((linear, full)) for _ in range(num_layers)]


def row_bytes(config):
    """About what one row of a case takes in the file, float32, MTP step 0 included."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = config["linear_num_value_heads"] * config["linear_value_head_dim"]
    attention = head_dim * (3 * config["num_attention_heads"] + 3 * config["num_key_value_heads"])
    attention += 2 * hidden
    mixers = {"full_attention": attention, "linear_attention": 2 * keys + 3 * values + 2 * hidden}
    ffn = 3 * hidden + config["num_experts"] + 4 * config["num_experts_per_tok"]
    ffn += max(
        2 * config["shared_expert_intermediate_size"], 2 * config.get("intermediate_size", 0)
    )
    layers = sum(mixers[kind] + ffn + 3 * hidden for kind in config["layer_types"])
    mtp = attention + ffn + 7 * hidden
    return 4 * (layers + mtp + 2 * config["vocab_size"] + 3 * hidden)


def random_cases(draw, config):
    """{name: [(context, new), ...]}; one case as long as the file size allows."""
    rng = draw.rng
    longest = MAX_LONG_BYTES // row_bytes(config)
    chunks = draw.each_of("long", CHUNK_BOUNDARIES)
    return {
        "prefill": [(0, rng.randint(2, 17))],
        "varlen": [(0, rng.randint(1, 12)) for _ in range(rng.randint(2, 4))] + [(0, 1)],
        # Chunks are counted from the start of a sequence, not of the batch.
        "chunked": [(0, rng.randint(1, 5)), (0, chunks if chunks <= longest else chunks - 64)],
        "one": [(0, 1)],
        "decode": [
            (c, 1) for c in (rng.randint(1, 3), rng.randint(4, 20), rng.choice((63, 64, 65)))
        ],
        # Several new tokens on a cache, among them fewer than the convolution reaches back, next to
        # a fresh sequence.
        "mixed": [
            (rng.randint(1, 9), rng.randint(2, 7)),
            (0, rng.randint(1, 5)),
            (rng.choice((1, 2, 66)), 2),
        ],
    }


def random_config(family, seed):
    """(config as in config.json, cases) of one seed."""
    draw = Draw(family, seed)
    num_layers = draw.each_of("layers", (1, 2, 3, 4, 5))
    num_kv_heads = draw.one_of((1, 2, 3))
    num_heads = num_kv_heads * draw.one_of((1, 2, 3))
    hidden = draw.one_of((24, 32, 40, 48))
    rotary = draw.each_of("rotary", (0.25, 0.5, 1.0))
    while True:
        head_dim = draw.one_of((8, 12, 16, 24, 32))
        rotary_dim = int(head_dim * rotary)
        # At least three rotated pairs: mrope splits them in three.
        if head_dim * num_heads != hidden and rotary_dim % 2 == 0 and rotary_dim >= 6:
            break
    key_dim, value_dim = draw.rng.sample((4, 8, 12, 16), 2)
    num_key_heads = draw.one_of((1, 2, 3))
    num_experts = draw.one_of((3, 5, 6, 7, 8, 10, 12, 20))
    top_k = draw.each_of("top_k", (1, 2, 3, 4))
    config = {
        "model_type": "qwen3_next" if family == "qwen3_next" else "qwen3_5_moe_text",
        "vocab_size": draw.one_of((61, 97, 131, 173)),
        "hidden_size": hidden,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": draw.one_of((1e-6, 1e-5)),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": draw.one_of((1e4, 1e6, 1e7)),
            "partial_rotary_factor": rotary,
        },
        "layer_types": layer_types(draw, num_layers),
        "linear_conv_kernel_dim": draw.each_of("kernel", (2, 3, 4)),
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": value_dim,
        "linear_num_key_heads": num_key_heads,
        "linear_num_value_heads": num_key_heads * draw.each_of("group", (1, 2, 4)),
        # Multiples of 8: the grouped matrix product wants strides of 16 bytes.
        "moe_intermediate_size": draw.one_of((8, 16, 24)),
        "shared_expert_intermediate_size": draw.one_of((8, 12, 28)),
        "num_experts": num_experts,
        "num_experts_per_tok": min(top_k, num_experts),
    }
    if family == "qwen3_next":
        dense = draw.each_of("dense", ("none", "none", "step", "first", "list"))
        config |= {
            "intermediate_size": draw.one_of((20, 36, 44)),
            "norm_topk_prob": draw.each_of("norm", (True, True, False)),
            "decoder_sparse_step": 2 if dense == "step" else 1,
            "mlp_only_layers": {
                "first": [0],
                "list": sorted(draw.rng.sample(range(num_layers), (num_layers + 1) // 2)),
            }.get(dense, []),
        }
    else:
        half = rotary_dim // 2
        third = half // 3
        config["rope_parameters"] |= {
            "mrope_interleaved": True,
            "mrope_section": [half - 2 * third, third, third],
        }
    return config, random_cases(draw, config)
