// SPDX-License-Identifier: Apache-2.0
#include "verify/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace tokenview {
namespace {

std::size_t terminal_columns() {
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

bool is_terminal() {
  const char* const kind = std::getenv("TERM");
  return isatty(STDERR_FILENO) != 0 && kind != nullptr && std::string(kind) != "dumb";
}

}  // namespace

Progress::Progress() : enabled_(is_terminal()), next_(Clock::now() + std::chrono::seconds(1)) {}

void Progress::update(const std::string& line) {
  if (!enabled_ || Clock::now() < next_) return;
  next_ = Clock::now() + std::chrono::milliseconds(100);
  std::fprintf(stderr, "\r\033[K%s", line.substr(0, terminal_columns() - 1).c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace tokenview
