// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cublas_v2.h>

#include "reference/program/error.hpp"

namespace tokenview {

/// The functions of cuBLAS, loaded when a GPU is first used: linked, the library makes every start
/// of the program 0.1 s longer.
struct Cublas {
  decltype(&cublasCreate_v2) create;
  decltype(&cublasDestroy_v2) destroy;
  decltype(&cublasSetStream_v2) set_stream;
  decltype(&cublasSetMathMode) set_math_mode;
  cublasStatus_t (*gemm_ex)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n,
                            int k, const void* alpha, const void* a, cudaDataType, int lda,
                            const void* b, cudaDataType, int ldb, const void* beta, void* c,
                            cudaDataType, int ldc, cublasComputeType_t, cublasGemmAlgo_t);
  decltype(&cublasGetStatusName) status_name;

  /// Throws DeviceError when the library is not there or lacks a function.
  static const Cublas& library();
};

/// Throws DeviceError when `status`, what `call` returned, is not success.
inline void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(text(call, ": ", Cublas::library().status_name(status)));
}

}  // namespace tokenview
