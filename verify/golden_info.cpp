// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ostream>

#include "reference/program/config_json.hpp"
#include "reference/program/error.hpp"
#include "reference/program/nearest.hpp"
#include "verify/file_info.hpp"
#include "verify/hdf5_text.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t max_tp = 16;  // legal degrees are listed up to this one

/// Degrees of tensor parallelism that an engine would start this model with.
std::vector<std::int64_t> legal_tp(const ModelConfig& config) {
  std::vector<std::int64_t> degrees;
  for (std::int64_t tp = 1; tp <= max_tp; ++tp) {
    try {
      validate(config, ParallelConfig{.tp = tp});
      degrees.push_back(tp);
    } catch (const ConfigError&) {  // an illegal degree is the answer, not a failure
    }
  }
  return degrees;
}

std::vector<std::int64_t> lengths(const std::vector<std::int32_t>& starts) {
  std::vector<std::int64_t> result;
  for (std::size_t s = 0; s + 1 < starts.size(); ++s) result.push_back(starts[s + 1] - starts[s]);
  return result;
}

/// Rows of each sequence with its context in front: "5+1+11", "7:1+3:1".
std::string sequences_text(const GoldenInputs& inputs) {
  const auto rows = lengths(inputs.query_start_loc), context = lengths(inputs.context_start_loc);
  std::string line;
  for (std::size_t s = 0; s < rows.size(); ++s) {
    if (s > 0) line += '+';
    if (context[s] > 0) line += std::to_string(context[s]) + ':';
    line += std::to_string(rows[s]);
  }
  return line;
}

}  // namespace

void FileInfo::print_golden(const GoldenFile& golden) const {
  const std::string source = printable(golden.path()) + ":/config";
  const ConfigReading reading = read_config_json(golden.config_json(), source);
  const ModelConfig& config = reading.config;
  std::int64_t parameters = 0;
  for (const auto& [name, shape] : golden.weight_shapes()) parameters += element_count(shape);
  const std::int64_t bytes = golden.file().file_bytes();
  const auto attributes = provenance(golden.file());

  if (!as_records_) {
    out_ << fmt::format("{}: golden file, {}, {}, {}\n", printable(golden.path()),
                        golden.model_type(), to_string(golden.dtype()), size_text(bytes));
    print_config(config);
    if (golden.weight_shapes().empty())
      print_line("weights", "not in the file");
    else
      print_line("weights",
                 fmt::format("{} parameters in {} tensors, MTP {}", parameters,
                             golden.weight_shapes().size(),
                             golden.contains("mtp.fc.weight") ? "included" : "not included"));
    print_line("legal tp", fmt::format("{} (up to {})", fmt::join(legal_tp(config), ", "), max_tp));
    if (!reading.ignored_keys.empty()) print_line("ignored keys", joined(reading.ignored_keys));
    print_line("producer", golden.producer());
    for (const auto& [name, value] : attributes) print_line("", text(name, ": ", value));
  } else {
    ReportRecord record{.kind = "file", .file = golden.path()};
    record.more = {{"type", "golden"},
                   {"bytes", bytes},
                   {"model_type", golden.model_type()},
                   {"dtype", to_string(golden.dtype())},
                   {"num_hidden_layers", config.num_hidden_layers},
                   {"hidden_size", config.hidden_size},
                   {"vocab_size", config.vocab_size},
                   {"num_experts", config.num_experts},
                   {"num_experts_per_tok", config.num_experts_per_tok},
                   {"parameters", parameters},
                   {"weights", std::int64_t(golden.weight_shapes().size())},
                   {"legal_tp", legal_tp(config)},
                   {"producer", golden.producer()}};
    if (!reading.ignored_keys.empty())
      record.more.emplace_back("ignored_keys", reading.ignored_keys);
    for (const auto& [name, value] : attributes)
      record.more.emplace_back("provenance." + name, value);
    print_record(record);
  }
  if (verbosity_ >= 2)
    for (const auto& [name, shape] : golden.weight_shapes())
      print_tap(golden.file(), {.kind = "dataset", .file = golden.path(), .tap = name},
                GoldenFile::weight_path(name), "weight " + name);
  for (const std::string& name : golden.case_names()) print_case(golden, config, name);
}

void FileInfo::print_config(const ModelConfig& config) const {
  const auto full =
      std::count(config.layer_types.begin(), config.layer_types.end(), LayerType::full_attention);
  std::int64_t sparse = 0;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) sparse += config.is_moe_layer(i);
  print_line("layers",
             fmt::format("{}: {} gated delta net, {} full attention; {} sparse, {} dense",
                         config.num_hidden_layers, std::int64_t(config.layer_types.size()) - full,
                         full, sparse, config.num_hidden_layers - sparse));
  print_line("sizes",
             fmt::format("hidden {}, vocabulary {}", config.hidden_size, config.vocab_size));
  print_line("attention", fmt::format("{} heads of {}, {} key/value heads, rotary {}",
                                      config.num_attention_heads, config.head_dim,
                                      config.num_key_value_heads, config.rotary_dim));
  if (config.has_arithmetic())
    print_line("delta net", fmt::format("{} key heads of {}, {} value heads of {}, convolution {}",
                                        config.linear_num_key_heads, config.linear_key_head_dim,
                                        config.linear_num_value_heads, config.linear_value_head_dim,
                                        config.linear_conv_kernel_dim));
  print_line("experts", fmt::format("{}, {} a token, width {}, shared {}", config.num_experts,
                                    config.num_experts_per_tok, config.moe_intermediate_size,
                                    config.shared_expert_intermediate_size));
  if (sparse < config.num_hidden_layers)
    print_line("dense", fmt::format("width {}", config.intermediate_size));
}

void FileInfo::print_case(const GoldenFile& golden, const ModelConfig& config,
                          const std::string& name) const {
  const GoldenInputs inputs = golden.inputs(name, config.vocab_size);
  const std::int64_t steps = golden.mtp_step_count(name);
  const std::vector<std::string> taps = golden.tap_names(name);
  std::int64_t count = std::int64_t(taps.size());
  for (std::int64_t j = 0; j < steps; ++j)
    count += std::int64_t(golden.mtp_tap_names(name, j).size());
  if (steps > 0) count += 1;  // draft_ids

  if (!as_records_) {
    out_ << fmt::format("  case {}: T = {} in {} ({}), {}, {}\n", printable(name),
                        inputs.num_tokens(), plural(inputs.num_sequences(), "sequence"),
                        sequences_text(inputs), plural(steps, "draft step"), plural(count, "tap"));
  } else {
    print_record({.kind = "step",
                  .file = golden.path(),
                  .case_name = name,
                  .more = {{"tokens", inputs.num_tokens()},
                           {"sequences", inputs.num_sequences()},
                           {"rows", lengths(inputs.query_start_loc)},
                           {"context", lengths(inputs.context_start_loc)},
                           {"draft_steps", steps},
                           {"taps", count}}});
  }
  if (verbosity_ < 1) return;
  const auto print = [&](const std::string& step, const std::string& tap,
                         const std::string& inside) {
    print_tap(
        golden.file(),
        {.kind = "dataset", .file = golden.path(), .case_name = name, .step = step, .tap = tap},
        inside, step + '/' + tap);
  };
  for (const std::string& tap : taps) print("target", tap, GoldenFile::tap_path(name, tap));
  for (std::int64_t j = 0; j < steps; ++j)
    for (const std::string& tap : golden.mtp_tap_names(name, j))
      print(text("step", j), tap, GoldenFile::mtp_path(name, j, tap));
  if (steps > 0) print("target", "draft_ids", GoldenFile::draft_ids_path(name));
}

}  // namespace tokenview
