// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "device/cuda_ops.hpp"
#include "reference/program/comms.hpp"
#include "comm_sim/transport/distributed_comm.hpp"
#include "comm_sim/transport/rank_groups.hpp"

namespace tokenview {

struct NcclOptions {
  /// Ranks compare their calls before each, on the host: a call that does not fit is an error with
  /// what each rank called, where NCCL would hang. Costs a round trip; not for measurements.
  bool compares_calls = true;
  /// Sums are added in rank order, as the simulator's are: each rank gets the slices of one part
  /// and adds them. Two ranks need none of it, as two numbers have one sum.
  bool fixed_order = false;
};

/// The ranks of a world over NCCL that are in this process, each on a GPU of its own with its
/// arithmetic. They connect when they first run, and again after a run that failed.
template <class Ops>
class NcclWorld {
 public:
  using Body = std::function<void(Comms<DistributedComm<Ops>>&)>;

  /// `size` ranks, threads of this process, rank i on GPU i. Throws ConfigError for more ranks than
  /// there are GPUs.
  static NcclWorld of_threads(std::int64_t size, Rounding rounding,
                              const NcclOptions& options = {});
  /// This process is one rank, on GPU `device`; the others are at the ends of `transport`.
  static NcclWorld of_processes(Transport& transport, int device, Rounding rounding,
                                const NcclOptions& options = {});
  NcclWorld(NcclWorld&&) noexcept;
  ~NcclWorld();

  std::int64_t size() const;
  /// Of a rank in this process.
  const Ops& ops(std::int64_t rank) const;

  /// Runs `body(comms)` for each rank of this process, on its thread; see run_rank(). Throws
  /// ConfigError where `parallel` has another number of ranks.
  void run(const ParallelConfig& parallel, const Body& body);

 private:
  struct State;
  explicit NcclWorld(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A dp x pp x tp world on it.
template <class OpsT>
class NcclMesh {
 public:
  template <class Ops>
  using CommOf = DistributedComm<Ops>;

  NcclMesh(NcclWorld<OpsT>& world, const ParallelConfig& parallel)
      : world_(world), parallel_(parallel) {}

  const OpsT& ops(const RankCoordinates& at) const { return world_.ops(at.world); }

  /// As the other meshes; the arithmetic of a rank is the world's.
  template <class OpsOf, class Body>
  void run(OpsOf, Body body) {
    world_.run(parallel_, [&](Comms<DistributedComm<OpsT>>& comms) { body(comms); });
  }

 private:
  NcclWorld<OpsT>& world_;
  ParallelConfig parallel_;
};

extern template class NcclWorld<CudaOps<float>>;
extern template class NcclWorld<CudaOps<__nv_bfloat16>>;

}  // namespace tokenview
