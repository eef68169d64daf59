// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <optional>
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

/// Whether a GPU of this machine may be usable: this build has CUDA, and the driver's device files
/// are there. Starts nothing, and costs microseconds.
bool may_have_a_gpu();

/// Starts CUDA on a GPU, some tenths of a second, and makes it the current one. Throws DeviceError
/// with the reason: in exclusive use by another process, prohibited, out of memory, ...
void start_device(int device);

/// What a started GPU tells.
struct DeviceState {
  std::string problem = {};       // why it cannot be used; empty: it can, and the rest is known
  bool has_code = false;          // of this build
  std::int64_t memory_free = 0;   // bytes
  std::string compute_mode = {};  // "default", "exclusive", "prohibited"
};
/// Starts the GPU.
DeviceState device_state(int device);

/// What two GPUs see of each other.
struct DeviceLink {
  int from = 0, to = 0;
  bool peer_access = false;         // `from` reads the memory of `to`
  int performance_rank = 0;         // of CUDA; 0 is the fastest link of this machine
  bool atomics = false;             // natively, over the link
  std::optional<int> nvlinks = {};  // active ones of `from`, where the two are joined by NVLink
};
/// All ordered pairs of the GPUs.
std::vector<DeviceLink> device_links(const std::vector<DeviceInfo>& devices);

/// The version of the CUDA runtime that is linked, "13.0"; empty when built without CUDA.
std::string cuda_version();

/// The newest CUDA that the installed driver serves, "13.0"; empty without a driver.
std::string cuda_driver_version();

/// The version of the NCCL library that is loaded, "2.28.9"; empty when built without NCCL.
std::string nccl_version();

}  // namespace tokenview
