// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "verify/error_model.hpp"
#include "verify/given_run.hpp"

namespace tokenview {

/// Which sequence a row of a place is of: "context/...", "target/...", "step0/..." have the rows of
/// all sequences, later draft steps one row of each that has any.
struct SequenceRows {
  explicit SequenceRows(const LoadedGolden::Case& of);
  std::int64_t sequence_of(const std::string& place, std::int64_t row) const;

  std::vector<std::int64_t> of_row, of_context_row;
  std::vector<std::int64_t> drafting;  // the sequences that have rows
  std::vector<std::int64_t> sampled;   // the row at which each of them samples
};

/// "target/model.layers.0.mlp.gate.ids" -> "target/model.layers.0.mlp.gate.logits"
std::string logits_of(const std::string& ids_place);
bool holds_experts(const std::string& place);

/// Near-ties of experts whose choice nobody recorded, those of the context above all: the golden
/// may have been made with one choice, and the judged run with the other.
class HiddenChoices {
 public:
  /// `ids` are the golden's experts, and float64's in the context; `is_known` says for which rows
  /// the judged run kept its own, and `known` the taps that own errors start from. All outlive
  /// this.
  HiddenChoices(const GoldenCase& golden, const TapErrorModel& model, const IdsByPlace& ids,
                const std::function<bool(const std::string& place, std::int64_t row)>& is_known,
                const std::set<std::string>& known);

  bool any() const { return most_ > 0; }

  /// What is left of a row's error when the changes that the near-ties of its sequence would make
  /// are fitted to it (least squares: each may have come about, or not, or in the golden instead),
  /// and less by how much their changes, all at once, are other than the sum. The error itself
  /// where it is larger than `allowed` and all changes together. With `own`, the changes are those
  /// of the tap's own operations.
  Eigen::RowVectorXd unexplained(const std::string& place, std::int64_t row,
                                 const Eigen::RowVectorXd& error, double allowed, bool own);

 private:
  struct NearTie {
    std::string place;
    std::int64_t row, taken, next;
    bool is_first;  // of its token's
  };
  /// What near-ties change of a tap if they are broken the other way.
  struct Effect {
    std::vector<Matrix<double>> of_each;  // the i-th of every sequence
    Matrix<double> together;              // the first of every token
  };
  using Effects = std::map<std::string, Effect>;  // by place

  void add_near_ties(const std::string& place, const Matrix<double>& logits,
                     const Matrix<std::int64_t>& ids, double relative_error,
                     const std::function<bool(const std::string&, std::int64_t)>& is_known);
  const Effects& effects(bool own);

  const TapErrorModel& model_;
  const IdsByPlace& ids_;
  const std::set<std::string>& known_;
  SequenceRows rows_;
  ParallelRun run_;
  LoadedWeights<EigenOps<double>> weights_;
  std::vector<std::vector<NearTie>> ties_;  // of each sequence
  std::size_t most_ = 0;                    // of a sequence
  std::optional<Effects> total_, own_;
};

}  // namespace tokenview
