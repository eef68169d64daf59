// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace tokenview {

/// The time in UTC, "2026-11-30T07:25:11Z"; that of SOURCE_DATE_EPOCH where the variable is set, so
/// that a report can be made again to the byte. Throws UsageError where it holds no whole number.
/// Source: https://reproducible-builds.org/specs/source-date-epoch/
std::string report_time();

}  // namespace tokenview
