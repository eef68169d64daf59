// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tokenview {

/// Where a model runs. `automatic`: on a GPU where there is one that this build can use.
enum class Device { cpu, cuda, automatic };

/// What `device` comes to on this machine: cpu or cuda. Throws DeviceError where a GPU is demanded
/// and there is none, as in every build without CUDA.
Device usable(Device device);

}  // namespace tokenview
