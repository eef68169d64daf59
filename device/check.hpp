// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include "reference/program/error.hpp"

namespace tokenview {

/// Throws DeviceError when `status`, what `call` returned, is not success. It is then no longer the
/// last error of CUDA, which a later launch would take for its own.
inline void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  cudaGetLastError();
  throw DeviceError(text(call, ": ", cudaGetErrorName(status), ", ", cudaGetErrorString(status)));
}

}  // namespace tokenview
