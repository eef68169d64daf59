// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace tokenview {

/// `values`; where the environment has TOKENVIEW_FEW_CASES, the first `few` of them. So the tests
/// of the GPU launch every kernel and still take seconds under compute-sanitizer.
template <class T>
std::vector<T> first_if_few(std::size_t few, std::vector<T> values) {
  if (std::getenv("TOKENVIEW_FEW_CASES") != nullptr) values.resize(std::min(few, values.size()));
  return values;
}

/// The same as a data set.
template <class T = std::int64_t>
auto some(std::size_t few, std::vector<T> values) {
  return boost::unit_test::data::make(first_if_few(few, std::move(values)));
}

}  // namespace tokenview
