// SPDX-License-Identifier: Apache-2.0
#include "verify/child_process.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <fstream>
#include <system_error>

namespace tokenview {
namespace {

constexpr char finished = '.';  // after the text; a child that died has not written it

void limit(decltype(RLIMIT_AS) resource, std::int64_t value) {
  rlimit now{};
  getrlimit(resource, &now);
  if (now.rlim_max == RLIM_INFINITY || rlim_t(value) < now.rlim_max)
    now = {rlim_t(value), rlim_t(value)};
  setrlimit(resource, &now);
}

std::int64_t address_space_bytes() {
  std::int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

bool write_all(int descriptor, const std::string& bytes) {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t count = write(descriptor, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno != EINTR) return false;
    if (count > 0) done += std::size_t(count);
  }
  return true;
}

std::string read_all(int descriptor) {
  std::string result;
  std::array<char, 4096> block{};
  for (;;) {
    const ssize_t count = read(descriptor, block.data(), block.size());
    if (count == 0 || (count < 0 && errno != EINTR)) return result;
    if (count > 0) result.append(block.data(), std::size_t(count));
  }
}

[[noreturn]] void run_child(const ChildLimits& limits, const std::function<std::string()>& body,
                            int descriptor) {
  // A crash here is an answer, not an accident: no core file, and no handler that reports it.
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGILL, SIGXCPU})
    std::signal(signal, SIG_DFL);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO})
    if (null >= 0) dup2(null, stream);
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, limits.cpu_seconds);
  const std::int64_t now = address_space_bytes();
  if (now > 0) limit(RLIMIT_AS, now + limits.memory_bytes);
  try {
    _exit(write_all(descriptor, body() + finished) ? 0 : 1);
  } catch (...) {
    _exit(1);
  }
}

}  // namespace

std::optional<std::string> child_result(const ChildLimits& limits,
                                        const std::function<std::string()>& body) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    throw std::system_error(errno, std::generic_category(), "pipe");
  const pid_t child = fork();
  if (child == 0) run_child(limits, body, ends[1]);
  const int fork_error = errno;
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    throw std::system_error(fork_error, std::generic_category(), "fork");
  }
  std::string result = read_all(ends[0]);
  close(ends[0]);
  // The text tells all there is to know; where the process ignores SIGCHLD there is no status.
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (result.empty() || result.back() != finished) return std::nullopt;
  result.pop_back();
  return result;
}

}  // namespace tokenview
