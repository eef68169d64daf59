// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <utility>
#include <vector>

#include "device/cuda_ops.hpp"
#include "device/nccl_connection.hpp"
#include "device/nccl_world.hpp"
#include "comm_sim/transport/distributed_comm.hpp"

namespace tokenview {

/// A group of ranks with a GPU each, over NCCL. Calls are queued on the stream of the rank's
/// arithmetic, results come from its pool, and the host does not wait. NCCL joins and cuts rows:
/// columns are copied into place before or after.
///
/// Sums are NCCL's. Of two ranks they are bit-equal to SimComm's; of more, in fp32 and bf16, the
/// order is NCCL's choice, which depends on sizes and links: see NcclOptions::fixed_order. A bf16
/// sum is rounded after every addition, except where a switch adds in the network (NVLS).
///
/// Variable sizes travel as engines send them, a broadcast or a reduction for each rank, in one
/// group of calls. Source: vllm pynccl.py (all_gatherv, reduce_scatterv).
template <class Ops>
class NcclComm final : public DistributedComm<Ops> {
 public:
  using typename DistributedComm<Ops>::Tensor;
  using typename DistributedComm<Ops>::Routing;
  using DistributedComm<Ops>::rank, DistributedComm<Ops>::size;

  /// `comm` is the communicator of `ranks` on `connection`; null for a group of one.
  NcclComm(const Ops& arithmetic, HostGroup ranks, NcclConnection& connection, ncclComm_t comm,
           const NcclOptions& options = {});

 private:
  using DistributedComm<Ops>::ops, DistributedComm<Ops>::group;

  Tensor carry_out(const CollectiveCall& call, const Tensor& x) override;
  Routing carry_out(const CollectiveCall& call, const Routing& x) override;
  void wait_for_all() override;
  void hand_over(const CollectiveCall& call, const Tensor& x) override;
  Tensor take_over(const CollectiveCall& call) override;

  template <class Queue>
  void queue(const CollectiveCall& call, Queue queue_calls);

  /// What moves rows and adds nothing: the result's memory, and into it.
  template <class T>
  DeviceMatrix<T> result_of(const CollectiveCall& call, const DeviceMatrix<T>& x) const;
  template <class T>
  ncclResult_t move_rows(const CollectiveCall& call, const DeviceMatrix<T>& x,
                         const DeviceMatrix<T>& out) const;
  Tensor gathered_columns(const CollectiveCall& call, const Tensor& x);

  Tensor all_reduce_native(const CollectiveCall& call, const Tensor& x);
  Tensor reduce_scatter_rows(const CollectiveCall& call, const Tensor& x,
                             std::span<const std::int64_t> rows);
  Tensor columns_as_rows(const Tensor& x) const;
  Tensor sum_in_order(const CollectiveCall& call, const Tensor& x,
                      std::span<const std::int64_t> rows);
  bool is_native() const { return !options_.fixed_order || size() <= 2; }
  std::vector<std::int64_t> shares(std::int64_t rows) const;

  NcclConnection& connection_;
  ncclComm_t comm_;
  NcclOptions options_;
};

extern template class NcclComm<CudaOps<float>>;
extern template class NcclComm<CudaOps<__nv_bfloat16>>;

}  // namespace tokenview
