// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <vector>

#include "reference/program/batch.hpp"
#include "reference/program/operations.hpp"

namespace tokenview {

/// Ids and pad masks in host memory, where a scheduler reads them: the same for every arithmetic on
/// numbers, whatever holds its tensors.
class HostRows {
 public:
  using Ids = std::vector<std::int64_t>;
  using Mask = std::vector<std::uint8_t>;  // [T] 1: a pad

  Ids ids(const Batch& batch) const { return batch.input_ids; }
  Ids pad_ids(Ids ids, std::int64_t count) const;
  Ids select(const Ids& ids, const std::vector<std::int64_t>& rows) const;
  /// `ids` shifted left by one inside each sequence of the batch; then rows[i] gets next[i].
  Ids next_ids(const Ids& ids, const Batch& batch, const std::vector<std::int64_t>& rows,
               const Ids& next) const;
  /// What an injected fault does to ids: shifted inside each of `parts` shards, not the whole.
  Ids rolled(const Ids& ids, std::int64_t parts) const;

  Mask pad_mask(const Batch& batch) const;
  Mask pad_rows(Mask mask, std::int64_t count) const;
  Mask slice(const Mask& mask, Axis axis, std::int64_t begin, std::int64_t end) const;
  Mask take_rows(const Mask& mask, const std::vector<std::int64_t>& rows) const;
  std::int64_t extent(const Mask& mask, Axis) const { return std::int64_t(mask.size()); }

  // What numbers cannot tell.
  void require_ids(const Ids&, const Batch&, const char*) const {}
  void require_side(const Batch&, const Batch&, const char*) const {}
};

}  // namespace tokenview
