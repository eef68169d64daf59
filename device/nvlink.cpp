// SPDX-License-Identifier: Apache-2.0
#include "device/nvlink.hpp"

#include <dlfcn.h>

namespace tokenview {
namespace {

// As nvml.h declares them, which a machine with CUDA may lack; 0 is success.
using Device = void*;
using Init = int();
using HandleByPciBusId = int(const char*, Device*);
using P2PStatus = int(Device, Device, int what, int* status);
using NvLinkState = int(Device, unsigned link, int* is_active);
constexpr int p2p_over_nvlink = 2, p2p_ok = 0;
constexpr unsigned most_links = 18;

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

NvLinks::NvLinks() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) return;
  auto* const init = find<Init>(library_, "nvmlInit_v2");
  if (init != nullptr && init() == 0) return;
  dlclose(library_);
  library_ = nullptr;
}

NvLinks::~NvLinks() {
  if (library_ == nullptr) return;
  if (auto* const shutdown = find<Init>(library_, "nvmlShutdown")) shutdown();
  dlclose(library_);
}

std::optional<int> NvLinks::between(const std::string& from, const std::string& to) const {
  if (library_ == nullptr) return std::nullopt;
  auto* const handle = find<HandleByPciBusId>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  auto* const p2p = find<P2PStatus>(library_, "nvmlDeviceGetP2PStatus");
  auto* const state = find<NvLinkState>(library_, "nvmlDeviceGetNvLinkState");
  if (handle == nullptr || p2p == nullptr || state == nullptr) return std::nullopt;
  Device a = nullptr, b = nullptr;
  int status = -1;
  if (handle(from.c_str(), &a) != 0 || handle(to.c_str(), &b) != 0 ||
      p2p(a, b, p2p_over_nvlink, &status) != 0 || status != p2p_ok)
    return std::nullopt;
  int links = 0;
  for (unsigned link = 0; link < most_links; ++link)
    if (int is_active = 0; state(a, link, &is_active) == 0) links += is_active == 1;
  return links;
}

}  // namespace tokenview
