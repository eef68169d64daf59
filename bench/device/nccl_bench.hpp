// SPDX-License-Identifier: Apache-2.0
// What benchmarks with a thread a GPU over NCCL share.
#pragma once
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "comm_sim/transport/thread_transport.hpp"
#include "device/check.hpp"
#include "device/device_info.hpp"
#include "device/nccl_comm.hpp"

namespace tokenview {

inline void require(ncclResult_t status) {
  if (status != ncclSuccess) throw DeviceError(ncclGetErrorString(status));
}

inline double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + std::ptrdiff_t(values.size() / 2));
  return values[values.size() / 2];
}

/// Runs `rank` on as many GPUs as the first argument says, else on two. Returns the exit code.
inline int run_on_gpus(int argc, char** argv, const std::function<void(Transport&)>& rank) {
  std::string reason;
  const auto found = std::int64_t(devices(reason).size());
  const std::int64_t gpus = argc > 1 ? std::atol(argv[1]) : std::min<std::int64_t>(found, 2);
  if (gpus < 2 || gpus > found) {
    std::printf("skipped: %ld GPUs asked for, %ld found, two needed\n", long(gpus), long(found));
    return 77;
  }
  try {
    std::printf("%ld GPUs, NCCL %s\n", long(gpus), nccl_version().c_str());
    ThreadWorld(gpus).run(rank);
    return 0;
  } catch (const Error& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
}

}  // namespace tokenview
