// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>

#include "reference/program/config_json.hpp"
#include "reference/program/seeded_weights.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/report.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t max_tp = 16;  // legal degrees are listed up to this one

struct InfoArguments {
  std::vector<std::string> files;
  OutputFormat format = OutputFormat::text;
  int verbosity = 0;
};

std::string size_text(std::int64_t bytes) {
  if (bytes < 10'000) return fmt::format("{} bytes", bytes);
  if (bytes < 10'000'000) return fmt::format("{:.1f} kB", double(bytes) / 1e3);
  return fmt::format("{:.1f} MB", double(bytes) / 1e6);
}

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

/// Attributes of `/` beyond those of every file.
std::map<std::string, std::string> provenance(const Hdf5File& file) {
  std::map<std::string, std::string> found;
  for (const std::string& name : file.attribute_names("/")) {
    if (name == "schema" || name == "schema_version" || name == "model_type" || name == "dtype" ||
        name == "producer")
      continue;
    try {
      found[name] = file.string_attribute("/", name);
    } catch (const FileError&) {
      found[name] = std::to_string(file.int_attribute("/", name));
    }
  }
  return found;
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

/// What a file is, in lines for people or in records.
class InfoPrinter {
 public:
  InfoPrinter(const InfoArguments& arguments) : arguments_(arguments) {}

  void print(const std::string& path) {
    const Hdf5File file = Hdf5File::open_read(path);
    const std::string schema =
        file.has_attribute("/", "schema") ? file.string_attribute("/", "schema") : "";
    if (schema == "tokenview.dump")
      print_dump(file);
    else if (schema == "tokenview.golden")
      print_golden(GoldenFile::open(path));
    else
      file.fail("/", schema.empty()
                         ? "has no attribute 'schema', expected 'tokenview.golden' or 'tokenview.dump'"
                         : text("schema is '", printable(schema),
                                "', expected 'tokenview.golden' or 'tokenview.dump'"));
  }

 private:
  bool as_text() const { return arguments_.format == OutputFormat::text; }

  static void line(const char* name, const std::string& value) {
    std::cout << fmt::format("  {:<12}{}\n", name, printable_line(value));
  }

  /// Text of the file itself may hold anything.
  static std::string printable_line(const std::string& raw) {
    return std::all_of(raw.begin(), raw.end(), [](unsigned char c) { return c >= 0x20 && c < 0x7f; })
               ? raw
               : printable(raw);
  }

  static void write(const ReportRecord& record) { std::cout << json_line(record) << '\n'; }

  void print_golden(const GoldenFile& golden) const {
    const std::string source = printable(golden.path()) + ":/config";
    const ConfigReading reading = read_config_json(golden.config_json(), source);
    if (!reading.ignored_keys.empty())
      print_note(text(source, ": ignored configuration keys: ", joined(reading.ignored_keys)));
    const ModelConfig& config = reading.config;
    std::int64_t parameters = 0;
    for (const auto& [name, shape] : golden.weight_shapes()) parameters += element_count(shape);
    const std::int64_t bytes = golden.file().file_bytes();
    const auto attributes = provenance(golden.file());

    if (as_text()) {
      std::cout << fmt::format("{}: golden file, {}, {}, {}\n", printable(golden.path()),
                               golden.model_type(), to_string(golden.dtype()), size_text(bytes));
      print_config(config);
      line("weights", fmt::format("{} parameters in {} tensors, MTP {}", parameters,
                                  golden.weight_shapes().size(),
                                  golden.contains("mtp.fc.weight") ? "included" : "not included"));
      line("legal tp", fmt::format("{} (up to {})", fmt::join(legal_tp(config), ", "), max_tp));
      line("producer", golden.producer());
      for (const auto& [name, value] : attributes) line("", name + ": " + value);
    } else {
      ReportRecord record{.kind = "summary", .file = golden.path()};
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
      for (const auto& [name, value] : attributes)
        record.more.emplace_back("provenance." + name, value);
      write(record);
    }
    if (arguments_.verbosity >= 2)
      for (const auto& [name, shape] : golden.weight_shapes())
        print_tap(golden.file(), {.kind = "tap", .file = golden.path(), .tap = name},
                  GoldenFile::weight_path(name), "weight " + name);
    for (const std::string& name : golden.case_names()) print_case(golden, config, name);
  }

  static void print_config(const ModelConfig& config) {
    const auto full = std::count(config.layer_types.begin(), config.layer_types.end(),
                                 LayerType::full_attention);
    std::int64_t sparse = 0;
    for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) sparse += config.is_moe_layer(i);
    line("layers", fmt::format("{}: {} gated delta net, {} full attention; {} sparse, {} dense",
                               config.num_hidden_layers,
                               std::int64_t(config.layer_types.size()) - full, full, sparse,
                               config.num_hidden_layers - sparse));
    line("sizes", fmt::format("hidden {}, vocabulary {}", config.hidden_size, config.vocab_size));
    line("attention",
         fmt::format("{} heads of {}, {} key/value heads, rotary {}", config.num_attention_heads,
                     config.head_dim, config.num_key_value_heads, config.rotary_dim));
    if (config.has_arithmetic())
      line("delta net",
           fmt::format("{} key heads of {}, {} value heads of {}, convolution {}",
                       config.linear_num_key_heads, config.linear_key_head_dim,
                       config.linear_num_value_heads, config.linear_value_head_dim,
                       config.linear_conv_kernel_dim));
    line("experts", fmt::format("{}, {} a token, width {}, shared {}", config.num_experts,
                                config.num_experts_per_tok, config.moe_intermediate_size,
                                config.shared_expert_intermediate_size));
    if (sparse < config.num_hidden_layers)
      line("dense", fmt::format("width {}", config.intermediate_size));
  }

  void print_case(const GoldenFile& golden, const ModelConfig& config,
                  const std::string& name) const {
    const GoldenInputs inputs = golden.inputs(name, config.vocab_size);
    const std::int64_t steps = golden.mtp_step_count(name);
    const std::vector<std::string> taps = golden.tap_names(name);
    std::int64_t count = std::int64_t(taps.size());
    for (std::int64_t j = 0; j < steps; ++j)
      count += std::int64_t(golden.mtp_tap_names(name, j).size());
    if (steps > 0) count += 1;  // draft_ids

    if (as_text()) {
      std::cout << fmt::format("  case {}: T = {} in {} sequences ({}), {} draft steps, {} taps\n",
                               printable(name), inputs.num_tokens(), inputs.num_sequences(),
                               sequences_text(inputs), steps, count);
    } else {
      write({.kind = "case",
             .file = golden.path(),
             .case_name = name,
             .more = {{"tokens", inputs.num_tokens()},
                      {"sequences", inputs.num_sequences()},
                      {"rows", lengths(inputs.query_start_loc)},
                      {"context", lengths(inputs.context_start_loc)},
                      {"draft_steps", steps},
                      {"taps", count}}});
    }
    if (arguments_.verbosity < 1) return;
    const auto print = [&](const std::string& step, const std::string& tap,
                           const std::string& inside) {
      print_tap(golden.file(),
                {.kind = "tap", .file = golden.path(), .case_name = name, .step = step, .tap = tap},
                inside, step + '/' + tap);
    };
    for (const std::string& tap : taps) print("target", tap, GoldenFile::tap_path(name, tap));
    for (std::int64_t j = 0; j < steps; ++j)
      for (const std::string& tap : golden.mtp_tap_names(name, j))
        print(text("step", j), tap, GoldenFile::mtp_path(name, j, tap));
    if (steps > 0) print("target", "draft_ids", GoldenFile::draft_ids_path(name));
  }

  void print_tap(const Hdf5File& file, ReportRecord record, const std::string& inside,
                 const std::string& title) const {
    const DatasetInfo info = file.info(inside);
    if (as_text()) {
      std::cout << fmt::format("    {}: {} {}, {}\n", printable(title), info.type_name,
                               to_string(info.shape), size_text(info.stored_bytes));
      return;
    }
    record.more = {
        {"dtype", info.type_name}, {"shape", info.shape}, {"bytes", info.stored_bytes}};
    write(record);
  }

  void print_dump(const Hdf5File& file) const {
    const std::vector<std::string> ranks = file.children("/ranks").groups;
    const std::string producer =
        file.has_attribute("/", "producer") ? file.string_attribute("/", "producer") : "";
    if (as_text()) {
      std::cout << fmt::format("{}: dump of {} rank{}, {}\n", printable(file.path()), ranks.size(),
                               ranks.size() == 1 ? "" : "s", size_text(file.file_bytes()));
      line("producer", producer);
      for (const auto& [name, value] : provenance(file)) line("", name + ": " + value);
    } else {
      write({.kind = "summary",
             .file = file.path(),
             .more = {{"type", "dump"},
                      {"bytes", file.file_bytes()},
                      {"ranks", std::int64_t(ranks.size())},
                      {"producer", producer}}});
    }
    for (const std::string& rank : ranks) print_rank(file, rank);
  }

  void print_rank(const Hdf5File& file, const std::string& rank) const {
    const std::string inside = "/ranks/" + rank;
    const std::int64_t number = file.int_attribute(inside, "rank");
    std::string place;
    for (const char* const group : {"tp", "dp", "pp", "ep"}) {
      const std::string name = group;
      if (file.has_attribute(inside, name + "_rank") && file.has_attribute(inside, name + "_size"))
        place += fmt::format(" {}={}/{}", name, file.int_attribute(inside, name + "_rank"),
                             file.int_attribute(inside, name + "_size"));
    }
    if (as_text()) std::cout << fmt::format("  rank {}:{}\n", number, place);
    for (const std::string& step : file.children(inside + "/steps").groups)
      print_step(file, inside + "/steps/" + step, number, step);
  }

  void print_step(const Hdf5File& file, const std::string& inside, std::int64_t rank,
                  const std::string& step) const {
    std::vector<std::pair<std::string, std::string>> taps;  // title, path inside
    const auto add = [&](const std::string& group, const std::string& title) {
      for (const std::string& name : file.children(group).datasets)
        taps.emplace_back(title + name, text(group, '/', name));
    };
    if (file.contains(inside + "/taps")) add(inside + "/taps", "target/");
    std::size_t drafts = 0;
    if (file.contains(inside + "/mtp"))
      for (const std::string& draft : file.children(inside + "/mtp").groups) {
        add(text(inside, "/mtp/", draft), draft + '/');
        ++drafts;
      }
    const bool dummy =
        file.has_attribute(inside, "dummy") && file.int_attribute(inside, "dummy") != 0;
    std::int64_t tokens = -1;
    if (file.has_attribute(inside, "num_tokens")) tokens = file.int_attribute(inside, "num_tokens");
    if (as_text()) {
      std::cout << fmt::format("    step {}:{} {} draft passes, {} taps{}\n", printable(step),
                               tokens < 0 ? "" : fmt::format(" T = {},", tokens), drafts,
                               taps.size(), dummy ? ", a dummy pass" : "");
    } else {
      ReportRecord record{.kind = "case", .file = file.path(), .case_name = "step" + step};
      record.rank = rank;
      if (tokens >= 0) record.more.emplace_back("tokens", tokens);
      record.more.emplace_back("draft_steps", std::int64_t(drafts));
      record.more.emplace_back("taps", std::int64_t(taps.size()));
      record.more.emplace_back("dummy", dummy);
      write(record);
    }
    if (arguments_.verbosity < 1) return;
    for (const auto& [title, path] : taps) {
      const std::size_t slash = title.find('/');
      print_tap(file,
                {.kind = "tap",
                 .file = file.path(),
                 .case_name = "step" + step,
                 .step = title.substr(0, slash),
                 .tap = title.substr(slash + 1),
                 .rank = rank},
                path, title);
    }
  }

  const InfoArguments& arguments_;
};

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<InfoArguments>();
  app.add_option("FILE", arguments->files, "Golden files and dumps")->type_name("FILE")->required();
  app.add_flag("-v,--verbose", arguments->verbosity,
               "List every tap with its type and shape; twice: the weights as well");
  add_choice(app, "--format", arguments->format, output_formats,
             "Lines for people (default) or JSON Lines");
  return [arguments] {
    Exit exit = Exit::match;
    InfoPrinter printer(*arguments);
    for (const std::string& file : arguments->files) {
      try {
        printer.print(file);
      } catch (const Error& error) {  // the others are still shown
        std::cout.flush();
        print_error(error.what());
        exit = Exit::usage;
      }
    }
    return exit;
  };
}

}  // namespace

constinit const Verb info_verb = {
    "info", "Say what a golden file or a dump is",
    "tokenview info model.h5\n"
    "    configuration, legal tensor parallelism, cases and where the file comes from\n"
    "tokenview info -v dump.rank*.h5\n"
    "    every tap of every rank with its shape",
    add_options};

}  // namespace tokenview
