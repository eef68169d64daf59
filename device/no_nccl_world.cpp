// SPDX-License-Identifier: Apache-2.0
#include "device/nccl_world.hpp"

namespace tokenview {

template <class Ops>
struct NcclWorld<Ops>::State {};

template <class Ops>
NcclWorld<Ops>::NcclWorld(NcclWorld&&) noexcept = default;
template <class Ops>
NcclWorld<Ops>::~NcclWorld() = default;

template <class Ops>
NcclWorld<Ops> NcclWorld<Ops>::of_threads(std::int64_t, Rounding, const NcclOptions&) {
  throw DeviceError("no NCCL: built without it");
}
template <class Ops>
NcclWorld<Ops> NcclWorld<Ops>::of_processes(Transport&, int, Rounding, const NcclOptions&) {
  throw DeviceError("no NCCL: built without it");
}

// There is no object to call these for.
template <class Ops>
std::int64_t NcclWorld<Ops>::size() const {
  return 0;
}
template <class Ops>
const Ops& NcclWorld<Ops>::ops(std::int64_t) const {
  throw DeviceError("no NCCL: built without it");
}
template <class Ops>
void NcclWorld<Ops>::run(const ParallelConfig&, const Body&) {}

template class NcclWorld<CudaOps<float>>;
template class NcclWorld<CudaOps<__nv_bfloat16>>;

}  // namespace tokenview
