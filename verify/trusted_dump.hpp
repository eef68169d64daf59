// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "verify/trusted_side.hpp"

namespace tokenview {

/// The type that a step was computed in, as far as that is known: the narrowest of its taps.
DType arithmetic_of(const DumpStep& step);
/// The narrowest of all steps of all ranks.
DType arithmetic_of(const DumpFile& dump);

/// One step of one data-parallel rank of a dump, put together from its tensor-parallel ranks: by
/// annotations where it has them, else by what row counts and values allow. Nothing but names,
/// shapes and rows is asked for, so any model will do.
class DumpedTrustedStep final : public TrustedStep {
 public:
  /// `ranks`: those of the data-parallel rank, by pipeline stage and tp; `dump` outlives this.
  DumpedTrustedStep(const DumpFile& dump, std::int64_t number, std::vector<const DumpRank*> ranks);

  const std::string& name() const override { return name_; }
  const std::set<std::string, InProgramOrder>& taps() const override { return taps_; }
  std::vector<HostTensor> ways(const std::string& tap) const override;
  IntegerTensor ids(const std::string& tap) const override;
  const GoldenInputs* inputs() const override { return inputs_ ? &*inputs_ : nullptr; }

 private:
  std::vector<const DumpRank*> ranks_of(const std::string& tap) const;
  std::int64_t tokens_of(const std::string& tap) const;
  std::vector<HostTensor> stored_ways(const std::string& tap) const;

  const DumpFile& dump_;
  std::int64_t number_;
  std::vector<const DumpRank*> ranks_;
  std::string name_;
  std::set<std::string, InProgramOrder> taps_;
  std::optional<GoldenInputs> inputs_;
  std::int64_t num_tokens_ = -1;
};

/// A dump that is trusted: that of one rank, or of fewer than the other.
class DumpSide final : public TrustedSide {
 public:
  /// `dump` outlives this.
  explicit DumpSide(const DumpFile& dump) : dump_(dump) {}

  /// The step with the same inputs, rather that of the same number; where inputs are not known,
  /// that of the same number, data-parallel rank and row count.
  std::shared_ptr<const TrustedStep> step_of(std::int64_t number, std::int64_t dp,
                                             const DumpStep& step) override;
  std::string no_step() const override { return "the trusted dump has no step with its inputs"; }
  DType dtype() const override;

 private:
  const DumpFile& dump_;
  std::map<std::pair<std::int64_t, std::int64_t>, std::shared_ptr<const TrustedStep>> steps_;
};

}  // namespace tokenview
