// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/error.hpp"

namespace tokenview {

/// What is demanded needs a GPU or a library that this machine, or this build, does not have: the
/// command is skipped (exit 77) rather than wrong.
struct NotHere : DeviceError {
  using DeviceError::DeviceError;
};

}  // namespace tokenview
