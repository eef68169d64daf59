#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves random models as Hugging Face checkpoints and lets tokenview compute with their weights.

  run_checkpoints.py --tokenview build/release/tokenview
  run_checkpoints.py --tokenview build/release/tokenview --count 20 --seed 100 --workdir folders

Each configuration is saved in float32 and in bfloat16. The library's forward pass of some ids is
held against

  tokenview record --checkpoint FOLDER --ids IDS   every tap within 1e-4 of max(1, largest value)
  tokenview check --checkpoint FOLDER GOLDEN       its bounds; GOLDEN has the library's taps and no
                                                   weights; in the folder's type and in float32

Prints a line a checkpoint. Exit status: 0 all passed, 1 one differs, 2 wrong use, 77 skipped
because a Python package is missing.
"""

import os
import sys

from run_peer import call, check, command_line, run_parsed, summary


def ids_in_words(inputs):
    """The argument of --ids that gives these inputs: '7,8:1,2+3'."""
    from peer_model import sequences

    def words(ids):
        return ",".join(str(int(i)) for i in ids)

    return "+".join(
        (words(context) + ":" if len(context) else "") + words(ids)
        for context, ids in sequences(inputs)
    )


def recorded(tokenview, folder, ids, path):
    """The golden that `tokenview record` makes of a checkpoint, or what it said instead."""
    from golden_file import read_golden

    status, output = call(
        tokenview, "record", "--checkpoint", folder, "--ids", ids, "--out", path
    )
    return (read_golden(path), "") if status == 0 else (None, output)


def compare(found, case, bound):
    """Faults of a recorded golden beside the library's taps of its one case."""
    from record_golden import Comparison

    if found["weights"] or list(found["cases"]) != ["ids"]:
        return ["record: weights or cases are not those that were asked for"], 0.0
    ours = found["cases"]["ids"]
    comparison = Comparison(bound)
    comparison.add("inputs", ours["inputs"], case["inputs"])
    comparison.add("target", ours["taps"], case["taps"])
    for step, pair in enumerate(zip(ours["mtp"], case["mtp"], strict=True)):
        comparison.add(f"step{step}", *pair)
    comparison.add("mtp", *({"draft_ids": each["draft_ids"]} for each in (ours, case)))
    return comparison.faults, comparison.worst[0]


def judge(tokenview, config, seed, dtype, in_vision_language, workdir):
    """(in words, faults) of one checkpoint."""
    import torch
    from checkpoint import save_checkpoint
    from golden_file import write_golden
    from peer_model import PeerModel
    from record_golden import BOUND, DTYPES, decided_case, golden_of

    generator = torch.Generator().manual_seed(seed)
    model = PeerModel(config, DTYPES[dtype])
    model.randomise(generator)
    folder = os.path.join(workdir, "checkpoint")
    files = save_checkpoint(model, folder, "60KB", in_vision_language)

    wide = model
    if dtype != "float32":
        wide = PeerModel(config, torch.float32)
        wide.load({name: value.detach().float() for name, value in model.parameters().items()})
    case = decided_case(wide, "ids", [(0, 5), (3, 2), (0, 1)], generator)
    ids = ids_in_words(case["inputs"])

    faults = []
    found, output = recorded(tokenview, folder, ids, os.path.join(workdir, "ours.h5"))
    worst = 0.0
    if found is None:
        faults += ["record: " + line for line in output.splitlines()]
    else:
        faults, worst = compare(found, case, BOUND)
    for each in dict.fromkeys((wide, model)):
        path = os.path.join(workdir, "library.h5")
        cases = {"ids": case if each is wide else each.run_case(case["inputs"])}
        write_golden(path, golden_of(each, cases, with_weights=False))
        verdict, output = check(tokenview, path, "--checkpoint", folder)
        if verdict != "pass":
            faults += [f"check {each.dtype}: {verdict}", *output.splitlines()]
    words = f"{files} files, worst {worst:.1e} of {BOUND:.0e}, {summary(config)}"
    return words, faults


def run(arguments, workdir):
    import torch
    from peer_model import RecordError
    from random_config import random_config

    tokenview, count, first_seed = arguments.tokenview, arguments.count, arguments.seed
    torch.set_num_threads(1)
    passed = compared = 0
    for i in range(2 * count):
        if compared >= 2 * count:
            break
        family, seed = ("qwen3_next", "qwen3_5_moe")[i % 2], first_seed + i // 2
        in_vision_language = family == "qwen3_5_moe" and seed % 2 == 0
        config, _ = random_config(family, seed)
        for dtype in ("float32", "bfloat16"):
            name = f"{family} seed {seed} {dtype}" + (" in a VLM" if in_vision_language else "")
            of_checkpoint = os.path.join(workdir, name.replace(" ", "_"))
            os.makedirs(of_checkpoint, exist_ok=True)
            try:
                words, faults = judge(
                    tokenview, config, seed, dtype, in_vision_language, of_checkpoint
                )
            except RecordError as error:
                print(f"{name}: not recorded: {error}", flush=True)
                continue
            compared += 1
            passed += not faults
            print(f"{name}: {'DIFFERS' if faults else 'pass'}: {words}", flush=True)
            for fault in faults[:20]:
                print(f"  {fault}")
    print(f"{passed} of {compared} checkpoints pass")
    return 0 if passed == compared > 0 else 1


if __name__ == "__main__":
    sys.exit(run_parsed(command_line(__doc__, 4), run, "tokenview_checkpoints_"))
