// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "reference/program/injector.hpp"
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

  /// `expert_parallel` spans dp x tp at one pipeline stage, `data_parallel` the ranks of equal tp,
  /// `pipeline` those of equal tp and dp.
  Rank(const Ops& arithmetic, Comm& tensor_parallel, Comm& data_parallel, Comm& expert_parallel,
       Comm& pipeline)
      : ops(arithmetic),
        tp("tp", tensor_parallel, faults),
        dp("dp", data_parallel, faults),
        ep("ep", expert_parallel, faults),
        pp("pp", pipeline, faults) {
    for (Comm* group : {&tensor_parallel, &data_parallel, &expert_parallel, &pipeline})
      group->locate(module);
    if constexpr (requires { ops.locate(module); }) ops.locate(module);
  }
  /// One group of one for everything: the serial model.
  Rank(const Ops& arithmetic, Comm& solo) : Rank(arithmetic, solo, solo, solo, solo) {}
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  const Ops& ops;
  Injector<Ops, Comm>* faults = nullptr;  // nullptr: none
  GroupEnd<Ops, Comm> tp, dp, ep, pp;
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
    if (faults != nullptr) [[unlikely]]
      value = faults->value(*leaf == '\0' ? "output" : leaf, std::move(value));
    if (taps != nullptr) taps->tensor(module, leaf, value);
    return value;
  }

  /// A value that golden files do not name, and a fault may change.
  template <class X>
  X named(const char* name, X value) {
    if (faults != nullptr) [[unlikely]]
      return faults->value(name, std::move(value));
    return value;
  }

  /// A decision of the program, a count that it works with, and the side data of the module this
  /// rank is in: as they are, unless a fault changes them.
  bool gate(const char* name, bool value) {
    return faults == nullptr ? value : faults->gate(name, value);
  }
  std::int64_t number(const char* name, std::int64_t value) {
    return faults == nullptr ? value : faults->number(name, value);
  }
  const Batch& side(const Batch& batch) { return faults == nullptr ? batch : faults->batch(batch); }

  /// Appends `count` zero rows; keeps the first `count` rows and drops pads. Local.
  template <class X>
  X pad_rows(const X& x, std::int64_t count) {
    const auto make = [this](const X& rows, std::int64_t n) { return ops.pad_rows(rows, n); };
    return faults == nullptr ? make(x, count) : faults->local("pad_rows", x, count, make);
  }
  template <class X>
  X trim(const X& x, std::int64_t count) {
    const auto make = [this](const X& rows, std::int64_t n) { return ops.trim(rows, n); };
    return faults == nullptr ? make(x, count) : faults->local("trim", x, count, make);
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
