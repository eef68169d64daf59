// SPDX-License-Identifier: Apache-2.0
#include "verify/report_time.hpp"

#include <charconv>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "reference/program/error.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {

std::string report_time() {
  std::time_t seconds = std::time(nullptr);
  if (const char* const epoch = std::getenv("SOURCE_DATE_EPOCH"); epoch != nullptr) {
    const std::string_view word(epoch);
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), seconds);
    constexpr std::time_t year_10000 = 253'402'300'800;
    if (error != std::errc() || end != word.data() + word.size() || seconds < 0 ||
        seconds >= year_10000)
      throw UsageError(text("SOURCE_DATE_EPOCH: found \"", printable(std::string(word)),
                            "\", expected seconds since 1970"));
  }
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char words[32];
  const std::size_t length = std::strftime(words, sizeof words, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return {words, length};
}

}  // namespace tokenview
