// SPDX-License-Identifier: Apache-2.0
#include "verify/interrupt.hpp"

#include <csignal>
#include <initializer_list>

namespace tokenview {
namespace {

volatile std::sig_atomic_t caught_signal = 0;

extern "C" void note_signal(int signal) { caught_signal = signal; }

}  // namespace

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = int(SA_RESETHAND | SA_RESTART);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    // A signal that the parent had ignored (nohup, a background job) stays ignored.
    if (before.sa_handler != SIG_IGN) sigaction(signal, &action, nullptr);
  }
}

void throw_if_interrupted() {
  if (caught_signal != 0) throw Interrupted{caught_signal};
}

}  // namespace tokenview
