// SPDX-License-Identifier: Apache-2.0
#include "device/device_info.hpp"
#include "reference/program/error.hpp"

namespace tokenview {

std::vector<DeviceInfo> devices(std::string& reason_if_none) {
  reason_if_none = "built without CUDA";
  return {};
}

bool may_have_a_gpu() { return false; }

void start_device(int) { throw DeviceError("no GPU: built without CUDA"); }

DeviceState device_state(int) { return {.problem = "built without CUDA"}; }

std::vector<DeviceLink> device_links(const std::vector<DeviceInfo>&) { return {}; }

std::string cuda_version() { return {}; }

std::string cuda_driver_version() { return {}; }

std::string nccl_version() { return {}; }

}  // namespace tokenview
