// SPDX-License-Identifier: Apache-2.0
#include "verify/hdf5_schema.hpp"

#include <algorithm>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

void require_schema(const Hdf5File& file, const std::string& schema, std::int64_t version) {
  if (!file.has_attribute("/", "schema"))
    file.fail("/", text("has no attribute 'schema', expected '", schema, '\''));
  const std::string found = file.string_attribute("/", "schema");
  if (found != schema)
    file.fail("/", text("schema is '", printable(found), "', expected '", schema, '\''));
  const std::int64_t found_version = file.int_attribute("/", "schema_version");
  if (found_version != version)
    file.fail("/", text("schema_version is ", found_version, ", expected ", version,
                        found_version > version ? ": the file is newer than this program" : ""));
}

void require_only(const Hdf5File& file, const std::string& inside,
                  const std::vector<std::string>& found, const std::vector<std::string>& expected) {
  for (const std::string& name : found)
    if (std::ranges::find(expected, name) == expected.end())
      file.fail(text(inside, '/', name),
                text("is no part of this format, expected ",
                     expected.empty() ? "nothing of its kind here" : "here: " + joined(expected)));
}

}  // namespace tokenview
