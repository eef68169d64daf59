// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <concepts>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "reference/program/batch.hpp"
#include "reference/program/module_path.hpp"
#include "reference/program/weight_block.hpp"

namespace tokenview {

/// The two axes of every activation: rows are tokens, cols are features.
enum class Axis { rows, cols };

/// The first row of a vocabulary block that is looked up without leaving out the ids of others.
inline constexpr std::int64_t unmasked_vocabulary = -1;

/// Attention heads of one rank.
struct AttentionShape {
  std::int64_t num_heads;     // query heads of this rank
  std::int64_t num_kv_heads;  // key/value heads of this rank
  std::int64_t head_dim;
};

/// Rotary embedding of the first `rotary_dim` features of each head.
struct RopeShape {
  std::int64_t head_dim;
  std::int64_t rotary_dim;
  double theta;
  std::vector<int> axis;  // [rotary_dim / 2] which row of M-RoPE positions turns frequency j
};

/// Gated DeltaNet heads of one rank; value head h * r + j belongs to key head h, r = value / key.
struct GdnShape {
  std::int64_t num_key_heads;
  std::int64_t num_value_heads;
  std::int64_t key_head_dim;
  std::int64_t value_head_dim;

  std::int64_t key_dim() const { return num_key_heads * key_head_dim; }
  std::int64_t value_dim() const { return num_value_heads * value_head_dim; }
  std::int64_t conv_dim() const { return 2 * key_dim() + value_dim(); }
  std::int64_t group() const { return num_value_heads / num_key_heads; }
};

/// How the delta rule is evaluated for sequences of more than one row; the two are the same
/// function.
enum class GdnForm {
  recurrent,  // token by token, model.md 4.5
  chunked,    // chunks of 64 tokens, model.md 4.6
};

/// What a tensor consists of, for messages and volumes.
struct ElementType {
  const char* name;    // "float32", ...
  std::int64_t bytes;  // on the wire; 0: stands for numbers of any type
};

/// How a tensor is split, joined and summed: all that a collective has to know of it.
template <class Ops, class X>
concept Movable = std::default_initializable<X> &&
    requires(const Ops& ops, const X& x, std::span<const X* const> parts, Axis axis,
             std::int64_t begin, std::int64_t end) {
  { ops.slice(x, axis, begin, end) } -> std::same_as<X>;  // [begin, end) of an axis
  { ops.concat(parts, axis) } -> std::same_as<X>;         // in the order given
  { ops.extent(x, axis) } -> std::same_as<std::int64_t>;
  { ops.element_type(x) } -> std::same_as<ElementType>;
};
template <class Ops, class X>
concept Summable = Movable<Ops, X> && requires(const Ops& ops, std::span<const X* const> parts,
                                               Axis axis, std::int64_t begin, std::int64_t end) {
  // The slice [begin, end) of the sum, added in the order given.
  { ops.sum(parts, axis, begin, end) } -> std::same_as<X>;
};

/// Arithmetic that makes the equal results of several ranks in one pass over the inputs: each of
/// `results` gets the join, or the slice of the sum. Not for operations that note something of the
/// rank that they run on.
template <class Ops, class X>
concept Replicable = Movable<Ops, X> && requires(const Ops& ops, std::span<const X* const> parts,
                                                 Axis axis, std::span<X* const> results) {
  ops.concat(parts, axis, results);
} &&(!Summable<Ops, X> ||
     requires(const Ops& ops, std::span<const X* const> parts, Axis axis, std::int64_t n,
              std::span<X* const> results) { ops.sum(parts, axis, n, n, results); });

/// The arithmetic of the model, at the grain of an engine's kernels. The same program runs on
/// numbers (EigenOps), on a GPU and on token views; what an operation requires of its operands and
/// what it gives is stated here once.
///
/// T tokens, H hidden, V vocabulary, E experts, k experts a token; sizes are of one rank.
template <class Ops>
concept ModelOps = Summable<Ops, typename Ops::Tensor> && Movable<Ops, typename Ops::Routing> &&
    requires(const Ops& ops, const typename Ops::Tensor& x, const typename Ops::Weight& w,
             const typename Ops::Ids& ids, const typename Ops::Routing& routing,
             typename Ops::KvCache& kv, typename Ops::GdnState& gdn, const Batch& batch,
             const WeightSource& source, const WeightBlock& block, const AttentionShape& heads,
             const RopeShape& rope, const GdnShape& gdn_shape,
             const std::vector<std::int64_t>& indices, const typename Ops::Mask& mask,
             const Range& range, std::int64_t n, double eps, bool flag) {
  typename Ops::Tensor;
  // Weights, ids and caches.
  { ops.load(source, block) } -> std::same_as<typename Ops::Weight>;
  { ops.ids(batch) } -> std::same_as<typename Ops::Ids>;                    // [T]
  { ops.kv_cache(heads) } -> std::same_as<typename Ops::KvCache>;           // empty
  { ops.gdn_state(gdn_shape, n) } -> std::same_as<typename Ops::GdnState>;  // empty; kernel n
  // Row-local: the result of a row depends on that row alone.
  { ops.embed(ids, w, n) } -> std::same_as<typename Ops::Tensor>;  // [T] -> [T, H]; w from row n
  { ops.linear(x, w) } -> std::same_as<typename Ops::Tensor>;      // x w^T: [T, in] -> [T, out]
  { ops.add(x, x) } -> std::same_as<typename Ops::Tensor>;
  { ops.rms_norm(x, w, eps) } -> std::same_as<typename Ops::Tensor>;       // times (1 + w)
  { ops.head_rms_norm(x, w, eps) } -> std::same_as<typename Ops::Tensor>;  // heads of w's width
  { ops.silu_mul(x, x) } -> std::same_as<typename Ops::Tensor>;            // silu(x) * y
  { ops.sigmoid_mul(x, x) } -> std::same_as<typename Ops::Tensor>;         // x * sigmoid(y)
  {
    ops.sigmoid_scale(x, x)
    } -> std::same_as<typename Ops::Tensor>;  // rows of x * sigmoid(y [T, 1])
  {
    ops.concat_features(x, x)
    } -> std::same_as<typename Ops::Tensor>;  // [T, a] [T, b] -> [T, a + b]
  {
    ops.split_query_gate(x, n)
    } ->  // per head of width n
        std::same_as<std::pair<typename Ops::Tensor, typename Ops::Tensor>>;
  {
    ops.split_qkvz(x, gdn_shape)
    } ->  // -> qkv [T, conv_dim], z
        std::same_as<std::pair<typename Ops::Tensor, typename Ops::Tensor>>;
  {
    ops.split_ba(x, gdn_shape)
    } ->  // -> b, a [T, value heads]
        std::same_as<std::pair<typename Ops::Tensor, typename Ops::Tensor>>;
  { ops.rope(x, batch, rope) } -> std::same_as<typename Ops::Tensor>;
  { ops.gated_rms_norm(x, x, w, eps) } -> std::same_as<typename Ops::Tensor>;  // norm(x) w silu(z)
  // Over the rows of a sequence and its past.
  { ops.attention(x, x, x, heads, kv, batch) } -> std::same_as<typename Ops::Tensor>;
  { ops.causal_conv(x, w, gdn, batch) } -> std::same_as<typename Ops::Tensor>;
  // b, a, A_log, dt_bias -> beta, g, in the form that the delta rule takes
  {
    ops.gated_delta_rule(x, ops.delta_gates(x, x, w, w).first, ops.delta_gates(x, x, w, w).second,
                         gdn_shape, gdn, batch)
    } -> std::same_as<typename Ops::Tensor>;
  // Experts.
  { ops.route(x, n, flag) } -> std::same_as<typename Ops::Routing>;  // logits, k, renormalise
  { ops.experts(x, routing, w, w, n) } -> std::same_as<typename Ops::Tensor>;   // from expert n on
  { ops.rows_for(routing, range) } -> std::same_as<std::vector<std::int64_t>>;  // with such experts
  { ops.take_rows(x, indices) } -> std::same_as<typename Ops::Tensor>;          // none is checked
  { ops.take_rows(routing, indices) } -> std::same_as<typename Ops::Routing>;
  { ops.add_rows(x, indices, n) } -> std::same_as<typename Ops::Tensor>;  // into n rows of zeros
  ops.require_capacity(routing, n);  // pairs that one expert's buffer holds
  ops.count_load(routing, n);        // of the first n rows, for load balancing
  // Pads. Their rows belong to no token.
  { ops.pad_rows(x, n) } -> std::same_as<typename Ops::Tensor>;  // n zero rows at the end
  { ops.trim(x, n) } -> std::same_as<typename Ops::Tensor>;   // the first n rows; drops pads only
  { ops.blank(n, n) } -> std::same_as<typename Ops::Tensor>;  // zeros of no token
  { ops.into_buffer(x, n) } -> std::same_as<typename Ops::Tensor>;  // n rows, x and then old ones
  // Which rows are the runner's pads, cut and padded like the rows; those get no expert. `flag`:
  // the mask has a row for each row, so that no pad may be left.
  { ops.pad_mask(batch) } -> std::same_as<typename Ops::Mask>;
  { ops.skip_pads(routing, mask, flag) } -> std::same_as<typename Ops::Routing>;
  // The rows of `batch`, all of them, complete: what leaves the model. Numbers cannot tell.
  ops.require_full(x, batch, "what it is");
  ops.require_ids(ids, batch, "what they are");
  ops.require_side(batch, batch, "of what");  // side data: as the step has it, as it is seen
  // Flat slice n of n equal ones, and back: what a pipeline stage sends.
  { ops.flat_slice(x, n, n) } -> std::same_as<typename Ops::Tensor>;
  { ops.is_flat(x, n) } -> std::same_as<bool>;  // of rows of n columns
  { ops.unflatten(x, n) } -> std::same_as<typename Ops::Tensor>;
  // Rows by index, and the greedy token of each row.
  { ops.index_rows(x, indices) } -> std::same_as<typename Ops::Tensor>;
  { ops.index_rows(x, indices, indices) } -> std::same_as<typename Ops::Tensor>;  // found, and due
  { ops.first_rows(x, n, flag) } -> std::same_as<typename Ops::Tensor>;  // read through a pointer?
  { ops.pad_ids(ids, n) } -> std::same_as<typename Ops::Ids>;
  { ops.argmax(x) } -> std::same_as<typename Ops::Ids>;
  { ops.select(ids, indices) } -> std::same_as<typename Ops::Ids>;
  { ops.next_ids(ids, batch, indices, ids) } -> std::same_as<typename Ops::Ids>;
};

/// Arithmetic that has the two operations of a residual norm as one: { add(x, y), its rms_norm },
/// bit for bit.
template <class Ops>
concept FusesAddAndNorm = requires(const Ops& ops, const typename Ops::Tensor& x,
                                   const typename Ops::Weight& w, double eps) {
  {
    ops.add_rms_norm(x, x, w, eps)
    } -> std::same_as<std::pair<typename Ops::Tensor, typename Ops::Tensor>>;
};

/// One rank's end of a process group. Collective: every rank of the group makes the same calls in
/// the same order. Parts are in rank order along `axis`.
template <class Comm, class Ops>
concept Communicator = requires(Comm& comm, const typename Ops::Tensor& x, Axis axis,
                                const typename Ops::Routing& routing,
                                const std::vector<std::int64_t>& sizes, std::int64_t peer,
                                const ModulePath& module) {
  { comm.rank() } -> std::convertible_to<std::int64_t>;
  { comm.size() } -> std::convertible_to<std::int64_t>;
  comm.locate(module);                                           // where the rank is, for messages
  { comm.all_reduce(x) } -> std::same_as<typename Ops::Tensor>;  // the sum, on every rank
  { comm.all_gather(x, axis) } -> std::same_as<typename Ops::Tensor>;  // the join, on every rank
  {
    comm.reduce_scatter(x, axis)
    } -> std::same_as<typename Ops::Tensor>;  // this rank's part of the sum
  // Variable-size forms along rows: rank i brings, or keeps, sizes[i] rows.
  { comm.all_gather_v(x, sizes) } -> std::same_as<typename Ops::Tensor>;
  { comm.reduce_scatter_v(x, sizes) } -> std::same_as<typename Ops::Tensor>;
  { comm.all_gather_v(routing, sizes) } -> std::same_as<typename Ops::Routing>;
  // Rows cut in rank order, part i for rank i; the parts received, joined in rank order.
  { comm.all_to_all(x) } -> std::same_as<typename Ops::Tensor>;  // equal parts
  {
    comm.all_to_all_v(x, sizes, sizes)
    } -> std::same_as<typename Ops::Tensor>;  // rows to each rank, rows from each
  { comm.all_to_all_v(routing, sizes, sizes) } -> std::same_as<typename Ops::Routing>;
  { comm.broadcast(x, peer) } -> std::same_as<typename Ops::Tensor>;  // x of the rank `peer`
  comm.barrier();
  // From one rank of the group to another; both wait for each other.
  comm.send(x, peer);
  { comm.template recv<typename Ops::Tensor>(peer) } -> std::same_as<typename Ops::Tensor>;
};

}  // namespace tokenview
