// SPDX-License-Identifier: Apache-2.0
// Any bytes as a config.json: a configuration that survives being written and read again, or one of
// the two errors that read_config_json() promises.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tokenview;
  const std::string_view json_text(reinterpret_cast<const char*>(data), size);
  std::string written;
  try {
    written = write_config_json(read_config_json(json_text, "fuzz").config);
  } catch (const ConfigError&) {
    return 0;
  } catch (const FileError&) {
    return 0;
  }
  if (write_config_json(read_config_json(written, "written").config) != written) std::abort();
  return 0;
}
