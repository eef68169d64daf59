// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tokenview {

/// A GPU that this build can use.
struct DeviceInfo {
  std::string name;  // "NVIDIA H200"
  int compute_major = 0;
  int compute_minor = 0;
  int num_multiprocessors = 0;
  std::int64_t memory_bytes = 0;  // all of it, in use or not
  std::string pci_bus_id;         // "0000:9a:00.0"
};

/// The GPUs of this machine, in CUDA's order. When there are none, `reason_if_none` says why:
/// "built without CUDA", or the words of the CUDA runtime.
std::vector<DeviceInfo> devices(std::string& reason_if_none);

/// The version of the CUDA runtime that is linked, "13.0"; empty when built without CUDA.
std::string cuda_version();

/// The version of the NCCL library that is loaded, "2.28.9"; empty when built without NCCL.
std::string nccl_version();

}  // namespace tokenview
