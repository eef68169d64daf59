// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "reference/program/config_json.hpp"
#include "reference/program/host_tensor.hpp"
#include "verify/safetensors_folder.hpp"

namespace tokenview {

/// The weights of a Hugging Face checkpoint folder, under the names of a golden file. A published
/// checkpoint differs from those in two ways, which are undone here:
/// - the text decoder of a vision-language model is at `model.language_model.` instead of `model.`;
/// - experts are stored one by one (`mlp.experts.3.gate_proj.weight`, `up_proj`, `down_proj`), as
///   transformers 5 saves them, or merged (`mlp.experts.gate_up_proj`, `down_proj`).
/// Source: transformers 5.19, conversion_mapping.py, and what its save_pretrained() writes.
///
/// The files are mapped: part() reads the pages that its block lies in. Any number of threads may
/// read.
class Checkpoint final : public WeightSource {
 public:
  /// Reads config.json and the names, types and shapes of all tensors. Throws, as
  /// read_config_json() and SafetensorsFolder do, and FileError for a weight that is missing or of
  /// another shape than the configuration asks for; for one that is not float32, bfloat16 or
  /// float16, and for a configuration that says quantization_config; for a tensor of the text model
  /// or the MTP stack that the configuration does not have; and for a tied lm_head.weight that is
  /// not the embedding. Only the MTP stack may be missing as a whole.
  explicit Checkpoint(const std::string& folder);
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  const std::string& folder() const { return folder_; }
  const ConfigReading& reading() const { return reading_; }
  const std::string& config_json() const { return config_json_; }

  /// Whether this folder has weights, and not a config.json alone.
  static bool has_weights(const std::string& folder) { return SafetensorsFolder::is_one(folder); }

  /// Tensors outside of the text model ("model.visual": 26), which nothing here uses.
  const std::map<std::string, std::int64_t>& unused() const { return unused_; }

  bool contains(const std::string& name) const override { return weights_.contains(name); }
  HostTensor weight(const std::string& name, const std::vector<std::int64_t>& shape) const override;
  HostTensor part(const WeightBlock& block) const override;

  /// The fingerprint of the weights in a type: what `make` gives, once, for it reads all of them
  /// and several golden files may ask.
  std::string fingerprint(DType type, const std::function<std::string()>& make) const;

 private:
  /// A weight is what its pieces are one after the other: one tensor, or those of all experts.
  struct Weight {
    std::vector<std::int64_t> shape;
    std::vector<const FolderTensor*> pieces;  // with as many elements each as the first
  };
  using Names = std::map<std::string, const FolderTensor*>;  // library names; what is taken goes

  Names text_names();
  Weight taken(Names& names, const std::string& name, const std::vector<std::int64_t>& shape) const;
  void require_tied_head(Names& names) const;
  const Weight& found(const std::string& name, const std::vector<std::int64_t>& shape) const;

  std::string folder_, config_json_;
  ConfigReading reading_;
  SafetensorsFolder files_;
  std::map<std::string, Weight> weights_;
  std::map<std::string, std::int64_t> unused_;
  mutable std::mutex fingerprints_mutex_;
  mutable std::map<DType, std::string> fingerprints_;
};

}  // namespace tokenview
