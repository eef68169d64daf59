// SPDX-License-Identifier: Apache-2.0
#include "device/step_recording.hpp"

#include <algorithm>
#include <cstring>

namespace tokenview {
namespace {

constexpr std::int64_t alignment = 256;  // bytes: of pieces and inputs, for any access of a kernel
constexpr std::int64_t pack_bytes = 1 << 16;

std::int64_t aligned(std::int64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

}  // namespace

std::shared_ptr<void> StepMemory::piece(std::int64_t bytes) {
  const std::int64_t size = aligned(bytes);
  void* data = nullptr;
  if (const auto found = free_.find(size); found != free_.end()) {
    data = found->second;
    free_.erase(found);
  } else {
    data = all_.emplace_back(allocate_(size)).get();
  }
  return {data,
          [memory = shared_from_this(), size](void* piece) { memory->free_.emplace(size, piece); }};
}

std::shared_ptr<void> StepMemory::own_piece(std::int64_t bytes) {
  return all_.emplace_back(allocate_(aligned(bytes)));
}

std::shared_ptr<void> GraphInputs::add(Write write, std::int64_t bytes, StepMemory& memory) {
  const std::int64_t size = aligned(bytes);
  if (packs_.empty() || packs_.back().used + size > packs_.back().capacity) {
    const std::int64_t capacity = std::max(size, pack_bytes);
    packs_.push_back({memory.own_piece(capacity), pinned_memory(capacity), 0, capacity});
  }
  Pack& pack = packs_.back();
  inputs_.push_back({std::move(write), {pack.host.get() + pack.used, std::size_t(bytes)}});
  std::shared_ptr<void> place(pack.device, static_cast<std::byte*>(pack.device.get()) + pack.used);
  pack.used += size;
  return place;
}

void GraphInputs::update(const Batch& batch, cudaStream_t stream) {
  copied_.wait();
  for (const Pack& pack : packs_) std::memset(pack.host.get(), 0, std::size_t(pack.used));
  for (const Input& input : inputs_) input.write(batch, input.host);
  for (const Pack& pack : packs_)
    check(cudaMemcpyAsync(pack.device.get(), pack.host.get(), std::size_t(pack.used),
                          cudaMemcpyHostToDevice, stream),
          "copy of a step's inputs");
  copied_.record(stream);
}

}  // namespace tokenview
