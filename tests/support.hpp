// SPDX-License-Identifier: Apache-2.0
// What the tests of the reference model share: random operands, batches, weights to edit, and the
// two comparisons, to the bit and within a formula.
#pragma once
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "reference/program/error.hpp"
#include "reference/program/presets.hpp"
#include "reference/program/seeded_weights.hpp"
#include "reference/serial_model.hpp"
#include "tests/boost_test.hpp"

namespace tokenview {

using Claim = boost::test_tools::assertion_result;
using FloatAndDouble = std::tuple<float, double>;

template <class S>
constexpr double unit_roundoff = double(std::numeric_limits<S>::epsilon()) / 2;

/// The relative error that sums of `contraction` terms in S may have, in the Frobenius norm: each
/// addition rounds by at most one unit, of random sign.
template <class S>
double tolerance(std::int64_t contraction) {
  return 4 * std::sqrt(double(contraction)) * unit_roundoff<S>;
}

inline Claim refuted(const std::string& reason) {
  Claim claim(false);
  claim.message() << reason;
  return claim;
}

/// Frobenius norm of found - expected <= allowed * that of expected. Not true of NaN.
template <class X, class Y>
Claim within(const X& found, const Y& expected, double allowed) {
  if (found.rows() != expected.rows() || found.cols() != expected.cols())
    return refuted(text("[", found.rows(), ", ", found.cols(), "] is not [", expected.rows(), ", ",
                        expected.cols(), "]"));
  const auto wide = expected.template cast<double>();
  const double error = (found.template cast<double>() - wide).norm();
  if (error <= allowed * wide.norm()) return true;
  return refuted(text("relative error ", error / wide.norm(), ", allowed ", allowed));
}

/// Equal to the bit, NaN and the sign of zero included.
template <class S>
Claim same_bits(const Matrix<S>& found, const Matrix<S>& expected) {
  if (found.rows() != expected.rows() || found.cols() != expected.cols())
    return refuted(text("[", found.rows(), ", ", found.cols(), "] is not [", expected.rows(), ", ",
                        expected.cols(), "]"));
  for (Eigen::Index i = 0; i < found.size(); ++i)
    if (std::memcmp(found.data() + i, expected.data() + i, sizeof(S)) != 0)
      return refuted(text("row ", i / found.cols(), ", column ", i % found.cols(), ": ",
                          found.data()[i], " is not ", expected.data()[i]));
  return true;
}

/// Uniform in [-1, 1). Every value is a float, so that fp32 and fp64 start from the same numbers.
template <class S>
Matrix<S> random_matrix(std::mt19937_64& random, std::int64_t rows, std::int64_t cols) {
  Matrix<S> x(rows, cols);
  for (Eigen::Index i = 0; i < x.size(); ++i)
    x.data()[i] = S(float(random() >> 40) * 0x1p-23f - 1.0f);
  return x;
}

inline std::vector<std::int64_t> random_ids(std::mt19937_64& random, std::int64_t count,
                                            std::int64_t vocab_size) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i)
    ids.push_back(std::int64_t(random() % std::uint64_t(vocab_size)));
  return ids;
}

/// One sequence's part of a batch: new tokens after `num_computed` earlier ones.
struct Sequence {
  std::vector<std::int64_t> ids;
  std::int32_t num_computed = 0;
  std::int32_t slot = 0;
};

inline Batch batch_of(const std::vector<Sequence>& sequences) {
  Batch batch;
  batch.query_start_loc.push_back(0);
  for (const Sequence& s : sequences) {
    for (std::size_t i = 0; i < s.ids.size(); ++i) {
      batch.input_ids.push_back(s.ids[i]);
      batch.positions.push_back(s.num_computed + std::int64_t(i));
    }
    batch.query_start_loc.push_back(std::int32_t(batch.input_ids.size()));
    batch.num_computed.push_back(s.num_computed);
    batch.slots.push_back(s.slot);
  }
  return batch;
}

/// Rows of one sequence in slot 0, for operations that look at no ids.
inline Batch rows_of_one(std::int64_t count, std::int64_t num_computed = 0) {
  return batch_of({{std::vector<std::int64_t>(std::size_t(count)), std::int32_t(num_computed), 0}});
}

/// ids [begin, end).
inline std::vector<std::int64_t> part(const std::vector<std::int64_t>& ids, std::int64_t begin,
                                      std::int64_t end) {
  return {ids.begin() + begin, ids.begin() + end};
}

/// A linear weight [out, in], or a vector [n, 1], from values.
template <class S>
typename EigenOps<S>::Weight linear_weight(const Matrix<S>& values) {
  typename EigenOps<S>::Weight w;
  w.packed = PackedMatrix<S>(1, values.rows(), values.cols());
  w.packed.pack(0, values.data(), values.cols());
  return w;
}
template <class S>
typename EigenOps<S>::Weight plain_weight(const Matrix<S>& values) {
  typename EigenOps<S>::Weight w;
  w.plain = values;
  return w;
}

/// Seeded weights in memory, each to be changed at will.
class EditableWeights : public WeightSource {
 public:
  explicit EditableWeights(const ModelConfig& config, std::uint64_t seed = 0,
                           DType dtype = DType::float32) {
    const SeededWeights seeded(config, seed, dtype);
    for (const WeightShape& w : weight_shapes(config)) tensors_[w.name] = seeded.weight(w.name);
  }

  bool contains(const std::string& name) const override { return tensors_.count(name) != 0; }
  HostTensor weight(const std::string& name, const std::vector<std::int64_t>&) const override {
    return tensors_.at(name);
  }

  /// The weight as a matrix [first axis, all others].
  Eigen::Map<Matrix<float>> operator[](const std::string& name) {
    HostTensor& tensor = tensors_.at(name);
    return {tensor.values.data(), tensor.rows(), tensor.cols()};
  }

 private:
  std::map<std::string, HostTensor> tensors_;
};

/// A group of one with its arithmetic and the loaded weights: what a module needs to run by itself.
template <class S>
struct Solo {
  using Ops = EigenOps<S>;
  Solo(const ModelConfig& model_config, const WeightSource& source, const Ops& arithmetic = Ops())
      : config(model_config),
        ops(arithmetic),
        shapes(rank_shapes(config, 0, 1)),
        w(WeightLoader<Ops>(ops, source, config, {}).model()) {}

  ModelConfig config;
  Ops ops;
  RankShapes shapes;
  ModelWeights<typename Ops::Weight> w;
  SoloComm comm;
  SerialRank<S> rank{ops, comm};
  Protocol<SerialRank<S>> protocol{plan_for(config, {}, ProtocolId::S)};

  /// The feed-forward of layer 0.
  Matrix<S> feed_forward(const Matrix<S>& x) {
    return protocol.feed_forward(
        rank, {.num_tokens = x.rows(), .scatters = false, .is_moe = true, .is_last = false},
        w.layers[0], config, {}, x);
  }
};

/// Keeps every tap by name.
template <class S>
struct Taps : TapSink<EigenOps<S>> {
  std::map<std::string, Matrix<S>> values;
  std::map<std::string, typename EigenOps<S>::Routing> routings;

  void tensor(const ModulePath& module, const char* leaf, Matrix<S>& value) override {
    values[module.str(leaf)] = value;
  }
  void routing(const ModulePath& module, typename EigenOps<S>::Routing& value) override {
    routings[module.str()] = value;
  }
};

/// The tiny Qwen3-Next with what the other presets lack: a dense layer (the MTP layer's, too), full
/// attention first, dk != dv, a kernel of 3 and raw softmax weights.
inline ModelConfig mixed_config() {
  ModelConfig config = *preset("qwen3-next");
  config.mlp_only_layers = {0};
  config.layer_types = {LayerType::full_attention, LayerType::linear_attention,
                        LayerType::linear_attention, LayerType::full_attention};
  config.linear_num_key_heads = 4;
  config.linear_key_head_dim = 8;
  config.linear_value_head_dim = 12;
  config.linear_conv_kernel_dim = 3;
  config.norm_topk_prob = false;
  return config;
}

/// Two states hold the same for one sequence, to the bit: convolution rows, recurrent states, and
/// keys and values of the first `positions` tokens (`mtp_positions` of the MTP layer).
template <class S>
Claim same_state(const ModelState<EigenOps<S>>& a, std::size_t slot_a,
                 const ModelState<EigenOps<S>>& b, std::size_t slot_b, std::int64_t positions,
                 std::int64_t mtp_positions = 0) {
  using Values = std::vector<S>;
  const auto same = [](const Values& x, const Values& y, std::size_t count) {
    return x.size() >= count && y.size() >= count &&
           (count == 0 || std::memcmp(x.data(), y.data(), count * sizeof(S)) == 0);
  };
  const auto same_layer = [&](const auto& x, const auto& y, std::int64_t count) -> Claim {
    if (x.kv) {
      const auto& from = x.kv->slots.at(slot_a);
      const auto& to = y.kv->slots.at(slot_b);
      const auto size = std::size_t(count * x.kv->width);
      if (!same(from.keys, to.keys, size)) return refuted("keys differ");
      if (!same(from.values, to.values, size)) return refuted("values differ");
    } else {
      const auto& from = x.gdn->slots.at(slot_a).now;
      const auto& to = y.gdn->slots.at(slot_b).now;
      if (from.recurrent.size() != to.recurrent.size() ||
          !same(from.recurrent, to.recurrent, to.recurrent.size()))
        return refuted("recurrent states differ");
      return same_bits(from.conv, to.conv);
    }
    return true;
  };
  for (std::size_t i = 0; i < a.layers.size(); ++i)
    if (Claim claim = same_layer(a.layers[i], b.layers[i], positions); !claim) {
      claim.message() << " in layer " << i;
      return claim;
    }
  return mtp_positions == 0 ? Claim(true) : same_layer(a.mtp, b.mtp, mtp_positions);
}

}  // namespace tokenview
