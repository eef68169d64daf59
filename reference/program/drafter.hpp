// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/mtp.hpp"

namespace tokenview {

/// Rows of a flat batch at which each request samples: its last row, less the rejected drafts.
/// Requests without rows in this pass sample nothing and are left out.
/// Source: vllm spec_decode/utils.py, padded drafter batch.
struct SampleRows {
  std::vector<std::int64_t> requests;  // which sequences of the batch
  std::vector<std::int64_t> rows;      // and the row of each
};
SampleRows sample_rows(const Batch& batch, const std::vector<std::int32_t>& rejected = {});

/// The batch of a draft step after the first: one row a request, at the position after `previous`.
Batch next_draft_batch(const Batch& previous, const SampleRows& sampled,
                       const std::vector<std::int32_t>& rejected = {});

/// Sees each draft pass: its ids, which it may replace, its positions and its logits. Taps of
/// modules go to the rank's sink.
template <class R>
class DraftObserver {
 public:
  virtual ~DraftObserver() = default;
  virtual void before_step(std::size_t step, typename R::Ops::Ids& ids, const Batch& batch) = 0;
  virtual void after_step(std::size_t step, const typename R::Tensor& logits) = 0;
};

/// Drafts `num_steps` tokens a request, greedily. `batch` is the target's pass, `hidden` [T, H] its
/// output after the final norm, `next` the token that each request of `sampled` got from it.
/// `all_logits` computes the logits of every row of the first pass instead of the sampled ones.
/// Returns the draft ids of each step, one a request of `sampled`.
///
/// First pass: the target's rows with the ids shifted left by one inside each request, positions
/// unchanged. Later passes: one row a request, fed the draft and the hidden state of the pass
/// before. Source: vllm llm_base_proposer.py (propose), spec_decode/utils.py.
template <class R>
std::vector<typename R::Ops::Ids> draft(R& rank, const Protocol<R>& protocol,
                                        const ModelWeights<typename R::Weight>& w,
                                        const ModelConfig& config, const RankShapes& shapes,
                                        ModelState<typename R::Ops>& state, const Batch& batch,
                                        const typename R::Tensor& hidden, const SampleRows& sampled,
                                        const typename R::Ops::Ids& next, std::size_t num_steps,
                                        const std::vector<std::int32_t>& rejected = {},
                                        bool all_logits = false,
                                        DraftObserver<R>* observer = nullptr) {
  using T = typename R::Tensor;
  using Ids = typename R::Ops::Ids;
  const auto& ops = rank.ops;
  std::vector<Ids> drafts;
  Batch pass = batch;
  Ids ids = ops.next_ids(ops.ids(batch), batch, sampled.rows, next);
  T fed = hidden;
  for (std::size_t step = 0; step < num_steps; ++step) {
    if (observer != nullptr) observer->before_step(step, ids, pass);
    const T out = mtp_forward(rank, protocol, w, config, shapes, state, pass, ids, fed);
    const T last = step == 0 ? ops.index_rows(out, sampled.rows) : out;  // [requests, H]
    T logits = compute_logits(rank, w, config, last);                    // [requests, V]
    if (observer != nullptr)
      observer->after_step(step,
                           step == 0 && all_logits ? compute_logits(rank, w, config, out) : logits);
    drafts.push_back(ops.argmax(logits));
    ids = drafts.back();
    fed = last;
    pass = step == 0 ? next_draft_batch(pass, sampled, rejected)
                     : next_draft_batch(pass, sample_rows(pass));
  }
  return drafts;
}

}  // namespace tokenview
