// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "reference/program/operations.hpp"
#include "verify/finding.hpp"
#include "verify/token_view.hpp"

namespace tokenview {

/// The arithmetic that computes nothing: each operation states what it requires of its operands'
/// token views and what its result stands for. A violated requirement is a finding; the operation
/// then gives the view that the hardware would give, and the run goes on, so that one run lists all
/// findings and the first is the cause.
///
/// What every operation requires, unless it says otherwise: operands of the same rows and columns,
/// complete. Linear operations keep a partial sum; others (norms, activations, attention, routing)
/// refuse it.
class ViewOps {
 public:
  /// A view and the number of columns that this rank holds.
  struct Tensor : TokenView {
    std::int64_t width = 0;
    std::int32_t origin =
        -1;               // in the origins of the run; -1: its rows are full, or always were so
    bool normed = false;  // an RMS norm made it
    std::int16_t flat_part = 0;   // of a flat slice: part flat_part of flat_parts of all elements
    std::int16_t flat_parts = 0;  // 0: rows as they are
    // Of blocks of rows from the ranks of an all-to-all, where they differ.
    std::shared_ptr<const std::vector<Completeness>> sums;
  };
  /// For each row the token, or PAD, that the mask says it is.
  struct Mask {
    Rows rows;
  };
  struct Ids {
    Rows rows;
  };
  /// Which part of the weight this rank holds along its outputs, inputs, or experts.
  struct Weight {
    std::int64_t out = 0, in = 0;  // this rank's extents
    ColumnBlock out_block, in_block;
    std::int64_t expert_part = 0, expert_parts = 1;
  };
  /// Rows whose experts are known or not; a pad has experts too, unless a mask skipped it.
  struct Routing {
    Rows rows;
    std::int64_t experts_per_token = 0;
    std::vector<std::int64_t> given;  // experts of row i: given[i % size]; empty: not known, so all
    bool pads_are_garbage = false;    // expert ids of pads were never written
  };
  struct KvCache {
    std::vector<Rows> slots;  // what was written at each position
  };
  struct GdnState {
    std::vector<Rows> slots;                   // what went into the state
    std::vector<std::vector<Rows>> after_row;  // of the last pass, where the batch asked to keep it
  };

  /// Findings go to `findings`, in program order of this rank. `origins` is shared by all ranks of
  /// a run: what took rows away from full, which tensors carry from rank to rank; null: not noted,
  /// which is faster.
  /// No more than `most` findings are noted.
  ViewOps(const RankCoordinates& at, std::vector<Finding>& findings,
          std::vector<std::string>* origins, std::int32_t step = 0, std::size_t most = 100'000)
      : at_(at), findings_(&findings), origins_(origins), most_(most), step_(step) {}

  void locate(const ModulePath& module) const { module_ = &module; }
  /// For a communicator that makes a result once for several ranks: what this rank has noted so
  /// far, whether it has noted more since, and the operations that another rank did in its place.
  struct Mark {
    std::size_t findings;
    std::int64_t order;
  };
  Mark mark() const { return {findings_->size(), order_}; }
  bool is_quiet_since(const Mark& before) const {
    return findings_->size() == before.findings && !is_full();
  }
  void follow(const ViewOps& other, const Mark& before) const {
    order_ += other.order_ - before.order;
  }

  /// Told by a communicator of each result that it made.
  void made_by(Tensor& x, const char* op, const std::string& group) const;
  void made_by(Routing&, const char*, const std::string&) const {}
  std::int32_t step() const { return step_; }
  /// Rows from here on are those of engine step `step`.
  void enter_step(std::int32_t step) const { step_ = step; }

  Weight load(const WeightSource& source, const WeightBlock& block) const;
  Ids ids(const Batch& batch) const { return {expected(batch)}; }
  KvCache kv_cache(const AttentionShape&) const { return {}; }
  GdnState gdn_state(const GdnShape&, std::int64_t) const { return {}; }
  void commit_accepted(GdnState& state, std::int32_t slot, std::int64_t rows) const;

  Tensor embed(const Ids& ids, const Weight& table, std::int64_t first_row) const;
  Tensor linear(const Tensor& x, const Weight& w) const;
  Tensor add(const Tensor& x, const Tensor& y) const;
  Tensor rms_norm(const Tensor& x, const Weight& w, double eps) const;
  Tensor head_rms_norm(const Tensor& x, const Weight& w, double eps) const;
  Tensor silu_mul(const Tensor& gate, const Tensor& up) const;
  Tensor sigmoid_mul(const Tensor& x, const Tensor& gate) const;
  Tensor sigmoid_scale(const Tensor& x, const Tensor& gate) const;
  Tensor concat_features(const Tensor& x, const Tensor& y) const;
  std::pair<Tensor, Tensor> split_query_gate(const Tensor& x, std::int64_t head_dim) const;
  std::pair<Tensor, Tensor> split_qkvz(const Tensor& x, const GdnShape& shape) const;
  std::pair<Tensor, Tensor> split_ba(const Tensor& x, const GdnShape& shape) const;
  Tensor rope(const Tensor& x, const Batch& batch, const RopeShape& shape) const;
  Tensor gated_rms_norm(const Tensor& x, const Tensor& z, const Weight& w, double eps) const;

  /// Full rows of the batch; the rows are written to the cache, and what the cache holds of the
  /// sequences' past must be tokens.
  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& heads,
                   KvCache& cache, const Batch& batch) const;
  Tensor causal_conv(const Tensor& x, const Weight& w, GdnState& state, const Batch& batch) const;
  std::pair<Tensor, Tensor> delta_gates(const Tensor& b, const Tensor& a, const Weight& A_log,
                                        const Weight& dt_bias) const;
  Tensor gated_delta_rule(const Tensor& qkv, const Tensor& beta, const Tensor& g,
                          const GdnShape& shape, GdnState& state, const Batch& batch) const;

  Routing route(const Tensor& logits, std::int64_t k, bool renormalise) const;
  Tensor experts(const Tensor& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                 std::int64_t first_expert) const;

  Tensor pad_rows(const Tensor& x, std::int64_t count) const;
  Routing pad_rows(const Routing& x, std::int64_t count) const;
  Mask pad_rows(const Mask& x, std::int64_t count) const;
  Tensor blank(std::int64_t rows, std::int64_t cols) const;
  Tensor into_buffer(const Tensor& x, std::int64_t rows) const;
  Mask pad_mask(const Batch& batch) const { return {expected(batch)}; }
  /// A token that the mask marks loses its experts; with a row for each row, no pad may keep them.
  Routing skip_pads(const Routing& routing, const Mask& mask, bool has_a_row_for_each) const;
  /// Drops pads only, and needs `rows` rows.
  Tensor trim(const Tensor& x, std::int64_t rows) const;

  void require_full(const Tensor& x, const Batch& batch, const char* what) const;
  void require_ids(const Ids& ids, const Batch& batch, const char* what) const;
  /// The side data that a module sees is that of the step.
  void require_side(const Batch& of_step, const Batch& seen, const char* what) const;
  void require_capacity(const Routing& routing, std::int64_t pairs) const;
  void count_load(const Routing& routing, std::int64_t rows) const;

  std::vector<std::int64_t> rows_for(const Routing& routing, const Range& experts) const;
  Tensor take_rows(const Tensor& x, const std::vector<std::int64_t>& rows) const;
  Routing take_rows(const Routing& x, const std::vector<std::int64_t>& rows) const;
  Mask take_rows(const Mask& x, const std::vector<std::int64_t>& rows) const;
  Tensor add_rows(const Tensor& x, const std::vector<std::int64_t>& rows, std::int64_t count) const;

  /// What injected faults do: pads from `begin` on hold something else; all pads do; a multiple of
  /// the value; ids shifted inside each of `parts` shards.
  Tensor fill_rows(const Tensor& x, std::int64_t begin, const std::string& content) const;
  Tensor poison_pads(const Tensor& x, const std::string& content) const;
  Routing poison_pads(Routing x, const std::string& content) const;
  Tensor scaled(const Tensor& x, double factor) const;
  Ids rolled(const Ids& ids, std::int64_t parts) const;
  Tensor blended(const Tensor& x) const;  // every row with the next one
  Routing with_experts(Routing routing, const std::vector<std::int64_t>& experts) const;

  /// Flat slices of a pipeline's hand-over. Joined from tensors that differ, a row is a mixture.
  Tensor flat_slice(const Tensor& x, std::int64_t part, std::int64_t parts) const;
  bool is_flat(const Tensor& x, std::int64_t) const { return x.flat_parts > 0; }
  Tensor unflatten(const Tensor& flat, std::int64_t width) const;

  /// An index beyond the rows is a predicted device-side assert; a row that is not the token of the
  /// index that is due is a finding as well.
  Tensor index_rows(const Tensor& x, const std::vector<std::int64_t>& rows) const {
    return index_rows(x, rows, rows);
  }
  Tensor index_rows(const Tensor& x, const std::vector<std::int64_t>& rows,
                    const std::vector<std::int64_t>& due) const;
  /// A slice never asserts: too few rows are a shape error later, one row is broadcast, and a
  /// kernel that reads through a pointer reads outside.
  Tensor first_rows(const Tensor& x, std::int64_t count, bool by_pointer) const;
  Ids pad_ids(const Ids& ids, std::int64_t count) const;
  Ids argmax(const Tensor& logits) const;
  Ids select(const Ids& ids, const std::vector<std::int64_t>& rows) const;
  /// The rows of a batch, full and complete: a correct target's.
  Tensor rows_of(const Batch& batch, std::int64_t width) const;
  Ids next_ids(const Ids& ids, const Batch& batch, const std::vector<std::int64_t>& rows,
               const Ids& next) const;

  // The algebra of collectives.
  std::int64_t extent(const Tensor& x, Axis axis) const {
    if (x.flat_parts > 0) return axis == Axis::cols ? 1 : x.rows.size() * x.width / x.flat_parts;
    return axis == Axis::rows ? x.rows.size() : x.width;
  }
  std::int64_t extent(const Mask& x, Axis) const { return x.rows.size(); }
  std::int64_t extent(const Routing& x, Axis axis) const {
    return axis == Axis::rows ? x.rows.size() : x.experts_per_token;
  }
  ElementType element_type(const Tensor&) const { return {"view", 0}; }
  ElementType element_type(const Routing&) const { return {"routing", 0}; }
  Tensor slice(const Tensor& x, Axis axis, std::int64_t begin, std::int64_t end) const;
  Tensor concat(std::span<const Tensor* const> parts, Axis axis) const;
  Tensor sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
             std::int64_t end) const;
  Routing slice(const Routing& x, Axis axis, std::int64_t begin, std::int64_t end) const;
  Mask slice(const Mask& x, Axis, std::int64_t begin, std::int64_t end) const {
    return {x.rows.slice(begin, end)};
  }
  Routing concat(std::span<const Routing* const> parts, Axis axis) const;

  /// The rows that full means for this rank's batch: its tokens, then the runner's pads.
  const Rows& expected(const Batch& batch) const;

 private:
  void find(FindingKind kind, const char* operation, const char* tensor, std::string expected,
            std::string actual, std::int64_t first_bad_row = -1, std::int32_t origin = -1) const;
  /// A kernel refuses operands of different row counts.
  static void require_same_count(const char* operation, const Tensor& x, const Tensor& y);
  void require_complete(const char* operation, const char* tensor, const Tensor& x) const;
  void require_rows(const char* operation, const char* tensor, const Rows& expected,
                    const Rows& actual, std::int32_t origin = -1) const;
  /// Pads hold zeros or rows of an earlier step: garbage must not enter a sum, a router, a mixer.
  void require_clean_pads(const char* operation, const char* tensor, const Tensor& x) const;
  /// What a cache holds of a sequence is tokens, no pads and no mixtures.
  void require_tokens(const char* operation, const Rows& held, std::size_t sequence) const;
  /// Each token is among the rows once: a row that is there twice is routed twice.
  void require_once(const Rows& rows) const;
  Tensor joined_flat(std::span<const Tensor* const> parts) const;
  bool is_full() const { return findings_->size() >= most_; }
  void note_rows(Tensor& x, const char* what) const;
  std::string name(const TokenView& view) const { return to_string(view, step_); }

  RankCoordinates at_;
  std::vector<Finding>* findings_;
  std::vector<std::string>* origins_;
  std::size_t most_;
  mutable std::int32_t step_;
  mutable const ModulePath* module_ = nullptr;
  mutable std::int64_t order_ = 0;  // operations so far
  /// What expected() gave last, and for what: the operations of a pass ask for the same.
  struct Expected {
    std::int64_t num_tokens = -1, num_real = 0;
    std::int32_t step = 0;
    std::vector<std::int64_t> row_tokens;
    Rows rows;
  };
  mutable Expected last_expected_;
};

}  // namespace tokenview
