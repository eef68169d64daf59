// SPDX-License-Identifier: Apache-2.0
#include "device/device_info.hpp"

namespace tokenview {

std::vector<DeviceInfo> devices(std::string& reason_if_none) {
  reason_if_none = "built without CUDA";
  return {};
}

std::string cuda_version() { return {}; }

std::string nccl_version() { return {}; }

}  // namespace tokenview
