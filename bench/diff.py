#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Comparing two plain HDF5 files of 1 GiB each, beside h5diff (Debian package hdf5-tools).

  diff.py BUILD/bench              a table; BUILD/bench has bench_diff

Random float32, 32 data sets of 32 MiB, the second file scattered by 1e-7; contiguous, and in chunks
of 512 KiB. The sides take turns; each figure is the median of the rounds. The files lie in a folder
of their own below TMPDIR, which is removed afterwards.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

GIGABYTES = 2 * 2**30 / 1e9  # of both files


def timed(command):
    """Wall and processor seconds of a command, and what it prints."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall = time.monotonic() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used, done.stdout


def compare(program, threads, files, rounds):
    ours, theirs, peak = [], [], 0
    for _ in range(rounds):
        wall, used, output = timed([program, "compare", *files, str(threads)])
        result = json.loads(output)
        assert result["matches"], result
        peak = max(peak, result["peak_mib"])
        ours.append((wall, used))
        wall, used, output = timed(["h5diff", "-d", "1e-3", *files])
        theirs.append((wall, used))
    return ours, theirs, peak


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", metavar="BUILD/bench")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    program = os.path.join(options.folder, "bench_diff")
    if shutil.which("h5diff") is None or not os.path.exists(program):
        sys.exit("diff.py: h5diff (hdf5-tools) or %s is missing" % program)

    print("| layout | tokenview, GB/s | h5diff -d, GB/s | ratio | ratio of processor time | peak, MiB |")
    print("| --- | --- | --- | --- | --- | --- |")
    for layout, chunk_kib in (("contiguous", 0), ("chunks of 512 KiB", 512)):
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in ("first.h5", "second.h5")]
            for seed, (file, noise) in enumerate(zip(files, ("0", "1e-7"))):
                command = [program, "make", file, str(seed), noise, str(chunk_kib)]
                subprocess.run(command, check=True)
            ours, theirs, peak = compare(program, options.threads, files, options.rounds)
        walls = [statistics.median(wall for wall, _ in side) for side in (ours, theirs)]
        used = [statistics.median(used for _, used in side) for side in (ours, theirs)]
        print(
            "| %s | %.2f | %.2f | %.1f | %.1f | %d |"
            % (layout, GIGABYTES / walls[0], GIGABYTES / walls[1], walls[1] / walls[0],
               used[1] / used[0], peak),
            flush=True,
        )


if __name__ == "__main__":
    main()
