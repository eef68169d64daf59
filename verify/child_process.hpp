// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace tokenview {

/// What a child process may use.
struct ChildLimits {
  std::int64_t memory_bytes;  // beyond what the process has at the start
  std::int64_t cpu_seconds;
};

/// Calls `body` in a forked child and returns the text that it returned there; nothing when the
/// child crashed, threw, or passed a limit. What `body` changes is lost, what it prints is dropped.
/// No other thread may be inside a library that `body` calls: the child would find its locks taken.
/// Throws std::system_error when no child can be started.
std::optional<std::string> child_result(const ChildLimits& limits,
                                        const std::function<std::string()>& body);

}  // namespace tokenview
