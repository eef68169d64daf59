// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "device/assert_record.hpp"

namespace tokenview {

/// Writes the record of an index out of bounds; to be called just before the assert. The first
/// thread of the GPU that comes writes, and the others wait until it has: their assert would end
/// the writer with the context.
__device__ inline void note_bad_index(AssertNote note, AssertingKernel kernel, std::int64_t row,
                                      std::int64_t index, std::int64_t bound) {
  AssertRecord* const record = note.record;
  if (record == nullptr) return;
  if (atomicCAS(&record->kernel, 0, std::int32_t(kernel)) == 0) {
    record->rank = note.rank;
    record->row = row;
    record->index = index;
    record->bound = bound;
    const uint3 at[] = {blockIdx, threadIdx};
    std::uint32_t* const to[] = {record->block, record->thread};
    for (int i = 0; i < 2; ++i) {
      to[i][0] = at[i].x;
      to[i][1] = at[i].y;
      to[i][2] = at[i].z;
    }
    __threadfence_system();
    *const_cast<volatile std::int32_t*>(&record->is_complete) = 1;
    __threadfence_system();
    return;
  }
  constexpr int most_reads = 1 << 16;  // of host memory, a microsecond each: no wait without an end
  for (int i = 0; i < most_reads; ++i)
    if (*const_cast<volatile std::int32_t*>(&record->is_complete) != 0) return;
}

}  // namespace tokenview
