# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders that the Hugging Face library saved, with the MTP weights it leaves out."""

import json
import os

import peer_model  # noqa: F401: sets the library's environment before it is imported
import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.utils.logging.disable_progress_bar()

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MTP_FILE = "model-mtp.safetensors"


def as_published(name, value):
    """{name: tensor} of one weight, its experts one by one."""
    merged, _, part = name.rpartition(".experts.")
    if part == "gate_up_proj":
        halves = [dict(zip(("gate_proj", "up_proj"), e.chunk(2), strict=True)) for e in value]
    elif part == "down_proj":
        halves = [{"down_proj": e} for e in value]
    else:
        return {name: value}
    return {
        f"{merged}.experts.{e}.{half}.weight": tensor
        for e, of_expert in enumerate(halves)
        for half, tensor in of_expert.items()
    }


def mtp_weights(model, merged_experts):
    named = {f"mtp.{name}": value.detach() for name, value in model.mtp.named_parameters()}
    if not merged_experts:
        parts = [as_published(name, value) for name, value in named.items()]
        named = {name: value for part in parts for name, value in part.items()}
    return {name: value.contiguous().clone() for name, value in named.items()}


def vision_language(model):
    """The library's vision-language model around the target, with a small vision tower."""
    config = transformers.Qwen3_5MoeConfig(
        text_config=model.config.to_dict(),
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": model.config.hidden_size,
            "num_position_embeddings": 16,
        },
    )
    outer = transformers.Qwen3_5MoeForConditionalGeneration._from_config(config).to(model.dtype)
    outer.model.language_model.load_state_dict(model.target.model.state_dict())
    outer.lm_head.load_state_dict(model.target.lm_head.state_dict())
    return outer


def save_checkpoint(model, folder, max_shard_size, in_vision_language=False):
    """Saves the target by the library's own save_pretrained, and the MTP beside it; how many files.

    The library saves experts one by one. Those of the MTP are so too for a plain model, as they
    are published, and merged in a vision-language one.
    """
    saved = vision_language(model) if in_vision_language else model.target
    saved.save_pretrained(folder, max_shard_size=max_shard_size)
    loaded = type(saved).from_pretrained(folder, dtype=model.dtype)
    expected = dict(saved.named_parameters())
    for name, value in loaded.named_parameters():
        if not torch.equal(value, expected.pop(name)):
            raise ValueError(f"{name} is not what was saved")
    if expected:
        raise ValueError(f"{folder} lacks {sorted(expected)}")

    weights = mtp_weights(model, merged_experts=in_vision_language)
    path = os.path.join(folder, INDEX)
    if not os.path.exists(path):  # one file was enough
        single = os.path.join(folder, SINGLE)
        save_file(load_file(single) | weights, single, metadata={"format": "pt"})
        return 1
    save_file(weights, os.path.join(folder, MTP_FILE), metadata={"format": "pt"})
    with open(path, encoding="utf-8") as file:
        index = json.load(file)
    index["weight_map"] |= dict.fromkeys(weights, MTP_FILE)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(index, file, indent=2)
    return len(set(index["weight_map"].values()))
