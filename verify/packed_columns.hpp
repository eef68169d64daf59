// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "verify/tap_fit.hpp"

namespace tokenview {

/// The columns of a packed projection (query, key and value; gate and up) of a model that is not
/// known, by values: the trusted columns are segments of unknown widths, each cut into blocks over
/// the ranks, or into fewer where neighbouring ranks hold copies. The trusted tensor may itself be
/// several such ranks' side by side. Of the ways that come close the one that comes closest; all
/// ranks hold all rows, of which some may be wrong. Absent where no way of at least two segments
/// comes close.
std::optional<ColumnLayout> packed_columns(const TapTensors& tap);

/// The trusted tensor, which is `blocks` ranks' packed blocks side by side, with its columns in the
/// order in which each rank of `tap` holds all of them. Absent where these hold other columns, or
/// not all rows.
std::optional<HostTensor> unpacked(const TapTensors& tap, std::int64_t blocks);

}  // namespace tokenview
