// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "reference/program/bfloat16.hpp"

namespace tokenview {

/// Where values are rounded to bfloat16 while a bfloat16 model runs in fp32 arithmetic.
/// none: nowhere. hf, vllm: where those two implementations round; they differ (see the comments at
/// the operations of EigenOps).
enum class Rounding { none, hf, vllm };

}  // namespace tokenview
