// SPDX-License-Identifier: Apache-2.0
// The collectives of one parallel configuration by MPI, one process a rank, without the arithmetic
// between them: how many configurations a second processes that only talk could reach.
//
//   bench_configurations 4 2 D > calls && mpirun -n 8 bench_configurations_mpi calls 4
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

struct Call {
  std::string op, group;
  int elements = 0;
};

void carry_out(const Call& call, MPI_Comm comm, std::vector<float>& in, std::vector<float>& out) {
  int size = 0;
  MPI_Comm_size(comm, &size);
  if (size == 1) return;
  const int n = call.elements;
  const auto needed = std::size_t(n) * std::size_t(size) + 1;
  if (in.size() < needed) in.resize(needed, 1.0f);
  if (out.size() < needed) out.resize(needed);
  if (call.op == "all_reduce")
    MPI_Allreduce(in.data(), out.data(), n, MPI_FLOAT, MPI_SUM, comm);
  else if (call.op.starts_with("all_gather"))
    MPI_Allgather(in.data(), n, MPI_FLOAT, out.data(), n, MPI_FLOAT, comm);
  else
    MPI_Reduce_scatter_block(in.data(), out.data(), n / size, MPI_FLOAT, MPI_SUM, comm);
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc != 3) {
    if (rank == 0) std::fprintf(stderr, "usage: bench_configurations_mpi CALLS TP\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const int tp_size = std::atoi(argv[2]);
  MPI_Comm tp, dp;
  MPI_Comm_split(MPI_COMM_WORLD, rank / tp_size, rank, &tp);
  MPI_Comm_split(MPI_COMM_WORLD, rank % tp_size, rank, &dp);
  std::vector<Call> calls;
  std::ifstream file(argv[1]);
  for (Call call; file >> call.op >> call.group >> call.elements;) calls.push_back(call);

  std::vector<float> in, out;
  std::vector<double> rates;
  for (int round = 0; round < 9; ++round) {
    constexpr int configurations = 20;
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    for (int i = 0; i < configurations; ++i)
      for (const Call& call : calls)
        carry_out(call,
                  call.group == "tp"   ? tp
                  : call.group == "dp" ? dp
                                       : MPI_COMM_WORLD,
                  in, out);
    MPI_Barrier(MPI_COMM_WORLD);
    rates.push_back(configurations / (MPI_Wtime() - start));
  }
  std::ranges::sort(rates);
  if (rank == 0)
    std::printf("%zu collectives a configuration: %.1f configurations a second\n", calls.size(),
                rates[rates.size() / 2]);
  MPI_Finalize();
}
