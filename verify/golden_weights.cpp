// SPDX-License-Identifier: Apache-2.0
#include "verify/golden_weights.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <iomanip>
#include <set>
#include <sstream>

#include "reference/program/error.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"

namespace tokenview {
namespace {

/// A chain of numbers, each mixed into what came before.
/// Source: Steele, Lea & Flood 2014, SplitMix64, the finaliser.
class Fingerprint {
 public:
  void add(std::uint64_t number) {
    std::uint64_t x = (state_ ^ number) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    state_ = x ^ (x >> 31);
  }

  void add(const HostTensor& tensor) {
    add(tensor.shape.size());
    for (const std::int64_t extent : tensor.shape) add(std::uint64_t(extent));
    // Eight chains: a step waits for the one before it, and not for its neighbours.
    std::array<Fingerprint, 8> lanes;
    const std::vector<float>& values = tensor.values;
    for (std::size_t i = 0; i < values.size(); i += lanes.size())
      for (std::size_t lane = 0; lane < std::min(lanes.size(), values.size() - i); ++lane)
        lanes[lane].add(std::bit_cast<std::uint32_t>(values[i + lane]));
    for (const Fingerprint& lane : lanes) add(lane.state_);
  }

  void add(const std::string& name) {
    add(name.size());
    for (const char letter : name) add(static_cast<unsigned char>(letter));
  }

  std::string hexadecimal() const {
    std::ostringstream digits;
    digits << std::hex << std::setw(16) << std::setfill('0') << state_;
    return digits.str();
  }

 private:
  std::uint64_t state_ = 0;
};

void require_known_weights(const GoldenFile& golden, const ModelConfig& config) {
  std::set<std::string> known;
  for (const WeightShape& weight : weight_shapes(config)) known.insert(weight.name);
  for (const auto& [name, shape] : golden.weight_shapes())
    if (!known.contains(name))
      golden.file().fail(GoldenFile::weight_path(name),
                         text("no such weight in a ", to_string(config.model_type),
                              " model of this configuration"));
}

std::string attribute(const GoldenFile& golden, const char* name) {
  return golden.file().has_attribute("/", name) ? golden.file().string_attribute("/", name) : "";
}

}  // namespace

std::string weights_fingerprint(const WeightSource& weights, const ModelConfig& config) {
  Fingerprint fingerprint;
  for (const auto& [name, shape] : weight_shapes(config)) {
    if (!weights.contains(name)) continue;
    fingerprint.add(name);
    fingerprint.add(weights.weight(name, shape));
  }
  return fingerprint.hexadecimal();
}

GoldenWeights::GoldenWeights(const GoldenFile& golden, const ModelConfig& config,
                             const Checkpoint* checkpoint)
    : golden_(golden) {
  if (!golden.weight_shapes().empty()) {
    if (checkpoint != nullptr)
      golden.file().fail("/weights", text("the file has weights of its own, expected a file that "
                                          "was recorded from a checkpoint, or no checkpoint"));
    require_known_weights(golden, config);
    return;
  }
  const std::string recorded_from = attribute(golden, checkpoint_attribute);
  const std::string recorded_with = attribute(golden, fingerprint_attribute);
  if (checkpoint == nullptr)
    golden.file().fail("/weights",
                       text("is empty, expected --checkpoint with the folder that has the weights",
                            recorded_from.empty()
                                ? ""
                                : text(": the file was recorded from ", printable(recorded_from))));
  if (checkpoint->reading().config != config)
    golden.file().fail("/config",
                       text("is not the configuration of ", printable(checkpoint->folder()),
                            ", expected the checkpoint that the file was recorded from"));
  of_checkpoint_.emplace(*checkpoint, golden.dtype(),
                         [](const std::string&) { throw_if_interrupted(); });
  if (recorded_with.empty()) return;
  const std::string found = checkpoint->fingerprint(
      golden.dtype(), [&] { return weights_fingerprint(*of_checkpoint_, config); });
  if (found != recorded_with)
    golden.file().fail(
        "/weights", text("the weights of ", printable(checkpoint->folder()),
                         " have the fingerprint ", found, ", expected ", printable(recorded_with),
                         ", that of ", printable(recorded_from), " when the file was recorded"));
}

const WeightSource& GoldenWeights::source() const {
  if (of_checkpoint_) return *of_checkpoint_;
  return golden_;
}

}  // namespace tokenview
