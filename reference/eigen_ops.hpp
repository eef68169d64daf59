// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <utility>
#include <vector>

#include "reference/gemm.hpp"
#include "reference/matrix.hpp"
#include "reference/program/host_rows.hpp"
#include "reference/program/operations.hpp"
#include "reference/program/random_rounding.hpp"
#include "reference/program/rounding.hpp"

namespace tokenview {

/// The reference arithmetic on row-major matrices in fp32 or fp64. With `rounding` it computes a
/// bfloat16 model: values are rounded where the named implementation rounds, sums stay in fp32.
/// With a random rounding the same places round as that says, to its type.
///
/// Every result row depends on its own row (and its sequence's past) alone, to the bit: not on the
/// number of rows, its place among them, threads, or the split of output columns over ranks.
template <class S>
class EigenOps : public HostRows {
 public:
  using Tensor = Matrix<S>;
  using HostRows::extent, HostRows::pad_rows, HostRows::slice, HostRows::take_rows;  // of a mask

  /// A matrix (or one a expert) ready for gemm(), or a vector or convolution kernel as it is.
  struct Weight {
    PackedMatrix<S> packed;
    Matrix<S> plain;  // [n, 1], or [channels, kernel]
  };

  struct Routing {
    using Ids = Matrix<std::int64_t>;
    Tensor weights;  // [T, k]
    Ids ids;         // [T, k]
  };

  /// Rotated keys and values of each slot, one row a position of its sequence.
  struct KvCache {
    std::int64_t width;  // kv_heads * head_dim
    struct Slot {
      std::vector<S> keys, values;  // [positions, width]
    };
    std::vector<Slot> slots;
  };

  /// Convolution rows and recurrent state of each slot.
  struct GdnState {
    GdnShape shape;
    std::int64_t kernel;
    struct Column {
      Matrix<S> conv;            // [kernel - 1, conv_dim] the last inputs, oldest first
      std::vector<S> recurrent;  // [value_heads, key_head_dim, value_head_dim]
    };
    struct Slot {
      Column now;
      std::vector<Column> after_row;  // of the last pass, where the batch asked to keep them
    };
    std::vector<Slot> slots;
  };

  explicit EigenOps(int num_threads = 1, Rounding rounding = Rounding::none,
                    GdnForm gdn_form = GdnForm::recurrent,
                    std::optional<RandomRounding> random = {})
      : num_threads_(num_threads), rounding_(rounding), gdn_form_(gdn_form), random_(random) {}

  Rounding rounding() const { return rounding_; }
  GdnForm gdn_form() const { return gdn_form_; }

  // Weights, ids and caches.
  Weight load(const WeightSource& source, const WeightBlock& block) const;
  KvCache kv_cache(const AttentionShape& heads) const {
    return {heads.num_kv_heads * heads.head_dim, {}};
  }
  GdnState gdn_state(const GdnShape& shape, std::int64_t kernel) const {
    return {shape, kernel, {}};
  }
  /// After a pass with keep_states: makes the state after the first `rows` rows the slot's state.
  /// Source: vllm gdn_attn.py, num_accepted_tokens.
  void commit_accepted(GdnState& state, std::int32_t slot, std::int64_t rows) const;

  // Row-local.
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

  // Over the rows of a sequence and its past.
  Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionShape& heads,
                   KvCache& cache, const Batch& batch) const;
  Tensor causal_conv(const Tensor& x, const Weight& w, GdnState& state, const Batch& batch) const;
  std::pair<Tensor, Tensor> delta_gates(const Tensor& b, const Tensor& a, const Weight& A_log,
                                        const Weight& dt_bias) const;
  Tensor gated_delta_rule(const Tensor& qkv, const Tensor& beta, const Tensor& g,
                          const GdnShape& shape, GdnState& state, const Batch& batch) const;

  // Experts.
  Routing route(const Tensor& logits, std::int64_t k, bool renormalise) const;
  /// The weights that route() would give the experts `ids` [T, k].
  Tensor routing_weights(const Tensor& logits, const typename Routing::Ids& ids,
                         bool renormalise) const;
  Tensor experts(const Tensor& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                 std::int64_t first_expert) const;

  // Pads.
  Tensor pad_rows(const Tensor& x, std::int64_t count) const;
  Routing pad_rows(const Routing& x, std::int64_t count) const;
  /// Rows of `routing` that the mask marks get the expert -1, with weight 0.
  Routing skip_pads(Routing routing, const Mask& mask, bool has_a_row_for_each) const;
  Tensor blank(std::int64_t rows, std::int64_t cols) const { return Tensor::Zero(rows, cols); }
  Tensor into_buffer(const Tensor& x, std::int64_t rows) const {
    return rows > x.rows() ? pad_rows(x, rows - x.rows()) : x;
  }
  Tensor trim(const Tensor& x, std::int64_t rows) const { return slice(x, Axis::rows, 0, rows); }

  // What numbers cannot tell.
  void require_full(const Tensor&, const Batch&, const char*) const {}
  void require_capacity(const Routing&, std::int64_t) const {}
  void count_load(const Routing&, std::int64_t) const {}

  // Rows for the ranks that hold experts, and back.
  std::vector<std::int64_t> rows_for(const Routing& routing, const Range& experts) const;
  Tensor take_rows(const Tensor& x, const std::vector<std::int64_t>& rows) const;
  Routing take_rows(const Routing& x, const std::vector<std::int64_t>& rows) const;
  Tensor add_rows(const Tensor& x, const std::vector<std::int64_t>& rows, std::int64_t count) const;

  // What injected faults do to rows and values: from `begin` on other content, `factor` times the
  // value.
  Tensor fill_rows(Tensor x, std::int64_t begin, const std::string& content) const;
  Tensor scaled(const Tensor& x, double factor) const { return x * S(factor); }
  Tensor blended(const Tensor& x) const;  // every row with the next one
  Routing with_experts(Routing routing, const std::vector<std::int64_t>& experts) const;

  // Flat slices of a pipeline's hand-over: [elements, 1], which no rows of a model are.
  Tensor flat_slice(const Tensor& x, std::int64_t part, std::int64_t parts) const;
  bool is_flat(const Tensor& x, std::int64_t width) const { return x.cols() == 1 && width != 1; }
  Tensor unflatten(const Tensor& flat, std::int64_t width) const;

  // Rows by index, and the greedy token of each row (equal logits: the lowest id).
  Tensor index_rows(const Tensor& x, const std::vector<std::int64_t>& rows) const;
  Tensor index_rows(const Tensor& x, const std::vector<std::int64_t>& rows,
                    const std::vector<std::int64_t>&) const {
    return index_rows(x, rows);
  }
  Tensor first_rows(const Tensor& x, std::int64_t count, bool by_pointer) const;
  Ids argmax(const Tensor& logits) const;

  // The algebra of collectives.
  std::int64_t extent(const Tensor& x, Axis axis) const {
    return axis == Axis::rows ? x.rows() : x.cols();
  }
  std::int64_t extent(const Routing& x, Axis axis) const { return extent(x.weights, axis); }
  ElementType element_type(const Tensor&) const {
    if constexpr (std::is_same_v<S, double>) return {"float64", 8};
    return rounding_ == Rounding::none ? ElementType{"float32", 4} : ElementType{"bfloat16", 2};
  }
  ElementType element_type(const Routing&) const {
    return {"routing", 8};  // an int32 and a float32, as engines send them
  }
  Tensor slice(const Tensor& x, Axis axis, std::int64_t begin, std::int64_t end) const;
  Tensor concat(std::span<const Tensor* const> parts, Axis axis) const;
  void concat(std::span<const Tensor* const> parts, Axis axis,
              std::span<Tensor* const> results) const;
  /// A bfloat16 sum is rounded after every addition, as on a ring.
  Tensor sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin,
             std::int64_t end) const;
  void sum(std::span<const Tensor* const> parts, Axis axis, std::int64_t begin, std::int64_t end,
           std::span<Tensor* const> results) const;
  Routing slice(const Routing& x, Axis axis, std::int64_t begin, std::int64_t end) const;
  Routing concat(std::span<const Routing* const> parts, Axis axis) const;

 private:
  S rounded(S value) const {
    if constexpr (std::is_same_v<S, float>)
      if (rounding_ != Rounding::none) return random_ ? (*random_)(value) : round_to_bf16(value);
    return value;
  }
  S rounded_by(Rounding implementation, S value) const {
    return rounding_ == implementation ? rounded(value) : value;
  }
  void round_in_place(Tensor& x) const {
    if (rounding_ == Rounding::none) return;
    for (Eigen::Index i = 0; i < x.size(); ++i) x.data()[i] = rounded(x.data()[i]);
  }
  /// Threads for `work` scalar operations of the kind that row-local operations do.
  int threads_for(std::int64_t work) const { return work < 100'000 ? 1 : num_threads_; }

  int num_threads_;
  Rounding rounding_;
  GdnForm gdn_form_;
  std::optional<RandomRounding> random_;
};

extern template class EigenOps<float>;
extern template class EigenOps<double>;

}  // namespace tokenview
