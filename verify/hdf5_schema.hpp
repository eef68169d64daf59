// SPDX-License-Identifier: Apache-2.0
// What golden files and dumps check alike.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "verify/hdf5_file.hpp"

namespace tokenview {

/// Throws FileError unless the file says of itself that it is `schema` ("tokenview.dump") in
/// version `version`.
void require_schema(const Hdf5File& file, const std::string& schema, std::int64_t version);

/// Throws FileError for a name of `found`, below the group `inside`, that is none of `expected`.
void require_only(const Hdf5File& file, const std::string& inside,
                  const std::vector<std::string>& found, const std::vector<std::string>& expected);

}  // namespace tokenview
