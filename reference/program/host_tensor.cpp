// SPDX-License-Identifier: Apache-2.0
#include "reference/program/host_tensor.hpp"

#include "reference/program/error.hpp"

namespace tokenview {

const char* to_string(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
  }
  return "an unknown dtype";
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  std::string result = "[";
  for (const std::int64_t extent : shape) {
    if (result.size() > 1) result += ", ";
    result += std::to_string(extent);
  }
  return result + "]";
}

std::int64_t element_count(const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t limit = std::int64_t{1} << 62;
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0)
      throw ShapeError(text("shape is ", to_string(shape), ", expected no negative extent"));
    if (extent != 0 && count > limit / extent)
      throw ShapeError(text("shape ", to_string(shape), " has more than 2^62 elements"));
    count *= extent;
  }
  return count;
}

std::int64_t HostTensor::cols() const {
  if (shape.empty()) return 1;
  return element_count({shape.begin() + 1, shape.end()});
}

}  // namespace tokenview
