// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "reference/program/module_path.hpp"
#include "reference/program/operations.hpp"

namespace tokenview {

/// Receives the tensors that the program names on their way past, under the names of golden files.
/// It may replace a value: the program goes on with what it leaves behind. So a comparison can take
/// up the trusted value again, and what follows has no inherited error.
template <class Ops>
class TapSink {
 public:
  virtual ~TapSink() = default;
  virtual void tensor(const ModulePath& module, const char* leaf, typename Ops::Tensor& value) = 0;
  virtual void routing(const ModulePath& module, typename Ops::Routing& value) = 0;
};

/// What one rank's program runs with: its arithmetic, its groups, and where it is.
template <class OpsT, class CommT>
requires ModelOps<OpsT> && Communicator<CommT, OpsT>
class Rank {
 public:
  using Ops = OpsT;
  using Comm = CommT;
  using Tensor = typename Ops::Tensor;
  using Weight = typename Ops::Weight;

  /// `expert_parallel` spans dp x tp, `data_parallel` the ranks of equal tp.
  Rank(const Ops& arithmetic, Comm& tensor_parallel, Comm& data_parallel, Comm& expert_parallel)
      : ops(arithmetic), tp(tensor_parallel), dp(data_parallel), ep(expert_parallel) {
    for (Comm* group : {&tp, &dp, &ep}) group->locate(module);
    if constexpr (requires { ops.locate(module); }) ops.locate(module);
  }
  /// A group of its own for everything: the serial model, or tp alone where dp is one.
  Rank(const Ops& arithmetic, Comm& tensor_parallel, Comm& data_parallel)
      : Rank(arithmetic, tensor_parallel, data_parallel, tensor_parallel) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const Ops& ops;
  Comm& tp;
  Comm& dp;
  Comm& ep;
  ModulePath module;
  TapSink<Ops>* taps = nullptr;  // nullptr: nothing is recorded

  /// Leaves the module that enter() entered.
  class Scope {
   public:
    explicit Scope(ModulePath& path) : path_(path) {}
    ~Scope() { path_.pop(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ModulePath& path_;
  };
  [[nodiscard]] Scope enter(const char* name, std::int64_t index = -1) {
    module.push(name, index);
    return Scope(module);
  }

  /// Records `value` as the output of the module this rank is in, or of its part `leaf`.
  Tensor tap(Tensor value, const char* leaf = "") {
    if (taps != nullptr) taps->tensor(module, leaf, value);
    return value;
  }

  /// x w^T as the module `name`.
  Tensor linear(const char* name, const Tensor& x, const Weight& w) {
    const Scope scope = enter(name);
    return tap(ops.linear(x, w));
  }

  /// The zero-centred RMS norm as the module `name`.
  Tensor rms_norm(const char* name, const Tensor& x, const Weight& w, double eps) {
    const Scope scope = enter(name);
    return tap(ops.rms_norm(x, w, eps));
  }
};

}  // namespace tokenview
