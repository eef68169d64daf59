// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_bf16.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "device/assert_record.hpp"
#include "device/device_matrix.hpp"
#include "reference/program/host_rows.hpp"
#include "reference/program/operations.hpp"
#include "reference/program/rounding.hpp"

namespace tokenview {

class CudaContext;

/// The arithmetic of the model on one GPU. Values are of type T in memory: float, rounded nowhere,
/// or __nv_bfloat16 with the rounding points of hf or vllm (EigenOps states them); kernels compute
/// in fp32 for either. In fp32 throughout are the recurrent state of Gated DeltaNet, its gates and
/// the weights of the routing.
///
/// All work is queued on one stream, and memory comes from one pool. The host waits only where it
/// needs a result: argmax(), rows_for(), download(). What a kernel finds wrong, and a device-side
/// assert above all, is therefore reported there. Copies share the GPU; not for several threads.
///
/// Throws ShapeError for operands that do not fit and DeviceError for what CUDA or cuBLAS refuse.
template <class T>
class CudaOps : public HostRows {
 public:
  using Tensor = DeviceMatrix<T>;
  using HostRows::extent, HostRows::pad_rows, HostRows::slice, HostRows::take_rows;  // of a mask

  struct Weight {
    Tensor values;           // [count * out, in], a vector [n, 1], a kernel [channels, kernel]
    std::int64_t count = 1;  // matrices, one a expert
    std::int64_t out() const { return values.rows() / count; }
    std::int64_t in() const { return values.cols(); }
  };

  struct Routing {
    DeviceMatrix<float> weights;     // [T, k]
    DeviceMatrix<std::int64_t> ids;  // [T, k]
  };

  /// Rotated keys and values in a pool of blocks of 16 positions. Position j of a slot is row j %
  /// 16 of its block j / 16. A slot keeps its blocks; a pool that is full doubles. Written in
  /// place: not copied. Source: vllm's block tables and slot mapping.
  struct KvCache {
    explicit KvCache(std::int64_t features) : width(features) {}
    KvCache(KvCache&&) = default;
    KvCache& operator=(KvCache&&) = default;

    std::int64_t width;            // kv_heads * head_dim
    Tensor keys, values;           // [blocks * 16, width]
    std::int64_t used_blocks = 0;  // the first ones of the pool
    struct Slot {
      std::vector<std::int32_t> blocks;
      std::int64_t length = 0;  // positions written
    };
    std::vector<Slot> slots;
  };

  /// Convolution rows and recurrent state, each in a pool with a row a slot; a pool that is full
  /// doubles. Written in place: not copied.
  struct GdnState {
    GdnState(const GdnShape& heads, std::int64_t conv_kernel) : shape(heads), kernel(conv_kernel) {}
    GdnState(GdnState&&) = default;
    GdnState& operator=(GdnState&&) = default;

    GdnShape shape;
    std::int64_t kernel;
    std::int64_t conv_size() const { return (kernel - 1) * shape.conv_dim(); }
    std::int64_t recurrent_size() const { return shape.value_dim() * shape.key_head_dim; }
    Tensor conv;                    // [slots, conv_size] the last inputs, oldest first
    DeviceMatrix<float> recurrent;  // [slots, recurrent_size] [value_heads, key, value_head_dim]
    struct Slot {
      bool has_conv = false, has_recurrent = false;  // written
      // After each row of the last pass, where the batch asked to keep them: [rows, size].
      Tensor conv_after_row;
      DeviceMatrix<float> recurrent_after_row;
    };
    std::vector<Slot> slots;
  };

  /// On GPU `device` of this machine. `rounding` is none for float, hf or vllm for bfloat16;
  /// vllm's prefill is chunked whatever `gdn_form` says.
  explicit CudaOps(int device = 0,
                   Rounding rounding = std::is_same_v<T, float> ? Rounding::none : Rounding::hf,
                   GdnForm gdn_form = GdnForm::recurrent);

  /// The same GPU, stream and memory in the name of a virtual rank: an assert names it.
  CudaOps of_rank(std::int64_t rank) const {
    CudaOps ops = *this;
    ops.rank_ = rank;
    return ops;
  }

  Rounding rounding() const { return rounding_; }
  /// Its GPU, stream and pool.
  CudaContext& context() const { return *gpu_; }

  /// What the first device-side assert on this GPU noted; nothing: there was none. Of this
  /// process's copies of this object, whatever their rank.
  std::optional<AssertRecord> assert_record() const;
  /// Waits for all work, and names the error that has ended the context: "cudaErrorAssert"; empty:
  /// none has.
  std::string error() const;

  // To the GPU, rounded to T, and back, which waits for it.
  Tensor upload(std::span<const float> values, std::int64_t rows, std::int64_t cols) const;
  Routing upload(std::span<const float> weights, std::span<const std::int64_t> ids,
                 std::int64_t rows, std::int64_t cols) const;
  std::vector<float> download(const DeviceMatrix<float>& x) const;
  std::vector<float> download(const DeviceMatrix<__nv_bfloat16>& x) const;
  std::vector<std::int64_t> download(const DeviceMatrix<std::int64_t>& x) const;

  // Weights, ids and caches.
  Weight load(const WeightSource& source, const WeightBlock& block) const;
  KvCache kv_cache(const AttentionShape& heads) const;
  GdnState gdn_state(const GdnShape& shape, std::int64_t kernel) const;
  /// Makes room for `blocks` blocks, or slots, so that pools do not grow during captured steps.
  void reserve(KvCache& cache, std::int64_t blocks) const;
  void reserve(GdnState& state, std::int64_t slots) const;
  /// After a pass with keep_states: makes the state after the first `rows` rows the slot's state.
  void commit_accepted(GdnState& state, std::int32_t slot, std::int64_t rows) const;

  // Row-local.
  Tensor embed(const Ids& ids, const Weight& table, std::int64_t first_row) const;
  Tensor linear(const Tensor& x, const Weight& w) const;
  Tensor add(const Tensor& x, const Tensor& y) const;
  Tensor rms_norm(const Tensor& x, const Weight& w, double eps) const;
  /// { add(x, y), rms_norm(add(x, y), w, eps) } in one pass.
  std::pair<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& y, const Weight& w,
                                         double eps) const;
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
  std::pair<DeviceMatrix<float>, DeviceMatrix<float>> delta_gates(const Tensor& b, const Tensor& a,
                                                                  const Weight& A_log,
                                                                  const Weight& dt_bias) const;
  Tensor gated_delta_rule(const Tensor& qkv, const DeviceMatrix<float>& beta,
                          const DeviceMatrix<float>& g, const GdnShape& shape, GdnState& state,
                          const Batch& batch) const;

  // Experts.
  Routing route(const Tensor& logits, std::int64_t k, bool renormalise) const;
  Tensor experts(const Tensor& x, const Routing& routing, const Weight& gate_up, const Weight& down,
                 std::int64_t first_expert) const;

  // Pads.
  Tensor pad_rows(const Tensor& x, std::int64_t count) const;
  Routing pad_rows(const Routing& x, std::int64_t count) const;
  /// Rows of `routing` that the mask marks get the expert -1, with weight 0.
  Routing skip_pads(const Routing& routing, const Mask& mask, bool has_a_row_for_each) const;
  Tensor blank(std::int64_t rows, std::int64_t cols) const;  // zeros
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

  // Flat slices of a pipeline's hand-over.
  Tensor flat_slice(const Tensor& x, std::int64_t part, std::int64_t parts) const;
  bool is_flat(const Tensor& x, std::int64_t width) const { return x.cols() == 1 && width != 1; }
  Tensor unflatten(const Tensor& flat, std::int64_t width) const;

  // Rows by index, and the greedy token of each row (equal logits: the lowest id).
  /// An index out of range is a device-side assert, which ends the CUDA context.
  Tensor index_rows(const Tensor& x, const std::vector<std::int64_t>& rows) const;
  Tensor index_rows(const Tensor& x, const std::vector<std::int64_t>& rows,
                    const std::vector<std::int64_t>&) const {
    return index_rows(x, rows);
  }
  Tensor first_rows(const Tensor& x, std::int64_t count, bool by_pointer) const;
  Ids argmax(const Tensor& logits) const;

  // The algebra of collectives. Equal results of several ranks share one memory.
  std::int64_t extent(const Tensor& x, Axis axis) const {
    return axis == Axis::rows ? x.rows() : x.cols();
  }
  std::int64_t extent(const Routing& x, Axis axis) const {
    return axis == Axis::rows ? x.ids.rows() : x.ids.cols();
  }
  ElementType element_type(const Tensor&) const {
    if constexpr (std::is_same_v<T, float>) return {"float32", 4};
    return {"bfloat16", 2};
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
  Tensor matrix(std::int64_t rows, std::int64_t cols) const;  // uninitialised

  std::shared_ptr<CudaContext> gpu_;
  Rounding rounding_;
  GdnForm gdn_form_;
  std::int64_t rank_ = 0;  // that asserts name
};

extern template class CudaOps<float>;
extern template class CudaOps<__nv_bfloat16>;

}  // namespace tokenview
