// SPDX-License-Identifier: Apache-2.0
// Microseconds of simulated collectives, and of moving the same bytes by plain copies.
//
//   bench_comm RANKS     one JSON line an operation and size; bench/comm.py runs it beside its
//   peers
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "bench/comm_cases.hpp"
#include "comm_sim/array_ops.hpp"
#include "comm_sim/run_ranks.hpp"

namespace tokenview::bench {
namespace {

using Ops = ArrayOps<float>;
using Comm = SimComm<Ops>;

std::vector<Array<float>> arrays(std::int64_t count, std::int64_t size) {
  std::vector<Array<float>> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.emplace_back(size, 1);
    std::fill_n(all.back().data(), size, float(i + 1));
  }
  return all;
}

struct Seconds {
  double call;  // of all ranks
  double copy;  // of what each rank brings
};

/// Medians. Batches of calls and of copies take turns, so that a busy moment of the machine hits
/// both alike.
Seconds measure(std::string_view op, std::int64_t ranks, std::int64_t bytes) {
  const std::int64_t size = bytes / std::int64_t(sizeof(float));
  const auto inputs = arrays(ranks, op == "all_gather" ? size / ranks : size);
  const auto whole = arrays(ranks, size);
  auto copies = arrays(ranks, size);
  std::vector<double> of_calls, of_copies;
  std::int64_t calls = 1;
  run_ranks(Ops{}, ranks, [&](Comm& comm) {
    const Array<float>& x = inputs[std::size_t(comm.rank())];
    for (int batch = -1; batch < num_batches; ++batch) {  // the first finds the size of the others
      comm.barrier();
      const double start = now();
      for (std::int64_t call = 0; call < calls; ++call) {
        const Array<float> result = op == "all_reduce"       ? comm.all_reduce(x)
                                    : op == "reduce_scatter" ? comm.reduce_scatter(x, Axis::rows)
                                                             : comm.all_gather(x, Axis::rows);
        if (result(0, 0) <= 0) std::abort();
      }
      comm.barrier();
      if (comm.rank() == 0) {
        const double end = now();
        for (std::int64_t call = 0; call < calls; ++call)
          for (std::size_t i = 0; i < copies.size(); ++i)
            std::memcpy(copies[i].data(), whole[i].data(), std::size_t(bytes));
        if (batch < 0) {
          calls = batch_size(end - start);
        } else {
          of_calls.push_back((end - start) / double(calls));
          of_copies.push_back((now() - end) / double(calls));
        }
      }
      comm.barrier();
    }
    return 0;
  });
  return {median(of_calls), median(of_copies) / double(ranks)};
}

void run(std::int64_t ranks) {
  for (const std::int64_t bytes : sizes)
    for (const std::string_view op : operations) {
      const Seconds seconds = measure(op, ranks, bytes);
      // All that the ranks bring is read once, all that they get is written once; a copy of one
      // buffer does both.
      const double read = op == "all_gather" ? 1 : double(ranks);
      const double written = op == "reduce_scatter" ? 1 : double(ranks);
      print_line("tokenview", op.data(), ranks, bytes, seconds.call);
      print_line("limit", op.data(), ranks, bytes, (read + written) / 2 * seconds.copy);
    }
}

}  // namespace
}  // namespace tokenview::bench

int main(int argc, char** argv) {
  const int ranks = argc == 2 ? std::atoi(argv[1]) : 0;
  if (ranks < 1 || ranks > 64) {
    std::fprintf(stderr, "usage: bench_comm RANKS\n");
    return 2;
  }
  // Results keep their pages from call to call, as the buffers of an MPI program do.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  tokenview::bench::run(ranks);
}
