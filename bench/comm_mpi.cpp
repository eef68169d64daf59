// SPDX-License-Identifier: Apache-2.0
// Microseconds of the collectives of bench/comm.cpp by MPI.
//
//   mpirun -n RANKS bench_comm_mpi
#include <mpi.h>

#include <string_view>
#include <vector>

#include "bench/comm_cases.hpp"

namespace tokenview::bench {
namespace {

/// Median seconds of a call, that all ranks make.
template <class Call>
double measure(Call call_once) {
  std::vector<double> seconds;
  std::int64_t calls = 1;
  for (int batch = -1; batch < num_batches; ++batch) {  // the first finds the size of the others
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now();
    for (std::int64_t call = 0; call < calls; ++call) call_once();
    MPI_Barrier(MPI_COMM_WORLD);
    const double each = (now() - start) / double(calls);
    if (batch >= 0) seconds.push_back(each);
    if (batch < 0) calls = batch_size(each);
    MPI_Bcast(&calls, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
  }
  return median(seconds);
}

double by_mpi(std::string_view op, int rank, int ranks, std::int64_t bytes) {
  const int size = int(bytes / std::int64_t(sizeof(float))), part = size / ranks;
  const std::vector<float> in(std::size_t(size), float(rank + 1));
  std::vector<float> out(static_cast<std::size_t>(size));
  if (op == "all_reduce")
    return measure(
        [&] { MPI_Allreduce(in.data(), out.data(), size, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD); });
  if (op == "all_gather")
    return measure([&] {
      MPI_Allgather(in.data(), part, MPI_FLOAT, out.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
    });
  // There are two forms, and which one is faster depends on the size.
  const std::vector<int> parts(std::size_t(ranks), part);
  const double equal = measure([&] {
    MPI_Reduce_scatter_block(in.data(), out.data(), part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  const double by_counts = measure([&] {
    MPI_Reduce_scatter(in.data(), out.data(), parts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  return std::min(equal, by_counts);
}

void run() {
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (const std::int64_t bytes : sizes)
    for (const char* op : operations) {
      const double seconds = by_mpi(op, rank, ranks, bytes);
      if (rank == 0) print_line("openmpi", op, ranks, bytes, seconds);
    }
}

}  // namespace
}  // namespace tokenview::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  tokenview::bench::run();
  MPI_Finalize();
}
