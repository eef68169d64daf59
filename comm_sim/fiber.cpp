// SPDX-License-Identifier: Apache-2.0
#include "comm_sim/fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cassert>
#include <cstddef>
#include <utility>
#include <vector>

#include "reference/program/error.hpp"

#ifdef TOKENVIEW_UCONTEXT
#include <ucontext.h>
#else
#include <boost/context/fiber.hpp>
#include <boost/context/preallocated.hpp>
#include <boost/context/stack_context.hpp>
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace tokenview {
namespace {

constexpr std::size_t stack_bytes = 512 * 1024;  // touched pages only are real memory

/// A stack with an unmapped page below it: an overflow is a fault, not a corruption.
struct Stack {
  std::byte* bottom;
};

/// Stacks of ended fibers of this thread, for the next ones.
class StackPool {
 public:
  ~StackPool() {
    for (const Stack& stack : free_) munmap(stack.bottom - page(), stack_bytes + page());
  }
  Stack take() {
    if (!free_.empty()) {
      const Stack stack = free_.back();
      free_.pop_back();
      return stack;
    }
    void* memory = mmap(nullptr, stack_bytes + page(), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
      throw CommError(
          text("no memory for the stack of a simulated rank (", stack_bytes, " bytes)"));
    mprotect(memory, page(), PROT_NONE);
    return {static_cast<std::byte*>(memory) + page()};
  }
  void give_back(Stack stack) { free_.push_back(stack); }

 private:
  static std::size_t page() { return std::size_t(sysconf(_SC_PAGESIZE)); }
  std::vector<Stack> free_;
};

thread_local StackPool stack_pool;

}  // namespace

struct Fiber::Context {
  explicit Context(std::function<void()> run) : body(std::move(run)), stack(stack_pool.take()) {}
  ~Context() { stack_pool.give_back(stack); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  std::function<void()> body;
  Stack stack;
  bool started = false;
  bool ended = false;

#ifdef TOKENVIEW_UCONTEXT
  ucontext_t inside{}, outside{};
#else
  boost::context::fiber inside, outside;
#endif

  // What the address sanitizer wants to know at each switch: the stack that is entered, and on
  // arrival the one that was left.
  void* outside_fake = nullptr;
  void* inside_fake = nullptr;
  const void* outside_bottom = nullptr;
  std::size_t outside_bytes = 0;
#if defined(__SANITIZE_THREAD__)
  void* tsan_inside = __tsan_create_fiber(0);
  void* tsan_outside = nullptr;
#endif

  void announce_enter() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&outside_fake, stack.bottom, stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    tsan_outside = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_inside, 0);
#endif
  }
  void announce_entered() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(inside_fake, &outside_bottom, &outside_bytes);
#endif
  }
  void announce_leave(bool for_good) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(for_good ? nullptr : &inside_fake, outside_bottom,
                                   outside_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(tsan_outside, 0);
#endif
    static_cast<void>(for_good);
  }
  void announce_left() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(outside_fake, nullptr, nullptr);
#endif
  }

  void run() {
    announce_entered();
    body();
    ended = true;
    announce_leave(true);
  }

#ifdef TOKENVIEW_UCONTEXT
  static void entry(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<Context*>((std::uintptr_t(high) << 32) | std::uintptr_t(low));
    self->run();
    setcontext(&self->outside);
  }
  void start() {
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack.bottom;
    inside.uc_stack.ss_size = stack_bytes;
    inside.uc_link = nullptr;
    const auto self = reinterpret_cast<std::uintptr_t>(this);
    makecontext(&inside, reinterpret_cast<void (*)()>(&entry), 2, unsigned(self >> 32),
                unsigned(self & 0xffffffffu));
  }
  void enter() { swapcontext(&outside, &inside); }
  void leave() { swapcontext(&inside, &outside); }
#else
  /// The stack is the pool's: Boost must neither allocate nor free it.
  struct Borrowed {
    boost::context::stack_context allocate() { return {}; }
    void deallocate(boost::context::stack_context&) noexcept {}
  };
  void start() {
    boost::context::stack_context borrowed;
    borrowed.sp = stack.bottom + stack_bytes;
    borrowed.size = stack_bytes;
    inside = boost::context::fiber(
        std::allocator_arg, boost::context::preallocated(borrowed.sp, borrowed.size, borrowed),
        Borrowed{}, [this](boost::context::fiber&& caller) {
          outside = std::move(caller);
          run();
          return std::move(outside);
        });
  }
  void enter() { inside = std::move(inside).resume(); }
  void leave() { outside = std::move(outside).resume(); }
#endif
};

Fiber::Fiber(std::function<void()> body) : context_(std::make_unique<Context>(std::move(body))) {}
Fiber::Fiber(Fiber&&) noexcept = default;

Fiber::~Fiber() {
  assert(!context_ || context_->ended || !context_->started);
#if defined(__SANITIZE_THREAD__)
  if (context_) __tsan_destroy_fiber(context_->tsan_inside);
#endif
}

void Fiber::resume() {
  assert(!context_->ended);
  if (!context_->started) {
    context_->started = true;
    context_->start();
  }
  context_->announce_enter();
  context_->enter();
  context_->announce_left();
}

void Fiber::pause() {
  context_->announce_leave(false);
  context_->leave();
  context_->announce_entered();
}

bool Fiber::ended() const { return context_->ended; }

}  // namespace tokenview
