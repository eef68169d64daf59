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

/// The batch without the rows of rejected drafts, and which rows are kept.
/// Source: vllm llm_base_proposer.py, disable_padded_drafter_batch.
Batch accepted_rows(const Batch& batch, const std::vector<std::int32_t>& rejected,
                    std::vector<std::int64_t>& kept);

/// Rows up to `rows` of which no sequence knows: what a runner appends.
void append_runner_pads(Batch& batch, std::int64_t rows);

/// How a step drafts.
struct DraftOptions {
  std::size_t num_steps = 0;
  bool padded = true;  // rejected rows stay in the first pass; false: they are left out
  RunnerVersion runner = RunnerVersion::V1;
  bool all_logits = false;  // logits of every row of the first pass, for an observer
};

/// Drafts tokens for each request, greedily. `batch` is the target's pass, `hidden` [T, H] its
/// output after the final norm, `next` the token that each request of `sampled` got from it.
/// Returns the draft ids of each step, one a request of `sampled`.
///
/// First pass: the target's rows with the ids shifted left by one inside each request, positions
/// unchanged, rejected rows among them or left out. Later passes: one row a request, fed the draft
/// and the hidden state of the pass before, padded to what the ranks agreed on. The first pass is
/// indexed at each request's last accepted row; later ones are cut to the requests.
/// Source: vllm llm_base_proposer.py (propose), spec_decode/utils.py, gpu/spec_decode.
template <class R>
std::vector<typename R::Ops::Ids> draft(
    R& rank, const Protocol<R>& protocol, const ModelWeights<typename R::Weight>& w,
    const ModelConfig& config, const RankShapes& shapes, ModelState<typename R::Ops>& state,
    const Batch& batch, const typename R::Tensor& hidden, const SampleRows& sampled,
    const typename R::Ops::Ids& next, const DraftOptions& options,
    const std::vector<std::int32_t>& rejected = {}, DraftObserver<R>* observer = nullptr) {
  using T = typename R::Tensor;
  using Ids = typename R::Ops::Ids;
  const auto& ops = rank.ops;
  std::vector<Ids> drafts;
  if (options.num_steps == 0) return drafts;

  Batch pass = batch;
  SampleRows at = sampled;
  Ids ids = ops.ids(batch);
  T fed = rank.named("draft_buffer", hidden);
  const auto agreed_rows = [&](std::int64_t least) {  // of the pass, with what a runner pads
    return pass.tokens_across_dp.empty()
               ? least
               : std::max(least, pass.tokens_across_dp[std::size_t(rank.dp.rank())]);
  };
  if (!options.padded) {
    std::vector<std::int64_t> kept;
    pass = accepted_rows(batch, rejected, kept);
    at = sample_rows(pass);
    const auto accepted = std::int64_t(kept.size());
    const std::int64_t rows = agreed_rows(accepted);
    append_runner_pads(pass, rows);
    ids = ops.pad_ids(ops.select(ids, kept), rows - accepted);
    fed = ops.into_buffer(ops.index_rows(fed, kept, kept), rows);
  }
  ids = rank.named("draft_ids", ops.next_ids(ids, pass, at.rows, next));
  const auto requests = std::int64_t(at.rows.size());
  for (std::size_t step = 0; step < options.num_steps; ++step) {
    if (rank.faults != nullptr) rank.faults->enter_draft(std::int64_t(step), pass.num_tokens());
    if (observer != nullptr) observer->before_step(step, ids, pass);
    const bool feeds_normed = rank.gate("feeds_normed_hidden", true);
    T unnormed;
    const T out = mtp_forward(rank, protocol, w, config, shapes, state, pass, ids, fed,
                              feeds_normed ? nullptr : &unnormed);
    const auto of_requests = [&](const T& x) {  // [requests, H]
      if (step > 0) return ops.first_rows(x, requests, options.runner == RunnerVersion::V2);
      const bool skips = rank.gate("skips_rejected", true);
      std::vector<std::int64_t> due;  // tokens, which the rows of an unpadded pass are not
      for (const std::int64_t row : at.rows)
        due.push_back(pass.row_tokens.empty() ? row : pass.row_tokens[std::size_t(row)]);
      return ops.index_rows(x, skips ? at.rows : sample_rows(pass).rows, due);
    };
    const T last = of_requests(out);
    const T logits = compute_logits(rank, w, config, last);
    if (observer != nullptr)
      observer->after_step(
          step, step == 0 && options.all_logits ? compute_logits(rank, w, config, out) : logits);
    drafts.push_back(ops.argmax(logits));
    if (step + 1 == options.num_steps) break;
    const T carried = feeds_normed ? last : of_requests(unnormed);

    pass = step == 0
               ? next_draft_batch(pass, at, options.padded ? rejected : std::vector<std::int32_t>())
               : next_draft_batch(pass, sample_rows(pass));
    const std::int64_t rows = agreed_rows(requests);
    append_runner_pads(pass, rows);
    ids = ops.pad_ids(drafts.back(), rows - requests);
    fed = ops.into_buffer(carried, rows);
  }
  return drafts;
}

}  // namespace tokenview
