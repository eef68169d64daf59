#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records random configurations from Hugging Face and lets `tokenview check` compare each.

  run_peer.py --tokenview build/release/tokenview
  run_peer.py --tokenview build/release/tokenview --count 200 --seed 1000 --workdir recordings
  run_peer.py --tokenview build/cuda/tokenview --device cuda --dtype bfloat16

Prints a line a configuration. Exit status: 0 all passed, 1 one differs or was not compared,
2 wrong use, 77 skipped because a Python package, or the GPU of --device cuda, is missing.
"""

import argparse
import os
import subprocess
import sys
import tempfile

SKIPPED = 77
CHECK_SECONDS = 300
VERDICTS = {0: "pass", 1: "DIFFERS", 2: "UNREADABLE", 3: "NOTHING COMPARED"}


def summary(config):
    """What sets this configuration apart, in a few words."""
    mixers = "".join("F" if kind == "full_attention" else "L" for kind in config["layer_types"])
    words = [
        f"{mixers:5}",
        f"{config['num_attention_heads']}/{config['num_key_value_heads']}x{config['head_dim']}",
        f"rotary {config['rope_parameters']['partial_rotary_factor']}",
        f"gdn {config['linear_num_key_heads']}/{config['linear_num_value_heads']}"
        f"x{config['linear_key_head_dim']}/{config['linear_value_head_dim']}",
        f"kernel {config['linear_conv_kernel_dim']}",
        f"top {config['num_experts_per_tok']} of {config['num_experts']}",
    ]
    if config.get("decoder_sparse_step", 1) != 1:
        words.append(f"sparse step {config['decoder_sparse_step']}")
    if config.get("mlp_only_layers"):
        words.append(f"dense {config['mlp_only_layers']}")
    if not config.get("norm_topk_prob", True):
        words.append("weights not normalised")
    return ", ".join(words)


def call(*arguments):
    """(exit status, output) of a program; of one that hangs the status is None."""
    try:
        done = subprocess.run(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=CHECK_SECONDS,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return None, f"HANGS (over {CHECK_SECONDS} s)"
    return done.returncode, done.stdout


def check(tokenview, path, *options):
    """(verdict, its output) of `tokenview check OPTIONS path`."""
    status, output = call(tokenview, "check", *options, path)
    if status is None:
        return output, ""
    return VERDICTS.get(status, f"EXIT STATUS {status}"), output


def command_line(description, count):
    """A parser of what every peer test takes; `count` is the default."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenview", required=True, help="the program under test")
    parser.add_argument(
        "--count", type=int, default=count, help=f"configurations (default {count})"
    )
    parser.add_argument("--seed", type=int, default=0, help="first seed (default 0)")
    parser.add_argument("--workdir", help="keep the files here")
    return parser


def run_parsed(parser, run, prefix):
    """The exit status of run(arguments, folder), or of what keeps it from running."""
    arguments = parser.parse_args()
    if arguments.count < 1:
        parser.error(f"--count is {arguments.count}, expected at least 1")
    try:
        import golden_file  # noqa: F401
        import peer_model  # noqa: F401
    except ImportError as error:
        print(f"SKIPPED: {error}; see tests/peer/requirements.txt")
        return SKIPPED
    if not os.access(arguments.tokenview, os.X_OK):
        parser.error(f"--tokenview is {arguments.tokenview}, expected a program")
    if arguments.workdir:
        os.makedirs(arguments.workdir, exist_ok=True)
        return run(arguments, arguments.workdir)
    with tempfile.TemporaryDirectory(prefix=prefix) as workdir:
        return run(arguments, workdir)


def run(arguments, workdir):
    import torch
    from golden_file import write_golden
    from peer_model import RecordError
    from random_config import random_config
    from record_golden import record

    tokenview, count, first_seed = arguments.tokenview, arguments.count, arguments.seed
    device, dtype = arguments.device, arguments.dtype
    if device == "cuda" and not torch.cuda.is_available():
        print("SKIPPED: PyTorch sees no GPU")
        return SKIPPED
    torch.set_num_threads(1)
    passed = compared = 0
    # Families take turns; a seed that cannot be recorded is named and replaced.
    for i in range(2 * count):
        if compared == count:
            break
        family, seed = ("qwen3_next", "qwen3_5_moe")[i % 2], first_seed + i // 2
        config, cases = random_config(family, seed)
        name = f"{family} seed {seed}"
        path = os.path.join(workdir, f"{family}_{seed}.h5")
        try:
            write_golden(path, record(config, cases, seed, dtype, device))
        except RecordError as error:
            print(f"{name}: not recorded: {error}", flush=True)
            continue
        verdict, output = check(tokenview, path, "--device", device)
        compared += 1
        passed += verdict == "pass"
        print(f"{name}: {verdict}: {summary(config)}", flush=True)
        if verdict != "pass":
            print("  " + "\n  ".join(output.splitlines()[:20]))
            again = f"--family {family} --seed {seed} --dtype {dtype} --device {device}"
            print(f"  again: record_golden.py FILE {again}", flush=True)
    print(f"{passed} of {count} configurations pass")
    return 0 if passed == count else 1


def main():
    parser = command_line(__doc__, 20)
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="where both sides compute: cpu (default), or the first GPU",
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    return run_parsed(parser, run, "tokenview_peer_")


if __name__ == "__main__":
    sys.exit(main())
