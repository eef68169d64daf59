// SPDX-License-Identifier: Apache-2.0
// Weights, and the operations that are local to a row.
#include "device/cuda_ops.hpp"

#include <cmath>

#include "device/cuda_context.hpp"
#include "device/kernels.hpp"
#include "reference/program/require_shape.hpp"

namespace tokenview {

static_assert(ModelOps<CudaOps<float>> && FusesAddAndNorm<CudaOps<float>>);
static_assert(ModelOps<CudaOps<__nv_bfloat16>> && FusesAddAndNorm<CudaOps<__nv_bfloat16>>);

template <class T>
CudaOps<T>::CudaOps(int device, Rounding rounding, GdnForm gdn_form)
    : gpu_(CudaContext::create(device)), rounding_(rounding), gdn_form_(gdn_form) {
  if (std::is_same_v<T, float> != (rounding == Rounding::none))
    throw ConfigError(std::is_same_v<T, float>
                          ? "float values on the GPU are rounded nowhere: expected no rounding"
                          : "bfloat16 values on the GPU: expected the rounding of hf or vllm");
}

template <class T>
std::optional<AssertRecord> CudaOps<T>::assert_record() const {
  const AssertRecord& record = gpu_->assert_record();
  if (record.is_complete == 0) return std::nullopt;
  return record;
}

template <class T>
std::string CudaOps<T>::error() const {
  const cudaError_t status = cudaStreamSynchronize(gpu_->stream());
  return status == cudaSuccess ? "" : cudaGetErrorName(status);
}

template <class T>
DeviceMatrix<T> CudaOps<T>::matrix(std::int64_t rows, std::int64_t cols) const {
  return gpu_->matrix<T>(rows, cols);
}

template <class T>
DeviceMatrix<T> CudaOps<T>::upload(std::span<const float> values, std::int64_t rows,
                                   std::int64_t cols) const {
  if constexpr (std::is_same_v<T, float>)
    return {gpu_->upload(values), rows, cols};
  else
    return {gpu_->upload(std::vector<T>(values.begin(), values.end())), rows, cols};
}

template <class T>
typename CudaOps<T>::Routing CudaOps<T>::upload(std::span<const float> weights,
                                                std::span<const std::int64_t> ids,
                                                std::int64_t rows, std::int64_t cols) const {
  return {{gpu_->upload(weights), rows, cols}, {gpu_->upload(ids), rows, cols}};
}

template <class T>
std::vector<float> CudaOps<T>::download(const DeviceMatrix<float>& x) const {
  return gpu_->download(x.data(), x.size());
}

template <class T>
std::vector<float> CudaOps<T>::download(const DeviceMatrix<__nv_bfloat16>& x) const {
  const auto values = gpu_->download(x.data(), x.size());
  return {values.begin(), values.end()};
}

template <class T>
std::vector<std::int64_t> CudaOps<T>::download(const DeviceMatrix<std::int64_t>& x) const {
  return gpu_->download(x.data(), x.size());
}

template <class T>
typename CudaOps<T>::Weight CudaOps<T>::load(const WeightSource& source,
                                             const WeightBlock& block) const {
  const HostTensor part = source.part(block);
  const std::int64_t cols = part.shape.size() == 1 ? 1 : part.shape.back();
  const auto size = std::int64_t(part.values.size());
  return {upload(part.values, cols == 0 ? 0 : size / cols, cols),
          block.per_expert() ? part.shape[0] : 1};
}

template <class T>
DeviceMatrix<T> CudaOps<T>::embed(const Ids& ids, const Weight& table,
                                  std::int64_t first_row) const {
  const std::int64_t first = first_row == unmasked_vocabulary ? 0 : first_row;
  const auto require_rows = [rows = table.values.rows(), first_row](const Ids& looked_up) {
    if (first_row != unmasked_vocabulary) return;
    for (const std::int64_t id : looked_up)
      if (id >= rows)
        throw ShapeError(text("embed: id ", id, " is out of range for ", rows, " rows"));
  };
  require_rows(ids);
  const Tensor out = matrix(std::int64_t(ids.size()), table.in());
  const auto device_ids = gpu_->step_input(
      ids,
      [require_rows](const Batch& step) {
        require_rows(step.input_ids);
        return step.input_ids;
      },
      "embed: the ids");
  kernels::embedding<T>(out, device_ids.get(), table.values, first, gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::linear(const Tensor& x, const Weight& w) const {
  require_shape("linear", x, x.rows(), w.in());
  const Tensor y = matrix(x.rows(), w.values.rows());
  gpu_->gemm(y.data(), x.data(), w.values.data(), y.rows(), y.cols(), x.cols());
  return y;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::add(const Tensor& x, const Tensor& y) const {
  require_same_shape("add", x, y);
  const Tensor out = matrix(x.rows(), x.cols());
  kernels::add<T>(out, x, y, gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::rms_norm(const Tensor& x, const Weight& w, double eps) const {
  require_shape("rms_norm", x, x.rows(), w.values.rows());
  return head_rms_norm(x, w, eps);
}

template <class T>
std::pair<DeviceMatrix<T>, DeviceMatrix<T>> CudaOps<T>::add_rms_norm(const Tensor& x,
                                                                     const Tensor& y,
                                                                     const Weight& w,
                                                                     double eps) const {
  require_same_shape("add", x, y);
  require_shape("rms_norm", x, x.rows(), w.values.rows());
  const Tensor sum = matrix(x.rows(), x.cols()), normed = matrix(x.rows(), x.cols());
  kernels::add_rms_norm<T>(sum, normed, x, y, w.values.data(), float(eps), gpu_->stream());
  return {sum, normed};
}

template <class T>
DeviceMatrix<T> CudaOps<T>::head_rms_norm(const Tensor& x, const Weight& w, double eps) const {
  const std::int64_t width = w.values.rows();
  if (width == 0 || x.cols() % width != 0)
    throw ShapeError(text("head_rms_norm: ", x.cols(), " features cut a head of ", width));
  const Tensor out = matrix(x.rows(), x.cols());
  kernels::rms_norm<T>(out, x, w.values.data(), width, float(eps), gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::gated_rms_norm(const Tensor& x, const Tensor& z, const Weight& w,
                                           double eps) const {
  require_same_shape("gated_rms_norm", x, z);
  const std::int64_t width = w.values.rows();
  if (width == 0 || x.cols() % width != 0)
    throw ShapeError(text("gated_rms_norm: ", x.cols(), " features cut a head of ", width));
  const Tensor out = matrix(x.rows(), x.cols());
  kernels::gated_rms_norm<T>(out, x, z, w.values.data(), width, float(eps), rounding_,
                             gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::silu_mul(const Tensor& gate, const Tensor& up) const {
  require_same_shape("silu_mul", gate, up);
  const Tensor out = matrix(gate.rows(), gate.cols());
  kernels::silu_mul<T>(out, gate, up, rounding_, gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::sigmoid_mul(const Tensor& x, const Tensor& gate) const {
  require_same_shape("sigmoid_mul", x, gate);
  const Tensor out = matrix(x.rows(), x.cols());
  kernels::sigmoid_mul<T>(out, x, gate, gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::sigmoid_scale(const Tensor& x, const Tensor& gate) const {
  require_shape("sigmoid_scale", gate, x.rows(), 1);
  const Tensor out = matrix(x.rows(), x.cols());
  kernels::sigmoid_scale<T>(out, x, gate, gpu_->stream());
  return out;
}

template <class T>
DeviceMatrix<T> CudaOps<T>::concat_features(const Tensor& x, const Tensor& y) const {
  const Tensor* const parts[] = {&x, &y};
  return concat(parts, Axis::cols);
}

/// [T, heads * 2 * head_dim], each head's query then its gate -> query, gate [T, heads * head_dim].
template <class T>
std::pair<DeviceMatrix<T>, DeviceMatrix<T>> CudaOps<T>::split_query_gate(
    const Tensor& x, std::int64_t head_dim) const {
  if (x.cols() % (2 * head_dim) != 0)
    throw ShapeError(
        text("split_query_gate: ", x.cols(), " features cut a head of ", 2 * head_dim));
  const std::int64_t heads = x.cols() / (2 * head_dim);
  const Tensor query = matrix(x.rows(), x.cols() / 2), gate = matrix(x.rows(), x.cols() / 2);
  const auto take = [&](const Tensor& to, std::int64_t first) {
    kernels::copy_blocks<T>(to, x, {heads, head_dim, first, 2 * head_dim, 0, head_dim},
                            gpu_->stream());
  };
  take(query, 0);
  take(gate, head_dim);
  return {query, gate};
}

/// Groups of one key head, each [q, k, v of its value heads, z of them] -> [q | k | v], z.
template <class T>
std::pair<DeviceMatrix<T>, DeviceMatrix<T>> CudaOps<T>::split_qkvz(const Tensor& x,
                                                                   const GdnShape& shape) const {
  const std::int64_t dk = shape.key_head_dim, values = shape.group() * shape.value_head_dim;
  const std::int64_t groups = shape.num_key_heads, group = 2 * dk + 2 * values;
  require_shape("split_qkvz", x, x.rows(), groups * group);
  const Tensor qkv = matrix(x.rows(), shape.conv_dim()), z = matrix(x.rows(), shape.value_dim());
  const auto take = [&](const Tensor& to, std::int64_t width, std::int64_t from,
                        std::int64_t to_first) {
    kernels::copy_blocks<T>(to, x, {groups, width, from, group, to_first, width}, gpu_->stream());
  };
  take(qkv, dk, 0, 0);
  take(qkv, dk, dk, shape.key_dim());
  take(qkv, values, 2 * dk, 2 * shape.key_dim());
  take(z, values, 2 * dk + values, 0);
  return {qkv, z};
}

/// Groups of one key head, each [b of its value heads, a of them] -> b, a.
template <class T>
std::pair<DeviceMatrix<T>, DeviceMatrix<T>> CudaOps<T>::split_ba(const Tensor& x,
                                                                 const GdnShape& shape) const {
  const std::int64_t r = shape.group();
  require_shape("split_ba", x, x.rows(), 2 * shape.num_value_heads);
  const Tensor b = matrix(x.rows(), shape.num_value_heads);
  const Tensor a = matrix(x.rows(), shape.num_value_heads);
  kernels::copy_blocks<T>(b, x, {shape.num_key_heads, r, 0, 2 * r, 0, r}, gpu_->stream());
  kernels::copy_blocks<T>(a, x, {shape.num_key_heads, r, r, 2 * r, 0, r}, gpu_->stream());
  return {b, a};
}

/// The frequencies come from the host, as the reference makes them: a last bit of one is a visible
/// angle at large positions.
template <class T>
DeviceMatrix<T> CudaOps<T>::rope(const Tensor& x, const Batch& batch,
                                 const RopeShape& shape) const {
  if (x.rows() != batch.num_tokens())
    throw ShapeError(text("rope: ", x.rows(), " rows, but ", batch.num_tokens(), " positions"));
  if (shape.head_dim == 0 || x.cols() % shape.head_dim != 0)
    throw ShapeError(text("rope: ", x.cols(), " features cut a head of ", shape.head_dim));
  const std::int64_t half = shape.rotary_dim / 2;
  const bool is_plain = batch.mrope_positions.empty();
  std::vector<float> frequencies;
  std::vector<std::int64_t> axis;
  for (std::int64_t j = 0; j < half; ++j) {
    const float frequency =
        1.0f / std::pow(float(shape.theta), float(2 * j) / float(shape.rotary_dim));
    frequencies.push_back(rounding_ == Rounding::hf ? round_to_bf16(frequency) : frequency);
    axis.push_back(is_plain ? 0 : shape.axis[std::size_t(j)]);
  }
  const auto positions = gpu_->step_input(batch, [is_plain](const Batch& step) {
    return is_plain ? step.positions : step.mrope_positions;
  });
  const Tensor out = matrix(x.rows(), x.cols());
  kernels::rope<T>(out, x, shape.head_dim, half, positions.get(), gpu_->constant(axis),
                   gpu_->constant(frequencies), rounding_, gpu_->stream());
  return out;
}

template <class T>
typename CudaOps<T>::Ids CudaOps<T>::argmax(const Tensor& logits) const {
  if (logits.rows() > 0 && logits.cols() == 0) throw ShapeError("argmax: rows without columns");
  const auto ids = gpu_->matrix<std::int64_t>(logits.rows(), 1);
  kernels::argmax<T>(ids.data(), logits, gpu_->stream());
  return in_scope("argmax", [&] { return download(ids); });
}

template class CudaOps<float>;
template class CudaOps<__nv_bfloat16>;

}  // namespace tokenview
