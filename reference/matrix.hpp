// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <Eigen/Core>

namespace tokenview {

/// Row-major: a row is one token, in memory as in golden files and on the device.
template <class S>
using Matrix = Eigen::Matrix<S, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace tokenview
