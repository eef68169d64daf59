// SPDX-License-Identifier: Apache-2.0
#include "verify/tensor_file.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include "reference/program/error.hpp"
#include "verify/chunk_decoder.hpp"
#include "verify/hdf5_file.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/input_file.hpp"
#include "verify/safetensors.hpp"

namespace tokenview {
namespace {

/// The HDF5 library knows no threads.
std::mutex hdf5_library;

void swap_bytes(std::span<std::byte> elements, std::int64_t element_bytes) {
  for (std::size_t at = 0; at < elements.size(); at += std::size_t(element_bytes))
    std::reverse(elements.begin() + std::ptrdiff_t(at),
                 elements.begin() + std::ptrdiff_t(at) + element_bytes);
}

/// Where a chunked tensor's elements come from.
class ChunkGrid {
 public:
  explicit ChunkGrid(const DatasetStorage& storage)
      : shape_(storage.shape), chunk_(storage.chunk), strides_(shape_.size(), 1) {
    for (std::size_t axis = rank() - 1; axis > 0; --axis) {
      strides_[axis - 1] = strides_[axis] * shape_[axis];
      chunks_per_row_ *= (shape_[axis] + chunk_[axis] - 1) / chunk_[axis];
    }
    for (const std::int64_t extent : chunk_) chunk_elements_ *= extent;
  }

  std::size_t rank() const { return shape_.size(); }
  std::int64_t chunk_elements() const { return chunk_elements_; }
  std::int64_t chunks_per_row() const { return chunks_per_row_; }

  /// Elements of a row of chunks, but for the last row.
  std::int64_t row_elements() const { return chunk_[0] * strides_[0]; }

  /// The first element of chunk `number`, on every axis.
  std::vector<std::int64_t> start(std::int64_t number) const {
    std::vector<std::int64_t> result(rank());
    for (std::size_t axis = rank(); axis-- > 1;) {
      const std::int64_t chunks = (shape_[axis] + chunk_[axis] - 1) / chunk_[axis];
      result[axis] = number % chunks * chunk_[axis];
      number /= chunks;
    }
    result[0] = number * chunk_[0];
    return result;
  }

  /// Whether a chunk has elements among begin .. end - 1, or lies around them.
  bool may_hold(const std::vector<std::int64_t>& chunk_start, std::int64_t begin,
                std::int64_t end) const {
    std::int64_t first = 0, last = 0;
    for (std::size_t axis = 0; axis < rank(); ++axis) {
      first += chunk_start[axis] * strides_[axis];
      last += (std::min(chunk_start[axis] + chunk_[axis], shape_[axis]) - 1) * strides_[axis];
    }
    return first < end && last >= begin;
  }

  /// Calls copy(element of the tensor, element of the chunk, count) for every run of elements that
  /// follow each other in both.
  template <class Copy>
  void for_each_run(const std::vector<std::int64_t>& chunk_start, const Copy& copy) const {
    const std::size_t last = rank() - 1;
    const std::int64_t count = std::min(chunk_[last], shape_[last] - chunk_start[last]);
    std::vector<std::int64_t> at(rank(), 0);  // within the chunk
    for (bool is_done = false; !is_done;) {
      std::int64_t in_tensor = 0, in_chunk = 0;
      for (std::size_t axis = 0; axis < rank(); ++axis) {
        in_tensor += (chunk_start[axis] + at[axis]) * strides_[axis];
        in_chunk = in_chunk * chunk_[axis] + at[axis];
      }
      copy(in_tensor, in_chunk, count);
      is_done = true;
      for (std::size_t axis = last; axis-- > 0 && is_done;) {
        is_done = ++at[axis] == std::min(chunk_[axis], shape_[axis] - chunk_start[axis]);
        if (is_done) at[axis] = 0;
      }
    }
  }

 private:
  const std::vector<std::int64_t>& shape_;
  const std::vector<std::int64_t>& chunk_;
  std::vector<std::int64_t> strides_;  // elements
  std::int64_t chunks_per_row_ = 1;
  std::int64_t chunk_elements_ = 1;
};

}  // namespace

class TensorFile::Format {
 public:
  explicit Format(InputFile file) : file_(std::move(file)) {}
  virtual ~Format() = default;

  const InputFile& file() const { return file_; }

  /// The tensor with this index in `tensors`; its type is known, and `to` is not empty.
  virtual void read(std::size_t index, std::int64_t begin, std::span<std::byte> to) const = 0;
  virtual std::int64_t natural_block(std::size_t) const { return 1; }

  std::vector<TensorInfo> tensors;

 private:
  InputFile file_;
};

namespace {

class SafetensorsFormat final : public TensorFile::Format {
 public:
  explicit SafetensorsFormat(InputFile input) : Format(std::move(input)) {
    for (SafetensorsEntry& entry : read_safetensors_header(file()).tensors) {
      tensors.push_back({entry.name, entry.shape, entry.type, to_string(entry.type), {}});
      offsets_.push_back(entry.offset);
    }
  }

  void read(std::size_t index, std::int64_t begin, std::span<std::byte> to) const override {
    file().read(offsets_[index] + begin * element_bytes(*tensors[index].type), to);
  }

 private:
  std::vector<std::int64_t> offsets_;
};

class Hdf5Format final : public TensorFile::Format {
 public:
  explicit Hdf5Format(InputFile input)
      : Format(std::move(input)), hdf5_(Hdf5File::open_layout(file().path())) {
    for (const std::string& inside : hdf5_.dataset_paths()) tensors.push_back(info(inside));
  }

  void read(std::size_t index, std::int64_t begin, std::span<std::byte> to) const override {
    const std::shared_ptr<const DatasetStorage> data = storage(index);
    const std::int64_t bytes = element_bytes(*data->type);
    if (!data->chunk.empty())
      read_chunks(index, *data, begin, to);
    else if (data->offset >= 0)
      file().read(data->offset + begin * bytes, to);
    else
      std::memcpy(to.data(), data->elements.data() + begin * bytes, to.size());
    if (data->is_big_endian) swap_bytes(to, bytes);
  }

  std::int64_t natural_block(std::size_t index) const override {
    const std::shared_ptr<const DatasetStorage> data = storage(index);
    return data->chunk.empty() ? 1 : ChunkGrid(*data).row_elements();
  }

 private:
  /// A data set that cannot be read is no reason to refuse its neighbours.
  TensorInfo info(const std::string& inside) const {
    TensorInfo result{inside.substr(1), {}, {}, "unknown", {}};
    try {
      const DatasetInfo said = hdf5_.info(inside);
      result.shape = said.shape;
      result.type_name = said.type_name;
      result.type = hdf5_.storage(inside).type;
      if (!result.type) hdf5_.fail(inside, text("is ", said.type_name, ", expected numbers"));
    } catch (const FileError& error) {
      result.type.reset();
      result.refusal = error.what();
    }
    return result;
  }

  std::string path(std::size_t index) const { return '/' + tensors[index].name; }

  /// That of the last tensor is kept: reads of one tensor follow each other.
  std::shared_ptr<const DatasetStorage> storage(std::size_t index) const {
    const std::scoped_lock lock(hdf5_library);
    if (index != last_index_) {
      last_storage_ = std::make_shared<const DatasetStorage>(hdf5_.storage(path(index)));
      last_index_ = index;
    }
    return last_storage_;
  }

  void read_chunks(std::size_t index, const DatasetStorage& data, std::int64_t begin,
                   std::span<std::byte> to) const {
    const ChunkGrid grid(data);
    const std::int64_t bytes = element_bytes(*data.type);
    const std::int64_t end = begin + std::int64_t(to.size()) / bytes;
    const std::int64_t first = begin / grid.row_elements() * grid.chunks_per_row();
    const std::int64_t last = ((end - 1) / grid.row_elements() + 1) * grid.chunks_per_row();
    const std::string where = printable(file().path()) + ":" + printable(path(index)) + ": ";
    for (std::int64_t number = first; number < last; ++number) {
      const std::vector<std::int64_t> start = grid.start(number);
      if (!grid.may_hold(start, begin, end)) continue;
      const std::vector<std::byte> elements = decoded_chunk(
          stored_chunk(index, start), data.filters, bytes, grid.chunk_elements() * bytes, where);
      grid.for_each_run(start,
                        [&](std::int64_t in_tensor, std::int64_t in_chunk, std::int64_t count) {
                          const std::int64_t run_begin = std::max(in_tensor, begin);
                          const std::int64_t run_end = std::min(in_tensor + count, end);
                          if (run_begin >= run_end) return;
                          std::memcpy(to.data() + (run_begin - begin) * bytes,
                                      elements.data() + (in_chunk + run_begin - in_tensor) * bytes,
                                      std::size_t((run_end - run_begin) * bytes));
                        });
    }
  }

  StoredChunk stored_chunk(std::size_t index, const std::vector<std::int64_t>& start) const {
    const std::scoped_lock lock(hdf5_library);
    return hdf5_.chunk(path(index), start);
  }

  Hdf5File hdf5_;
  mutable std::size_t last_index_ = std::size_t(-1);
  mutable std::shared_ptr<const DatasetStorage> last_storage_;
};

}  // namespace

std::int64_t TensorInfo::elements() const { return element_count(shape); }

std::int64_t TensorInfo::columns() const {
  return shape.size() < 2 ? elements() : element_count({shape.begin() + 1, shape.end()});
}

TensorFile TensorFile::open(const std::string& path) {
  InputFile file(path, "an HDF5 or a safetensors file");
  // A safetensors header begins with '{' after its length; HDF5 is all else, for its own messages.
  std::array<std::byte, 9> first{};
  if (file.bytes() >= std::int64_t(first.size())) file.read(0, first);
  if (first.back() == std::byte('{') || path.ends_with(".safetensors"))
    return TensorFile(std::make_unique<SafetensorsFormat>(std::move(file)));
  return TensorFile(std::make_unique<Hdf5Format>(std::move(file)));
}

TensorFile::TensorFile(std::unique_ptr<Format> format) : format_(std::move(format)) {}
TensorFile::TensorFile(TensorFile&&) noexcept = default;
TensorFile& TensorFile::operator=(TensorFile&&) noexcept = default;
TensorFile::~TensorFile() = default;

const std::string& TensorFile::path() const { return format_->file().path(); }
std::int64_t TensorFile::file_bytes() const { return format_->file().bytes(); }
const std::vector<TensorInfo>& TensorFile::tensors() const { return format_->tensors; }

const TensorInfo* TensorFile::find(const std::string& name) const {
  const auto found = std::ranges::lower_bound(tensors(), name, {}, &TensorInfo::name);
  return found != tensors().end() && found->name == name ? &*found : nullptr;
}

void TensorFile::read(const TensorInfo& tensor, std::int64_t begin, std::span<std::byte> to) const {
  if (!tensor.type) throw FileError(tensor.refusal);
  const std::int64_t bytes = element_bytes(*tensor.type);
  const std::int64_t count = std::int64_t(to.size()) / bytes, held = tensor.elements();
  if (begin < 0 || count * bytes != std::int64_t(to.size()) || begin > held || count > held - begin)
    throw ShapeError(text(place(tensor), ": has ", held, " elements, asked for ", to.size(),
                          " bytes from element ", begin));
  if (count > 0) format_->read(std::size_t(&tensor - tensors().data()), begin, to);
}

std::int64_t TensorFile::natural_block(const TensorInfo& tensor) const {
  if (!tensor.type || tensor.elements() == 0) return 1;
  return format_->natural_block(std::size_t(&tensor - tensors().data()));
}

std::string TensorFile::place(const TensorInfo& tensor) const {
  return printable(path()) + ":" + printable(tensor.name);
}

}  // namespace tokenview
