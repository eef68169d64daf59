// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <string>

namespace tokenview {

/// One line on standard error that says how far long work is. Shown only on a terminal, from the
/// first second on, at most ten times a second; gone when the work is done.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Cheap to call often. Cut to the width of the terminal.
  void update(const std::string& line);

  /// Removes the line, before something else is printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  bool enabled_;
  bool shown_ = false;
  Clock::time_point next_;
};

}  // namespace tokenview
