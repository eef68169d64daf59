// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace tokenview {

/// The arguments, streamed into one string. (libstdc++ 12 has no std::format, and fmt is kept out
/// of the headers that every translation unit of the program reads.)
template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

/// What an error is about; the command line turns it into an exit code.
enum class Fault {
  usage,   // an option, argument or environment variable
  config,  // a model or parallel configuration that cannot exist
  file,    // a file that is missing, unreadable or malformed
  shape,   // operands that do not fit
  comm,    // ranks that disagree, or left
  device,  // a CUDA, NCCL or MPI call that failed
};

/// A broken precondition or environment: subject, problem, found, expected, in one line. A mismatch
/// of values is not an error but a verdict (verify/report.hpp).
class Error : public std::runtime_error {
 public:
  Error(Fault fault, const std::string& problem)
      : std::runtime_error(problem), fault_(fault), message_(problem) {}

  const char* what() const noexcept override { return message_.c_str(); }
  Fault fault() const { return fault_; }

  /// Puts the name of an enclosing scope in front, from the inside out: "rank 2: linear: ...".
  void within(const std::string& scope) { message_ = scope + ": " + message_; }

 private:
  Fault fault_;
  std::string message_;
};

/// An Error to catch by kind.
template <Fault kind>
struct ErrorOf : Error {
  explicit ErrorOf(const std::string& problem) : Error(kind, problem) {}
};
using UsageError = ErrorOf<Fault::usage>;
using ConfigError = ErrorOf<Fault::config>;
using FileError = ErrorOf<Fault::file>;
using ShapeError = ErrorOf<Fault::shape>;
using CommError = ErrorOf<Fault::comm>;
using DeviceError = ErrorOf<Fault::device>;

/// Runs `body`; an Error leaving it is told the name of this scope.
template <class Body>
decltype(auto) in_scope(const std::string& scope, Body&& body) {
  try {
    return body();
  } catch (Error& error) {
    error.within(scope);
    throw;
  }
}

}  // namespace tokenview
