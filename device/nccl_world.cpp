// SPDX-License-Identifier: Apache-2.0
#include "device/nccl_world.hpp"

#include <cuda_runtime_api.h>

#include <optional>
#include <thread>
#include <utility>

#include "comm_sim/transport/thread_transport.hpp"
#include "device/check.hpp"
#include "device/device_info.hpp"
#include "device/nccl_comm.hpp"

namespace tokenview {
namespace {

/// One rank of this process.
template <class Ops>
struct LocalRank {
  Transport& transport;
  int device;
  Ops ops;
  std::unique_ptr<NcclConnection> connection;  // null: not connected
};

template <class Ops>
void run_local(LocalRank<Ops>& mine, const ParallelConfig& parallel, const NcclOptions& options,
               const typename NcclWorld<Ops>::Body& body) {
  check(cudaSetDevice(mine.device), "cudaSetDevice");
  const RankCoordinates at = coordinates_of(mine.transport.rank(), parallel);
  try {
    run_rank(mine.transport, in_words(at), [&] {
      if (!mine.connection)
        mine.connection = std::make_unique<NcclConnection>(mine.transport, mine.device);
      NcclConnection& connection = *mine.connection;
      const NcclConnection::Watch watch(connection);
      const RankGroups groups = groups_of(at, parallel);
      const auto end = [&](const char* name, const std::vector<std::int64_t>& members) {
        const ncclComm_t comm = connection.group(
            text(name, " of ", parallel.dp, 'x', parallel.pp, 'x', parallel.tp), members);
        return NcclComm<Ops>(mine.ops, {mine.transport, name, members}, connection, comm, options);
      };
      NcclComm<Ops> tp = end("tp", groups.tp), dp = end("dp", groups.dp), ep = end("ep", groups.ep),
                    pp = end("pp", groups.pp);
      Comms<DistributedComm<Ops>> comms{at, tp, dp, ep, pp};
      body(comms);
      connection.require_alive("the end of the run");
    });
  } catch (...) {
    // Ranks fail at different places: all of them connect anew.
    if (mine.connection) mine.connection->abort("the run has failed");
    mine.connection.reset();
    throw;
  }
}

}  // namespace

template <class Ops>
struct NcclWorld<Ops>::State {
  NcclOptions options;
  std::optional<ThreadWorld> threads;  // nothing: a process a rank
  std::vector<LocalRank<Ops>> ranks;

  /// To leave is collective too.
  ~State() {
    std::vector<std::jthread> leaving;
    for (LocalRank<Ops>& rank : ranks)
      leaving.emplace_back([&rank] {
        cudaSetDevice(rank.device);
        rank.connection.reset();
      });
  }
};

template <class Ops>
NcclWorld<Ops>::NcclWorld(std::unique_ptr<State> state) : state_(std::move(state)) {}
template <class Ops>
NcclWorld<Ops>::NcclWorld(NcclWorld&&) noexcept = default;
template <class Ops>
NcclWorld<Ops>::~NcclWorld() = default;

template <class Ops>
NcclWorld<Ops> NcclWorld<Ops>::of_threads(std::int64_t size, Rounding rounding,
                                          const NcclOptions& options) {
  std::string reason;
  const auto found = std::int64_t(devices(reason).size());
  if (size > found)
    throw ConfigError(text(size, " ranks over NCCL: found ", found, found == 1 ? " GPU" : " GPUs",
                           ", expected one for each rank; virtual "
                           "ranks share one (--comm sim --device cuda)"));
  auto state = std::make_unique<State>();
  state->options = options;
  state->threads.emplace(size);
  for (std::int64_t rank = 0; rank < size; ++rank)
    state->ranks.push_back(
        {state->threads->end(rank), int(rank), Ops(int(rank), rounding).of_rank(rank), nullptr});
  return NcclWorld(std::move(state));
}

template <class Ops>
NcclWorld<Ops> NcclWorld<Ops>::of_processes(Transport& transport, int device, Rounding rounding,
                                            const NcclOptions& options) {
  auto state = std::make_unique<State>();
  state->options = options;
  state->ranks.push_back(
      {transport, device, Ops(device, rounding).of_rank(transport.rank()), nullptr});
  return NcclWorld(std::move(state));
}

template <class Ops>
std::int64_t NcclWorld<Ops>::size() const {
  return state_->ranks.front().transport.size();
}

template <class Ops>
const Ops& NcclWorld<Ops>::ops(std::int64_t rank) const {
  return state_->threads ? state_->ranks[std::size_t(rank)].ops : state_->ranks.front().ops;
}

template <class Ops>
void NcclWorld<Ops>::run(const ParallelConfig& parallel, const Body& body) {
  require_world(size(), parallel);
  if (!state_->threads) return run_local(state_->ranks.front(), parallel, state_->options, body);
  state_->threads->run([&](Transport& mine) {
    run_local(state_->ranks[std::size_t(mine.rank())], parallel, state_->options, body);
  });
}

template class NcclWorld<CudaOps<float>>;
template class NcclWorld<CudaOps<__nv_bfloat16>>;

}  // namespace tokenview
