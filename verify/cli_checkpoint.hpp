// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <string>

#include "verify/checkpoint.hpp"

namespace tokenview {

/// The folder that --checkpoint names, opened; null for "". Notes on standard error which of its
/// tensors are not used. Throws as Checkpoint.
std::unique_ptr<const Checkpoint> opened_checkpoint(const std::string& folder);

}  // namespace tokenview
