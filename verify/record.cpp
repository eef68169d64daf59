// SPDX-License-Identifier: Apache-2.0
#include "verify/record.hpp"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <system_error>
#include <utility>

#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/case_runner.hpp"
#include "verify/golden_weights.hpp"
#include "verify/golden_writer.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/weights_of_type.hpp"

namespace tokenview {
namespace {

struct KnownCase {
  const char* name;
  const char* lengths;
};
constexpr KnownCase known_cases[] = {{"prefill", "10"},
                                     {"varlen", "5+1+11+2"},
                                     {"chunked", "70"},
                                     {"one", "1"},
                                     {"decode", "7:1+3:1+12:1+1:1"}};

// A case has all its taps in memory for a moment, and attention is quadratic.
constexpr std::int64_t max_case_tokens = 1 << 17;

/// Source: Steele, Lea & Flood 2014, SplitMix64, the finaliser.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::int64_t seeded_token(std::uint64_t seed, std::string_view name, std::uint64_t sequence,
                          std::uint64_t index, std::int64_t vocab_size) {
  std::uint64_t key = mixed(seed);
  for (const char c : name) key = mixed(key ^ static_cast<unsigned char>(c));
  key = mixed(mixed(key ^ sequence) ^ index);
  return std::int64_t(key % std::uint64_t(vocab_size));
}

std::vector<std::string_view> split(std::string_view words, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t end = words.find(separator);
    parts.push_back(words.substr(0, end));
    if (end == std::string_view::npos) return parts;
    words.remove_prefix(end + 1);
  }
}

/// A whole number and nothing else, from `least` to `most`.
std::optional<std::int64_t> whole_number(std::string_view word, std::int64_t least,
                                         std::int64_t most) {
  std::int64_t value = 0;
  const auto [stop, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || stop != word.data() + word.size() || value < least || value > most)
    return std::nullopt;
  return value;
}

std::int64_t token_count(std::string_view word, std::int64_t least, std::string_view all) {
  if (const auto value = whole_number(word, least, max_case_tokens)) return *value;
  throw UsageError(text("cases: '", word, "' in '", all, "' is no number of tokens from ", least,
                        " to ", max_case_tokens));
}

/// What stands in front of the first `separator`, if there is one, and what follows it.
std::pair<std::optional<std::string_view>, std::string_view> around(std::string_view word,
                                                                    char separator) {
  const std::size_t at = word.find(separator);
  if (at == std::string_view::npos) return {std::nullopt, word};
  return {word.substr(0, at), word.substr(at + 1)};
}

void require_case_name(const std::string& name) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
      escaped(name) != name)
    throw UsageError(text("cases: '", printable(name),
                          "' is no name of a case, expected UTF-8 without '/' and control "
                          "characters"));
}

/// "3+7:1"
std::vector<SequenceLength> lengths_in_words(std::string_view words) {
  std::vector<SequenceLength> lengths;
  std::int64_t total = 0;
  for (const std::string_view part : split(words, '+')) {
    const auto [context, rows] = around(part, ':');
    const SequenceLength length{context ? token_count(*context, 0, words) : 0,
                                token_count(rows, 1, words)};
    lengths.push_back(length);
    total += length.context + length.rows;
    if (total > max_case_tokens)
      throw UsageError(
          text("cases: '", words, "' has more tokens than ", max_case_tokens, " in a case"));
  }
  return lengths;
}

/// "1,2,3"
std::vector<std::int64_t> ids_in_words(std::string_view words, std::string_view all,
                                       std::int64_t vocab_size) {
  std::vector<std::int64_t> ids;
  for (const std::string_view word : split(words, ',')) {
    const auto id = whole_number(word, 0, vocab_size - 1);
    if (!id)
      throw UsageError(text("ids: '", printable(std::string(word)), "' in '",
                            printable(std::string(all)), "' is no token id from 0 to ",
                            vocab_size - 1, " (vocabulary of ", vocab_size, ")"));
    ids.push_back(*id);
  }
  return ids;
}

/// Adds a sequence to a case.
void append_sequence(GoldenInputs& inputs, const std::vector<std::int64_t>& context,
                     const std::vector<std::int64_t>& rows) {
  if (inputs.query_start_loc.empty()) inputs.query_start_loc = inputs.context_start_loc = {0};
  inputs.context_ids.insert(inputs.context_ids.end(), context.begin(), context.end());
  inputs.input_ids.insert(inputs.input_ids.end(), rows.begin(), rows.end());
  for (std::size_t i = 0; i < rows.size(); ++i)
    inputs.positions.push_back(std::int64_t(context.size() + i));
  inputs.query_start_loc.push_back(std::int32_t(inputs.input_ids.size()));
  inputs.context_start_loc.push_back(std::int32_t(inputs.context_ids.size()));
}

/// Writes the taps of one case as the model makes them.
class TapWriter final : public CaseObserver<float> {
 public:
  TapWriter(GoldenWriter& writer, const Recording& recording, const RecordedCase& recorded)
      : writer_(writer), recording_(recording), case_(recorded) {}

  void tensor(const ModulePath& module, const char* leaf, Matrix<float>& value) override {
    write(module.str(leaf), value);
  }

  void routing(const ModulePath& module, EigenOps<float>::Routing& value) override {
    const IntegerTensor ids{{value.ids.rows(), value.ids.cols()},
                            {value.ids.data(), value.ids.data() + value.ids.size()}};
    const std::string name = module.str("ids");
    if (step_ < 0)
      writer_.write_tap_ids(case_.name, name, ids);
    else
      writer_.write_mtp_ids(case_.name, step_, name, ids);
    write(module.str("weights"), value.weights);
  }

  void lm_head(const Matrix<float>& logits) override { write("lm_head", logits); }

  void before_step(std::size_t step, std::vector<std::int64_t>& ids, const Batch& batch) override {
    step_ = std::int64_t(step);
    const std::int64_t rows = batch.num_tokens();
    writer_.write_mtp_ids(case_.name, step_, "input_ids", {{rows}, ids});
    writer_.write_mtp_ids(case_.name, step_, "positions", {{rows}, batch.positions});
  }

  void after_step(std::size_t, const Matrix<float>& logits) override { write("logits", logits); }

  void drafts(const std::vector<std::vector<std::int64_t>>& by_step) {
    const std::int64_t steps = std::int64_t(by_step.size());
    const std::int64_t sequences = case_.inputs.num_sequences();
    if (steps == 0) return;
    IntegerTensor ids{{sequences, steps}, {}};
    for (std::size_t s = 0; s < std::size_t(sequences); ++s)
      for (const auto& of_step : by_step) ids.values.push_back(of_step[s]);
    writer_.write_draft_ids(case_.name, ids);
  }

 private:
  void write(const std::string& name, const Matrix<float>& value) {
    if (recording_.progress) recording_.progress(case_.name);
    HostTensor tensor{{value.rows(), value.cols()},
                      {value.data(), value.data() + value.size()},
                      recording_.dtype};
    // What a bfloat16 model keeps in float32 (vLLM's routing weights) is stored so.
    const auto is_rounded = [](float x) { return x == round_to_bf16(x); };
    if (tensor.dtype == DType::bfloat16 &&
        !std::all_of(tensor.values.begin(), tensor.values.end(), is_rounded))
      tensor.dtype = DType::float32;
    if (step_ < 0)
      writer_.write_tap(case_.name, name, tensor);
    else
      writer_.write_mtp_tap(case_.name, step_, name, tensor);
  }

  GoldenWriter& writer_;
  const Recording& recording_;
  const RecordedCase& case_;
  std::int64_t step_ = -1;  // of the draft; -1 in the target model
};

}  // namespace

void require_memory(const ModelConfig& config, double bytes_per_parameter) {
  const ParameterCount parameters = parameter_count(config);
  const double needed = double(parameters.model + parameters.mtp) * bytes_per_parameter;
  const double memory = double(sysconf(_SC_PHYS_PAGES)) * double(sysconf(_SC_PAGESIZE));
  if (needed > 0.9 * memory)
    throw ConfigError(text("the weights of this model take ", std::int64_t(needed / 1e9),
                           " GB, and this machine has ", std::int64_t(memory / 1e9),
                           " GB of memory: expected a smaller model"));
}

RecordedCase seeded_case(const std::string& name, const std::vector<SequenceLength>& sequences,
                         std::int64_t vocab_size, std::uint64_t seed) {
  RecordedCase result{name, {}, 0};
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const auto [context, rows] = sequences[s];
    std::vector<std::int64_t> tokens;
    for (std::int64_t i = 0; i < context + rows; ++i)
      tokens.push_back(seeded_token(seed, name, s, std::uint64_t(i), vocab_size));
    append_sequence(result.inputs, {tokens.begin(), tokens.begin() + context},
                    {tokens.begin() + context, tokens.end()});
  }
  return result;
}

RecordedCase case_of_ids(std::string_view argument, std::int64_t vocab_size) {
  const auto [name, words] = around(argument, '=');
  RecordedCase result{std::string(name.value_or("ids")), {}, 0};
  require_case_name(result.name);
  for (const std::string_view sequence : split(words, '+')) {
    const auto [context, rows] = around(sequence, ':');
    append_sequence(
        result.inputs,
        context ? ids_in_words(*context, words, vocab_size) : std::vector<std::int64_t>(),
        ids_in_words(rows, words, vocab_size));
    if (result.inputs.num_tokens() + std::int64_t(result.inputs.context_ids.size()) >
        max_case_tokens)
      throw UsageError(text("ids: more than ", max_case_tokens, " tokens, expected fewer"));
  }
  return result;
}

std::vector<RecordedCase> cases_in_words(std::string_view words, std::int64_t vocab_size,
                                         std::uint64_t seed) {
  std::vector<RecordedCase> cases;
  std::vector<std::string> known;
  for (const KnownCase& each : known_cases) known.push_back(each.name);
  for (const std::string_view word : split(words, ',')) {
    const auto [own_name, own_lengths] = around(word, '=');
    const std::string name(own_name.value_or(word));
    require_case_name(name);
    for (const RecordedCase& other : cases)
      if (other.name == name) throw UsageError(text("cases: '", name, "' comes twice"));
    std::string_view lengths = own_lengths;
    if (!own_name) {
      lengths = {};
      for (const KnownCase& each : known_cases)
        if (name == each.name) lengths = each.lengths;
      if (lengths.empty())
        throw UsageError(text("cases: '", name, "' is none of ", joined(known),
                              suggestion(name, known), "; a case of your own is NAME=LENGTHS"));
    }
    cases.push_back(seeded_case(name, lengths_in_words(lengths), vocab_size, seed));
  }
  return cases;
}

std::string default_cases() {
  std::string words;
  for (const KnownCase& each : known_cases)
    words += (words.empty() ? "" : ",") + std::string(each.name);
  return words;
}

std::vector<RecordedCase> cases_of(const GoldenFile& golden, const ModelConfig& config) {
  std::vector<RecordedCase> cases;
  for (const std::string& name : golden.case_names())
    cases.push_back({name, golden.inputs(name, config.vocab_size), golden.mtp_step_count(name)});
  return cases;
}

void record_golden(const Recording& recording, const std::string& path) {
  require_arithmetic(recording.config);
  require_memory(recording.config, sizeof(float));
  for (const RecordedCase& recorded : recording.cases)
    if (recorded.draft_steps > 0 && !recording.weights->contains("mtp.fc.weight"))
      throw ConfigError(text("case '", printable(recorded.name), "' has ", recorded.draft_steps,
                             " draft steps, and the model has no weights mtp.*"));
  GoldenHeader header{.model_type = to_string(recording.config.model_type),
                      .dtype = recording.dtype,
                      .producer = "tokenview reference",
                      .config_json = recording.config_json,
                      .provenance = recording.provenance};
  if (const auto version = recording.provenance.find("version");
      version != recording.provenance.end())
    header.producer = "tokenview " + version->second;
  GoldenWriter writer(path, header);
  const WeightsOfType weights(*recording.weights, recording.dtype, recording.progress);
  if (!recording.stores_weights)
    writer.write_attribute(fingerprint_attribute, weights_fingerprint(weights, recording.config));
  for (const WeightShape& weight : weight_shapes(recording.config)) {
    if (!recording.stores_weights) break;
    // A model may come without its MTP part; any other weight must be there.
    if (weight.name.starts_with("mtp.") && !weights.contains(weight.name)) continue;
    writer.write_weight(weight.name, weights.weight(weight.name, weight.shape));
  }

  const EigenOps<float> ops(
      recording.num_threads,
      recording.dtype == DType::bfloat16 ? recording.rounding : Rounding::none, recording.gdn_form);
  const auto model = runner_on(recording.device, recording.config, weights, ops);
  for (const RecordedCase& recorded : recording.cases) {
    writer.write_inputs(recorded.name, recorded.inputs);
    TapWriter taps(writer, recording, recorded);
    taps.drafts(model->run(recorded.inputs, recorded.draft_steps, taps));
  }
  writer.commit();
}

}  // namespace tokenview
