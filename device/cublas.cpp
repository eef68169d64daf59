// SPDX-License-Identifier: Apache-2.0
#include "device/cublas.hpp"

#include <dlfcn.h>

#include <string>

namespace tokenview {
namespace {

/// Never closed: its handles may live as long as the program.
void* opened_library() {
  const std::string name = text("libcublas.so.", CUBLAS_VER_MAJOR);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(TOKENVIEW_CUBLAS, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const reason = dlerror();
    throw DeviceError(
        text("cuBLAS: cannot load ", name, ": ", reason ? reason : "no reason given"));
  }
  return library;
}

template <class Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw DeviceError(text("cuBLAS: the library has no ", name));
}

Cublas loaded() {
  void* const library = opened_library();
  Cublas blas{};
  find(library, blas.create, "cublasCreate_v2");
  find(library, blas.destroy, "cublasDestroy_v2");
  find(library, blas.set_stream, "cublasSetStream_v2");
  find(library, blas.set_math_mode, "cublasSetMathMode");
  find(library, blas.gemm_ex, "cublasGemmEx");
  find(library, blas.status_name, "cublasGetStatusName");
  return blas;
}

}  // namespace

const Cublas& Cublas::library() {
  static const Cublas blas = loaded();
  return blas;
}

}  // namespace tokenview
