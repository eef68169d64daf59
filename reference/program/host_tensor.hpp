// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tokenview {

/// Element types of golden files, dumps and checkpoints.
enum class DType { float32, float64, float16, bfloat16, int32, int64 };

/// "float32", "bfloat16", ...: the names of golden files and of PyTorch.
const char* to_string(DType dtype);

/// A weight or a recorded tensor in host memory, row-major. Values are widened to float, which
/// holds every float16 and bfloat16 exactly; `dtype` says what they were stored as.
struct HostTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
  DType dtype = DType::float32;

  /// Rows and columns with all trailing axes flattened: [shape[0], product of the rest].
  std::int64_t rows() const { return shape.empty() ? 1 : shape[0]; }
  std::int64_t cols() const;
};

/// "[16, 48, 64]"
std::string to_string(const std::vector<std::int64_t>& shape);

/// The product of the extents; 1 for a scalar. Throws ShapeError when negative or over 2^62.
std::int64_t element_count(const std::vector<std::int64_t>& shape);

struct WeightBlock;

/// Where the program's weights come from: a golden file, a checkpoint, or a seed.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  virtual bool contains(const std::string& name) const = 0;

  /// The tensor of this library name, e.g. `model.layers.0.mlp.gate.weight`. Throws FileError when
  /// it is absent, has another shape than `shape`, or holds a NaN or an infinity.
  virtual HostTensor weight(const std::string& name,
                            const std::vector<std::int64_t>& shape) const = 0;

  /// One rank's part of a weight: sliced() of the whole. A source that need not make the whole for
  /// it overrides this, and finds a NaN or an infinity in the part alone.
  virtual HostTensor part(const WeightBlock& block) const;
};

}  // namespace tokenview
