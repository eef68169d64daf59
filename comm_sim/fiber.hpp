// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <memory>

namespace tokenview {

/// A body that runs on a stack of its own and may pause: a rank of a simulated world. All fibers of
/// a world run on the thread that resumes them, one at a time, so they need no locks.
///
/// On Boost.Context where it is installed (about 20 ns a switch), else on glibc's ucontext. Both
/// are announced to the address and thread sanitizers.
class Fiber {
 public:
  /// `body` must not let an exception out. It starts at the first resume().
  explicit Fiber(std::function<void()> body);

  /// The body must have ended: a paused body still owns what lies on its stack.
  ~Fiber();
  Fiber(Fiber&&) noexcept;
  Fiber& operator=(Fiber&&) = delete;

  /// Runs the body until it pauses or ends. Not from inside a body of the same fiber.
  void resume();

  /// Called by the body: goes back to who resumed it, until resumed again. Not inside a catch
  /// block: the C++ runtime keeps caught exceptions per thread.
  void pause();

  bool ended() const;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace tokenview
