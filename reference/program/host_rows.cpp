// SPDX-License-Identifier: Apache-2.0
#include "reference/program/host_rows.hpp"

#include <algorithm>

namespace tokenview {

HostRows::Ids HostRows::pad_ids(Ids ids, std::int64_t count) const {
  ids.resize(ids.size() + std::size_t(count), 0);
  return ids;
}

HostRows::Ids HostRows::select(const Ids& ids, const std::vector<std::int64_t>& rows) const {
  Ids selected;
  for (const std::int64_t row : rows) selected.push_back(ids.at(std::size_t(row)));
  return selected;
}

HostRows::Ids HostRows::next_ids(const Ids& ids, const Batch& batch,
                                 const std::vector<std::int64_t>& rows, const Ids& next) const {
  Ids shifted = ids;
  for (std::size_t s = 0; s + 1 < batch.query_start_loc.size(); ++s)
    for (std::int32_t t = batch.query_start_loc[s]; t + 1 < batch.query_start_loc[s + 1]; ++t)
      shifted[std::size_t(t)] = ids[std::size_t(t) + 1];
  for (std::size_t i = 0; i < rows.size(); ++i) shifted[std::size_t(rows[i])] = next[i];
  return shifted;
}

HostRows::Ids HostRows::rolled(const Ids& ids, std::int64_t parts) const {
  Ids out = ids;
  const auto shard = (std::int64_t(ids.size()) + parts - 1) / parts;
  for (std::int64_t end = shard; end < std::int64_t(ids.size()); end += shard)
    out[std::size_t(end) - 1] = ids[std::size_t(end - shard)];
  return out;
}

HostRows::Mask HostRows::pad_mask(const Batch& batch) const {
  Mask mask(std::size_t(batch.num_tokens()), 0);
  std::fill(mask.begin() + batch.num_real_tokens(), mask.end(), std::uint8_t{1});
  return mask;
}

HostRows::Mask HostRows::pad_rows(Mask mask, std::int64_t count) const {
  mask.resize(mask.size() + std::size_t(count), 1);
  return mask;
}

HostRows::Mask HostRows::slice(const Mask& mask, Axis, std::int64_t begin, std::int64_t end) const {
  return Mask(mask.begin() + begin, mask.begin() + end);
}

HostRows::Mask HostRows::take_rows(const Mask& mask, const std::vector<std::int64_t>& rows) const {
  Mask out;
  for (const std::int64_t row : rows) out.push_back(mask[std::size_t(row)]);
  return out;
}

}  // namespace tokenview
