// SPDX-License-Identifier: Apache-2.0
#include "device/device_info.hpp"

#include <cuda_runtime_api.h>
#ifdef TOKENVIEW_NCCL
#include <nccl.h>
#endif

#include <array>
#include <filesystem>

#include "device/check.hpp"
#include "device/kernels.hpp"
#include "device/nvlink.hpp"
#include "reference/program/error.hpp"

namespace tokenview {
namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute");
  return value;
}

int peer_attribute(cudaDeviceP2PAttr which, int from, int to) {
  int value = 0;
  check(cudaDeviceGetP2PAttribute(&value, which, from, to), "cudaDeviceGetP2PAttribute");
  return value;
}

std::string in_words(int version) {  // 1000 * major + 10 * minor
  return text(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

std::vector<DeviceInfo> devices(std::string& reason_if_none) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess) {
    reason_if_none = cuda_driver_version().empty() ? "CUDA: no driver is installed"
                                                   : text("CUDA: ", cudaGetErrorString(status));
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

bool may_have_a_gpu() {
  std::error_code none;
  return std::filesystem::exists("/dev/nvidiactl", none) ||
         std::filesystem::exists("/dev/dxg", none);  // Windows' GPU, seen from WSL
}

void start_device(int device) {
  check(cudaSetDevice(device), "cudaSetDevice");
  const cudaError_t status = cudaFree(nullptr);
  if (status == cudaErrorDevicesUnavailable)
    throw DeviceError(text("in exclusive use by another process, or busy (",
                           cudaGetErrorName(status),
                           "): nvidia-smi shows whose it is, CUDA_VISIBLE_DEVICES takes another"));
  check(status, "starting CUDA");
}

DeviceState device_state(int device) {
  DeviceState state;
  try {
    const int mode = attribute(cudaDevAttrComputeMode, device);
    state.compute_mode = mode == cudaComputeModeDefault      ? "default"
                         : mode == cudaComputeModeProhibited ? "prohibited"
                                                             : "exclusive";
    start_device(device);
    state.has_code = kernels::are_built_for_this_gpu();
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    state.memory_free = std::int64_t(free);
  } catch (const DeviceError& error) {
    cudaGetLastError();
    state.problem = error.what();
  }
  return state;
}

std::vector<DeviceLink> device_links(const std::vector<DeviceInfo>& devices) {
  std::vector<DeviceLink> links;
  const NvLinks nvlinks;
  const int count = int(devices.size());
  for (int from = 0; from < count; ++from)
    for (int to = 0; to < count; ++to) {
      if (from == to) continue;
      DeviceLink& link = links.emplace_back(DeviceLink{from, to});
      int access = 0;
      check(cudaDeviceCanAccessPeer(&access, from, to), "cudaDeviceCanAccessPeer");
      link.peer_access = access != 0;
      link.performance_rank = peer_attribute(cudaDevP2PAttrPerformanceRank, from, to);
      link.atomics = peer_attribute(cudaDevP2PAttrNativeAtomicSupported, from, to) != 0;
      link.nvlinks = nvlinks.between(devices[std::size_t(from)].pci_bus_id,
                                     devices[std::size_t(to)].pci_bus_id);
    }
  return links;
}

std::string cuda_version() {
  int version = 0;
  check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
  return in_words(version);
}

std::string cuda_driver_version() {
  int version = 0;  // 0 without a driver
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return {};
  return in_words(version);
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
