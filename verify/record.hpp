// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reference/program/config.hpp"
#include "reference/program/host_tensor.hpp"
#include "reference/program/operations.hpp"
#include "reference/program/rounding.hpp"
#include "verify/device.hpp"
#include "verify/golden_file.hpp"

namespace tokenview {

/// One case to record.
struct RecordedCase {
  std::string name;
  GoldenInputs inputs;
  std::int64_t draft_steps = 0;
};

/// Tokens of one sequence of a case.
struct SequenceLength {
  std::int64_t context;  // processed before the step
  std::int64_t rows;     // new in the step, at least one
};

/// A case with random tokens: token i of sequence s depends on the seed, the case's name, s and i
/// alone, so a longer sequence begins with a shorter one.
RecordedCase seeded_case(const std::string& name, const std::vector<SequenceLength>& sequences,
                         std::int64_t vocab_size, std::uint64_t seed);

/// Cases in words: a comma between cases; each is the name of a known one, or NAME=LENGTHS with a +
/// between sequences; a length is ROWS, or CONTEXT:ROWS. "prefill,mine=3+5,late=7:1+20:1".
/// Known: prefill (10 rows), varlen (5+1+11+2), chunked (70, over one chunk of 64), one (1),
/// decode (7:1+3:1+12:1+1:1). Throws UsageError.
std::vector<RecordedCase> cases_in_words(std::string_view words, std::int64_t vocab_size,
                                         std::uint64_t seed);

/// All known cases, as words.
std::string default_cases();

/// A case with these tokens, IDS or NAME=IDS: a + between sequences; a sequence is TOKENS with
/// commas between them, or CONTEXT:TOKENS with tokens processed before the step. Without a name the
/// case is "ids". "1,2,3", "1,2+3", "late=1,2,3:4". Throws UsageError for what is no such list, and
/// for an id that is not in the vocabulary.
RecordedCase case_of_ids(std::string_view argument, std::int64_t vocab_size);

/// The cases of a golden file, without its taps.
std::vector<RecordedCase> cases_of(const GoldenFile& golden, const ModelConfig& config);

/// What a recording is made from, and how.
struct Recording {
  ModelConfig config;
  std::string config_json;  // as it is stored
  const WeightSource* weights = nullptr;
  std::vector<RecordedCase> cases;
  DType dtype = DType::float32;      // or bfloat16: weights and taps are rounded to it
  Rounding rounding = Rounding::hf;  // where a bfloat16 model rounds
  GdnForm gdn_form = GdnForm::recurrent;
  bool stores_weights = true;   // else the file has weights_fingerprint() in their place
  Device device = Device::cpu;  // cuda: the same program on the first GPU
  int num_threads = 1;
  std::map<std::string, std::string> provenance = {};
  std::function<void(const std::string& case_name)> progress = {};  // called often; may throw
};

/// Throws ConfigError for a model that this machine's memory cannot hold: refused before it runs
/// out.
void require_memory(const ModelConfig& config, double bytes_per_parameter);

/// Writes a golden file with every tap of the serial model, the reference's or a GPU's. `path` has
/// the old content or all of the new one, whatever happens. Throws FileError, ConfigError for a
/// model without arithmetic or with more weights than this machine has memory, DeviceError where
/// there is no GPU.
void record_golden(const Recording& recording, const std::string& path);

}  // namespace tokenview
