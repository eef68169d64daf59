// SPDX-License-Identifier: Apache-2.0
// Internal to verify/dump_diff*.cpp: what one step of one data-parallel rank goes through.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "verify/choice_order.hpp"
#include "verify/clean_layouts.hpp"
#include "verify/dump_diff.hpp"
#include "verify/error_model.hpp"
#include "verify/tap_fit.hpp"
#include "verify/trusted_step.hpp"

namespace tokenview {

struct ExplainedTap;

/// The ranks of one pipeline stage of one data-parallel rank in one step, dummies apart.
struct StageStep {
  std::int64_t number = 0, dp = 0, pp = 0;
  std::vector<const DumpRank*> ranks = {};               // by tp
  std::shared_ptr<const TrustedStep> trusted = nullptr;  // null: none belongs to it

  const DumpStep& of(const DumpRank& rank) const { return rank.steps.at(number); }
  const DumpTap& tap(const DumpRank& rank, const std::string& name) const {
    return of(rank).taps.at(name);
  }
  std::set<std::string> names() const;  // of all taps
  bool has(const ExplainedTap& tap) const;
};

/// A way of holding a tap that its values allow.
struct TapWay {
  std::vector<TokenView> views;  // of each rank
  std::string garbage;           // a pad that is not zero, in words; empty: none
};

/// A tensor put together from the ranks, each held as `views` say.
struct PutTogether {
  std::vector<TokenView> views;
  double distance = 0;                         // from the trusted one: RMS, or ids that differ
  Matrix<double> values = {};                  // [tokens, columns]; or
  Matrix<std::int64_t> ids = {};               // [tokens, k]
  std::vector<std::int64_t> absent_rows = {};  // that no rank holds whole
  std::string garbage = {};                    // as TapWay's
  std::string zeros = {};                      // in words: a token that is zeros and should not be
  bool are_copies = false;                     // the ranks have the same tensor
};

/// A tap with what was found.
struct ExplainedTap {
  TapDiff diff;
  std::string layout_tap;                // of the program, whose rows it has
  std::vector<const DumpRank*> ranks;    // that have it
  std::vector<TapWay> ways;              // none: the values do not fit
  std::vector<Rows> nearest;             // of each rank, in the way that comes nearest
  std::vector<TokenView> nearest_views;  // likewise
  std::optional<ColumnLayout> packed;    // columns that were found by values
  std::string zeros;                     // PutTogether's, of the way that was judged
  std::int64_t reordered = 0;            // rows of experts in another order than the trusted one

  // Where the explainer keeps values, of taps that the trusted side has by this name: in each way
  // that has all tokens and columns, whether it fits or not.
  std::vector<PutTogether> put_together = {};
};

// dump_diff_taps.cpp

/// Holds the taps of a stage against their counterparts, whatever way they are held.
class TapExplainer {
 public:
  /// `errors`: of the step; null: fixed limits place rows. `keeps_values`:
  /// ExplainedTap::put_together is filled.
  TapExplainer(const DumpFile& dump, const DumpDiffOptions& options, const StageStep& stage,
               const std::vector<CleanLayout>& layouts, const ModelConfig* config,
               const TapErrorModel* errors, bool keeps_values);

  /// Absent where the trusted side has no counterpart. `used` is told the trusted tap.
  std::optional<ExplainedTap> explain(const std::string& name, std::set<std::string>& used) const;

  /// The tensors of a tap on this stage's ranks, summands of one rank added up, without the trusted
  /// one.
  static TapTensors tensors_of(const DumpFile& dump, const StageStep& stage,
                               const Counterpart& counterpart);

  /// The experts to which the ranks' weights belong, where `tap` is of such and the dump and the
  /// trusted side have them.
  static std::optional<WeighedChoice> choice_of(const DumpFile& dump, const StageStep& stage,
                                                const std::string& tap);

 private:
  void explain_values(const Counterpart& counterpart, ExplainedTap& tap) const;
  /// For as_rule(): row_l2 and row_max of all that the counterpart is made of. Empty: not known.
  std::optional<TapBound> bound_of(const Counterpart& counterpart) const;
  void explain_ids(const IntegerTensor& trusted_ids, ExplainedTap& tap) const;
  std::vector<RowLayout> candidates(const TapTensors& tensors, const ExplainedTap& tap) const;
  std::vector<RowLayout> sampled_ways(const TapTensors& tensors, const ColumnLayout& columns,
                                      const ExplainedTap& tap) const;

  const DumpFile& dump_;
  const DumpDiffOptions& options_;
  const StageStep& stage_;
  const std::vector<CleanLayout>& layouts_;
  const ModelConfig* config_;
  const TapErrorModel* errors_;
  const bool keeps_values_;
  const std::set<std::string> names_;
};

/// Where a rank's annotation is none of the ways that its values allow: a producer that believes
/// something else than it holds, which is a fault of the layout. It may number the tokens of each
/// dp rank from zero without naming the rank.
void contradict_annotation(const StageStep& stage, ExplainedTap& tap);

// dump_diff_errors.cpp

/// The type of a stage's values where that, or the trusted one, is narrower than float32.
std::optional<DType> narrow_type(const StageStep& stage, DType trusted);

/// Which taps the error model decides.
enum class JudgedTaps {
  all,
  failing,  // and of those only who is right: fixed limits hold, or the error model does
};

struct JudgedStep {
  std::string ties = {};  // of choices, in words; empty: none
  /// By place: what the dump itself has where that is right, and what is trusted behind its
  /// choices. What an engine calls otherwise is held to these.
  std::map<std::string, Matrix<double>> values;
};

/// Holds the taps of dp rank `dp` that the trusted side has by the same name to the error model,
/// put together as `nearest` has them (null, or not so: as they are nearest to what is trusted),
/// whatever limit placed the rows.
JudgedStep judge_by_errors(const GoldenCase& golden, const TapErrorModel& errors, std::int64_t dp,
                           const CleanLayout* nearest, JudgedTaps which,
                           std::vector<ExplainedTap>& taps);

/// A trusted step with judged values in place of its own. [rows, columns] by place.
class JudgedTrustedStep final : public TrustedStep {
 public:
  JudgedTrustedStep(std::shared_ptr<const TrustedStep> base,
                    std::map<std::string, Matrix<double>> values);

  const std::string& name() const override { return base_->name(); }
  const std::set<std::string, InProgramOrder>& taps() const override { return base_->taps(); }
  std::vector<HostTensor> ways(const std::string& tap) const override;
  IntegerTensor ids(const std::string& tap) const override { return base_->ids(tap); }
  const GoldenInputs* inputs() const override { return base_->inputs(); }

 private:
  std::shared_ptr<const TrustedStep> base_;
  std::map<std::string, Matrix<double>> values_;
};

// dump_diff_layouts.cpp

/// The protocol's views of a tap on its ranks; empty where the program does not name it.
std::vector<TokenView> required_views(const CleanLayout& layout, const ExplainedTap& tap);

/// True where each rank holds what it is to hold; of a sampled tap the same rows as the others.
bool same_layout(const std::string& tap, const std::vector<TokenView>& a,
                 const std::vector<TokenView>& b);

/// A sum that an engine has done inside the module, where the protocol does it behind it: all ranks
/// have the complete value of the rows of which summands are due.
bool is_summed_already(const std::vector<TokenView>& held, const std::vector<TokenView>& required);

/// The layout that most taps agree with, and how many: "D (112 of 112 taps)". Null: there is none.
const CleanLayout* nearest_layout(const std::vector<CleanLayout>& layouts,
                                  const std::vector<ExplainedTap>& taps, std::string& in_words);

/// Chooses among the ways of holding each tap, in program order, and finds where pads are not zero
/// and where the layout leaves that of `nearest` (null: not known). Such a layout is a fault where
/// it leads to wrong values, where the pass ends on it, or where the run stopped after it;
/// otherwise the answer is a note.
std::string judge_layouts(std::vector<ExplainedTap>& taps, const CleanLayout* nearest,
                          bool stopped);

// dump_diff_faults.cpp

/// Where else rows may come from: all stages of the step, and those of other steps.
struct OtherRows {
  std::vector<const StageStep*> ranks;        // of this step and pipeline stage, every dp
  std::vector<const StageStep*> other_steps;  // of this dp and stage
};

/// Says of a tap whose values fit in no way what its rows are, and what that is called. `judged`:
/// the stage with what is trusted given the dump's own values and choices, where these are right.
void name_fault(const DumpFile& dump, const TrustedSide& side, const StageStep& stage,
                const StageStep& judged, const OtherRows& others,
                const std::vector<TokenView>& required, ExplainedTap& tap);

}  // namespace tokenview
