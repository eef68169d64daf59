// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "device/assert_record.hpp"
#include "verify/executor.hpp"
#include "verify/launcher.hpp"
#include "verify/scenario.hpp"

namespace tokenview {

/// How one process that ran a scenario's variant with numbers on a GPU ended; it tells in a line of
/// JSON.
struct DeviceEnd {
  std::string unusable = {};  // why there is no GPU to run on; empty: it ran
  std::string device = {};    // "GPU 0 (NVIDIA H200)"
  /// Whether the process was one rank of several; else it ran all of them as virtual ranks.
  std::optional<std::int64_t> rank = {};
  std::string error = {};       // what stopped the run, and where that was noticed; or empty
  bool is_gpu_error = false;    // the error is one of the GPU, an assert or another
  std::string cuda_error = {};  // "cudaErrorAssert": what has ended the CUDA context
  std::string reached = {};     // the tensor that was named last before the error
  std::optional<AssertRecord> record = {};  // of the first assert
  std::string printed = {};                 // by the assert, on standard error

  // A run that came to its end, beside the same run on the CPU in float32.
  std::int64_t taps = 0, values = 0;
  double worst = 0;            // largest of |difference| / max(1, max|value of the tap|)
  std::string worst_tap = {};  // with the rank in front
  std::string cpu_error = {};  // what stopped the run on the CPU, where it stopped on the GPU

  bool ran_to_its_end() const { return unusable.empty() && error.empty(); }
  bool matches_cpu() const { return ran_to_its_end() && taps > 0 && worst <= allowed; }

  /// The acceptance of two float32 runs of a whole model: golden files' (docs/gpu.md).
  static constexpr double allowed = 1e-4;
};

/// An index that the token views say to be out of range in the row gather: what its kernel asserts.
struct PredictedAssert {
  RankCoordinates at;
  std::int64_t index, bound;
};
std::vector<PredictedAssert> predicted_asserts(const std::vector<Finding>& findings);

/// Whether the assert is one of those predicted: the same rank, index and bound.
bool is_predicted(const AssertRecord& record, const std::vector<PredictedAssert>& predicted);

/// Whether the error of a run on a GPU is a device-side assert.
bool is_device_assert(const std::string& error);

/// Throws ConfigError, in the name of `source`, for a fault that cannot be injected on a GPU.
void require_faults_on_gpu(const std::string& source, const std::vector<InjectedFault>& faults);

/// The same for the faults of a variant; and for a model without arithmetic.
void require_on_gpu(const Scenario& scenario, const ScenarioVariant& variant);

/// How that process ended, beside what the token views say of it.
struct DeviceVerdict {
  const char* word;  // "device assert", "match", "difference" (of the CPU's numbers), "stopped"
  bool agrees;       // with the views
};
/// Throws DeviceError where the GPU failed otherwise than by an assert. `predicted` are those of
/// all ranks, `any_assert` says whether a process of the same run asserted.
DeviceVerdict judged(const DeviceEnd& end, const std::vector<PredictedAssert>& predicted,
                     bool any_assert);

/// The child's part: runs the variant, with its target, on virtual ranks of the first GPU, or as
/// one rank over NCCL, and tells `out` how that ended. CUDA may be of no use to this process
/// afterwards.
void tell_device_end(const Scenario& scenario, const ScenarioVariant& variant, CommKind comm,
                     std::ostream& out);

/// The parent's part: runs the processes, each of which calls tell_device_end() with standard
/// output. Throws DeviceError for one that ended without a word, and says how.
std::vector<DeviceEnd> device_ends(const Launch& processes);

}  // namespace tokenview
