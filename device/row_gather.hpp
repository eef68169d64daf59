// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "device/assert_record.hpp"
#include "device/device_matrix.hpp"

namespace tokenview {

/// out[i, :] = x[index[i], :], the sampler's choice of the rows that get logits; T is float,
/// __nv_bfloat16 or std::int64_t. `index` is [out.rows] in device memory, -x.rows <= index[i] <
/// x.rows, and a negative one counts from the end. An index out of bounds is a device-side assert
/// in every build, which ends the CUDA context as it does in PyTorch; `note` says where the kernel
/// writes down what it found. `out` must not overlap `x`. Asynchronous on `stream`. Throws
/// ShapeError; DeviceError when the launch fails.
/// Source: pytorch aten/src/ATen/native/cuda/IndexKernel.cu, index_kernel.
template <class T>
void row_gather(MatrixRef<T> out, MatrixRef<const T> x, const std::int64_t* index,
                cudaStream_t stream, AssertNote note = {});

}  // namespace tokenview
