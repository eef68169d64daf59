// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "device/pinned_memory.hpp"
#include "reference/program/batch.hpp"

namespace tokenview {

/// The memory that a captured step works in: its addresses stay as they are while the graph lives.
/// A piece that the program has let go serves again for later work of the same step, which runs
/// after all that used it.
class StepMemory : public std::enable_shared_from_this<StepMemory> {
 public:
  /// `allocate` gives device memory of a size in bytes, and takes it back when it goes.
  explicit StepMemory(std::function<std::shared_ptr<void>(std::int64_t)> allocate)
      : allocate_(std::move(allocate)) {}

  std::shared_ptr<void> piece(std::int64_t bytes);

  /// A piece that no other work of the step uses, before or after.
  std::shared_ptr<void> own_piece(std::int64_t bytes);

 private:
  std::function<std::shared_ptr<void>(std::int64_t)> allocate_;
  std::vector<std::shared_ptr<void>> all_;
  std::multimap<std::int64_t, void*> free_;  // by size in bytes
};

/// What a captured step reads of its batch on the GPU: functions of the batch, each with a place in
/// device memory that the kernels of the step know. update() evaluates them for another batch.
class GraphInputs {
 public:
  /// Writes values for a batch into host memory of the input's size, which is zero before. Throws
  /// what makes the batch unfit.
  using Write = std::function<void(const Batch&, std::span<std::byte>)>;

  /// A place of `bytes` bytes for what `write` gives; filled by update() only.
  std::shared_ptr<void> add(Write write, std::int64_t bytes, StepMemory& memory);

  /// Queues the copy of all inputs for `batch` on `stream`. The host waits for the copies of the
  /// update before, no longer.
  void update(const Batch& batch, cudaStream_t stream);

 private:
  /// Inputs are packed, so that a step needs a copy or two.
  struct Pack {
    std::shared_ptr<void> device;
    PinnedMemory host;
    std::int64_t used, capacity;  // bytes
  };
  struct Input {
    Write write;
    std::span<std::byte> host;
  };
  std::vector<Pack> packs_;
  std::vector<Input> inputs_;
  StreamEvent copied_;
};

/// What the host knew of the GPU's memory (the slots of a cache, say) before the inputs of a step
/// changed it.
class NotesBefore {
 public:
  template <class X>
  void keep(X& notes) {
    restore_.push_back([&notes, before = notes] { notes = before; });
  }
  void restore() {
    for (; !restore_.empty(); restore_.pop_back()) restore_.back()();
  }

 private:
  std::vector<std::function<void()>> restore_;
};

/// A step while it is captured, and what its graph keeps afterwards.
struct StepRecording {
  explicit StepRecording(std::shared_ptr<StepMemory> of_step) : memory(std::move(of_step)) {}

  std::shared_ptr<StepMemory> memory;
  GraphInputs inputs;
  const Batch* batch = nullptr;  // the one that is captured
};

}  // namespace tokenview
