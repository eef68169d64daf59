// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string>

namespace tokenview {

/// What NVML, the driver's management library, knows of NVLink. It is loaded where it is there, and
/// nothing is known where it is not.
class NvLinks {
 public:
  NvLinks();
  ~NvLinks();
  NvLinks(const NvLinks&) = delete;
  NvLinks& operator=(const NvLinks&) = delete;

  /// Active links of the first GPU where NVLink, or a switch of it, joins it to the second; GPUs by
  /// their PCI bus id.
  std::optional<int> between(const std::string& from, const std::string& to) const;

 private:
  void* library_ = nullptr;
};

}  // namespace tokenview
