// SPDX-License-Identifier: Apache-2.0
#include "device/device_info.hpp"

#include <cuda_runtime_api.h>
#ifdef TOKENVIEW_NCCL
#include <nccl.h>
#endif

#include <array>

#include "device/check.hpp"
#include "reference/program/error.hpp"

namespace tokenview {

std::vector<DeviceInfo> devices(std::string& reason_if_none) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    reason_if_none = text("CUDA: ", cudaGetErrorString(status));
    return {};
  }
  if (count == 0) reason_if_none = "CUDA sees no GPU";

  std::vector<DeviceInfo> found;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
    std::array<char, 32> bus_id{};
    check(cudaDeviceGetPCIBusId(bus_id.data(), int(bus_id.size()), device),
          "cudaDeviceGetPCIBusId");
    found.push_back({.name = properties.name,
                     .compute_major = properties.major,
                     .compute_minor = properties.minor,
                     .num_multiprocessors = properties.multiProcessorCount,
                     .memory_bytes = std::int64_t(properties.totalGlobalMem),
                     .pci_bus_id = bus_id.data()});
  }
  return found;
}

std::string cuda_version() {
  int version = 0;  // 1000 * major + 10 * minor
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return text(version / 1000, ".", version % 1000 / 10);
}

std::string nccl_version() {
#ifdef TOKENVIEW_NCCL
  int version = 0;  // 10000 * major + 100 * minor + patch, since NCCL 2.9
  if (ncclGetVersion(&version) != ncclSuccess) return {};
  return text(version / 10000, ".", version % 10000 / 100, ".", version % 100);
#else
  return {};
#endif
}

}  // namespace tokenview
