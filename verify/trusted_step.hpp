// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "reference/program/config.hpp"
#include "reference/program/host_tensor.hpp"
#include "verify/golden_file.hpp"
#include "verify/tap_order.hpp"

namespace tokenview {

/// The trusted tensors of one step of one data-parallel rank, unsharded: row i of a tensor is token
/// i; in draft passes after the first, request i. Names have their pass: "step0/mtp.fc".
class TrustedStep {
 public:
  virtual ~TrustedStep() = default;

  virtual const std::string& name() const = 0;  // of the case, for reports
  virtual const std::set<std::string, InProgramOrder>& taps() const = 0;
  /// [tokens, columns]. Where the tensor has to be put together from ranks whose layout is not
  /// known, in every way that it may be; at least one.
  virtual std::vector<HostTensor> ways(const std::string& tap) const = 0;
  virtual IntegerTensor ids(const std::string& tap) const = 0;

  /// What the step was given; null where that is not known.
  virtual const GoldenInputs* inputs() const = 0;

  HostTensor values(const std::string& tap) const { return std::move(ways(tap).front()); }
  bool has(const std::string& tap) const { return taps().contains(tap); }
};

/// A case of a golden file, which must outlive it.
class GoldenStep final : public TrustedStep {
 public:
  GoldenStep(const GoldenFile& golden, std::string case_name, GoldenInputs inputs);

  const std::string& name() const override { return case_name_; }
  const std::set<std::string, InProgramOrder>& taps() const override { return taps_; }
  std::vector<HostTensor> ways(const std::string& tap) const override;
  IntegerTensor ids(const std::string& tap) const override;
  const GoldenInputs* inputs() const override { return &inputs_; }

 private:
  const GoldenFile& golden_;
  std::string case_name_;
  GoldenInputs inputs_;
  std::set<std::string, InProgramOrder> taps_;
};

/// Tensors of equal rows side by side.
HostTensor side_by_side(const std::vector<HostTensor>& parts);

/// True for taps of which an engine may keep the sampled rows only.
bool may_be_sampled(const std::string& tap);

/// The tap whose value the layer `layer` takes: the layer before, the embedding, the MTP's fc.
std::string layer_before(const std::string& layer);

/// What a tap of a dump is held against.
struct Counterpart {
  std::string tap;  // trusted, the first where it is made of several side by side
  std::string in_words;
  std::string layout_tap;  // the tap of the program whose rows it has
  /// Taps of the dump that add up to it; mostly the tap alone.
  std::vector<std::string> summands;
  HostTensor values = {};                   // [tokens, columns]
  std::vector<HostTensor> other_ways = {};  // of putting the trusted side together
  std::vector<std::int64_t> segments = {};  // of the columns, each cut over tp by itself
  std::vector<std::string> beside = {};     // the further ones of several
};

/// The counterpart of a tap of a dump, where `trusted` has one. Besides the same name:
///   X.hidden, X.residual of a layer X     their sum is X
///   X.input.hidden_states, .residual      their sum is what comes before layer X
///   X.residual of a layer's input norm, or of the last one   the layer before
///   X.hidden of a norm X                  X
///   mlp.experts_and_shared                mlp
///   mlp.shared_expert.gated               sigmoid(mlp.shared_expert_gate) mlp.shared_expert
///   self_attn.qkv_proj                    q_proj, k_proj and v_proj side by side
///   mlp.gate_up_proj                      gate_proj and up_proj, also of the shared expert
///   linear_attn.in_proj_qkvz, _ba         of Qwen3.5: in_proj_qkv and _z, in_proj_b and _a
///   mtp.out                               mtp.norm
/// `dump_taps` are the names that the dump has. `config`: null where the model is not known.
std::optional<Counterpart> counterpart_of(const std::string& tap,
                                          const std::set<std::string>& dump_taps,
                                          const TrustedStep& trusted, const ModelConfig* config);

}  // namespace tokenview
