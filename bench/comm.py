#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Simulated collectives beside Open MPI and Gloo, which do the same between processes.

  comm.py BUILD/bench              a table; BUILD/bench has bench_comm, and bench_comm_mpi

The sides take turns, several rounds; each figure is the median of the rounds' medians. A peer that
is not there is left out, with a line that says so.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather")
SIZES = (512, 4096, 32768, 262144, 2097152, 16777216)
BATCHES = 15


def lines_of(command, timeout=300, **options):
    """The JSON lines that a command prints; None, and why, where it fails."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, check=False, **options
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    if done.returncode != 0:
        return None, (done.stderr.strip().splitlines() or ["exit code %d" % done.returncode])[-1]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], None


def simulated(folder, ranks):
    return lines_of([os.path.join(folder, "bench_comm"), str(ranks)])


def open_mpi(folder, ranks):
    program, mpirun = os.path.join(folder, "bench_comm_mpi"), shutil.which("mpirun")
    if mpirun is None or not os.path.exists(program):
        return None, "mpirun or bench_comm_mpi is missing (openmpi-bin, libopenmpi-dev)"
    allowed = dict(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    command = [mpirun, "--oversubscribe", "-n", str(ranks), program]
    return lines_of(command, env={**os.environ, **allowed})


def gloo(_, ranks):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--gloo", os.path.join(folder, "store"), str(ranks)]
        return lines_of(command)


def gloo_rank(rank, ranks, store):
    """One process of the Gloo side; rank 0 prints."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks)
    for size in SIZES:
        whole = torch.full((size // 4,), float(rank + 1))
        part = torch.full((size // 4 // ranks,), float(rank + 1))
        for op in OPERATIONS:

            def call(op=op, whole=whole, part=part):
                if op == "all_reduce":
                    dist.all_reduce(whole)
                elif op == "reduce_scatter":
                    dist.reduce_scatter_tensor(part, whole)
                else:
                    dist.all_gather_into_tensor(whole, part)

            seconds, calls = [], torch.ones(1, dtype=torch.int64)
            for batch in range(-1, BATCHES):  # the first finds the size of the others
                whole.fill_(1.0)  # a sum in place would overflow
                dist.barrier()
                start = time.perf_counter()
                for _ in range(int(calls)):
                    call()
                dist.barrier()
                each = (time.perf_counter() - start) / int(calls)
                if batch >= 0:
                    seconds.append(each)
                else:
                    calls.fill_(max(1, min(100, int(2e-3 / each))))
                dist.broadcast(calls, 0)
            if rank == 0:
                us = round(statistics.median(seconds) * 1e6, 3)
                line = {"impl": "gloo", "op": op, "ranks": ranks, "bytes": size, "us": us}
                print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def run_gloo(store, ranks):
    import torch.multiprocessing as processes

    processes.spawn(gloo_rank, args=(ranks, store), nprocs=ranks)


def number(us):
    return f"{us:.2f}" if us < 10 else f"{us:,.0f}"


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def print_table(found, peers):
    """`found`: {(ranks, op, bytes): {impl: [microseconds]}}."""
    names = {"openmpi": "Open MPI", "gloo": "Gloo"}
    head = ["ranks", "operation", "size", "tokenview, us", "times the limit"]
    for peer in peers:
        head += [names[peer] + ", us", names[peer] + " / tokenview"]
    print("| " + " | ".join(head) + " |")
    print("| --- " * len(head) + "|")
    for (ranks, op, size), values in found.items():
        median = {impl: statistics.median(of_rounds) for impl, of_rounds in values.items()}
        ours = median["tokenview"]
        row = [str(ranks), op, size_name(size), number(ours), f"{ours / median['limit']:.2f}"]
        for peer in peers:
            there = peer in median
            row += [number(median[peer]), f"{median[peer] / ours:.1f}"] if there else ["-", "-"]
        print("| " + " | ".join(row) + " |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="where bench_comm is")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    sides = {"tokenview": simulated, "openmpi": open_mpi, "gloo": gloo}
    found = {}
    for ranks in arguments.ranks:
        for _ in range(arguments.rounds):
            for side, run in list(sides.items()):
                lines, problem = run(arguments.folder, ranks)
                if lines is None:
                    print(f"SKIPPED: {side}: {problem}", file=sys.stderr)
                    if side == "tokenview":
                        return 1
                    del sides[side]
                    continue
                for line in lines:
                    key = (line["ranks"], line["op"], line["bytes"])
                    found.setdefault(key, {}).setdefault(line["impl"], []).append(line["us"])
    load = os.getloadavg()[0]  # above the number of cores: not a quiet machine
    rounds, cores = arguments.rounds, os.cpu_count()
    print(f"medians of {rounds} rounds; {cores} cores, load average {load:.1f} at the end\n")
    keys = sorted(found, key=lambda key: (key[0], OPERATIONS.index(key[1]), key[2]))
    peers = [side for side in sides if side != "tokenview"]
    print_table({key: found[key] for key in keys}, peers)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--gloo"]:
        run_gloo(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(main())
