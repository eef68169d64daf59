// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/serial_model.hpp"
#include "verify/golden_file.hpp"

namespace tokenview {

/// What a golden case asks the model to do: the tokens processed before the step, and the step.
struct CaseBatches {
  Batch context;  // without rows for a prefill
  Batch step;
};
CaseBatches case_batches(const GoldenInputs& inputs);

/// Throws FileError for a weight that a model of this configuration does not have. (One that is
/// missing is named when it is read.)
void require_known_weights(const GoldenFile& golden, const ModelConfig& config);

/// Sees every tap of a case as the model makes it, in the order of the program.
template <class S>
class CaseObserver : public TapSink<EigenOps<S>>, public DraftObserver<SerialRank<S>> {
 public:
  /// The logits of every row of the step, the tap `lm_head`.
  virtual void lm_head(const Matrix<S>& logits) = 0;

  /// Who sees the taps of the context, which no golden file records.
  virtual TapSink<EigenOps<S>>* context_taps() { return nullptr; }
};

/// Runs the serial model on a case: the context (the MTP layer sees it too, each token
/// paired with the known next one), then the step, then `draft_steps` draft steps. The greedy token
/// of a sequence's last row follows the step. Returns draft ids [draft step][sequence]; a sequence
/// without rows in the step has -1.
template <class S>
std::vector<std::vector<std::int64_t>> run_case(const SerialModel<S>& model,
                                                const GoldenInputs& inputs,
                                                std::int64_t draft_steps,
                                                CaseObserver<S>& observer);

}  // namespace tokenview
