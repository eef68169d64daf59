// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include "device/device_info.hpp"
#include "reference/program/config_json.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tokenview_version.hpp"
#include "verify/cli.hpp"
#include "verify/cli_options.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"
#include "verify/model_argument.hpp"
#include "verify/progress.hpp"
#include "verify/record.hpp"

namespace tokenview {
namespace {

constexpr Choice<DType> dtypes[] = {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}};

struct RecordArguments {
  std::string from, config, out;
  std::string cases = default_cases();
  std::uint64_t seed = 0;
  std::int64_t draft_steps = 3;
  std::optional<DType> dtype;
  Rounding rounding = Rounding::hf;
  Device device = Device::cpu;
  int num_threads = available_threads();
};

std::string host_name() {
  char name[256] = "";
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

void note_ignored_keys(const std::string& source, const ConfigReading& reading) {
  if (!reading.ignored_keys.empty())
    print_note(
        text(printable(source), ": ignored configuration keys: ", joined(reading.ignored_keys)));
}

Recording new_recording(const RecordArguments& arguments, Progress& progress) {
  Recording recording;
  recording.rounding = arguments.rounding;
  recording.device = usable(arguments.device);
  recording.num_threads = arguments.num_threads;
  recording.progress = [&progress](const std::string& part) {
    throw_if_interrupted();
    progress.update("record: " + printable(part));
  };
  return recording;
}

void set_provenance(Recording& recording) {
  auto& provenance = recording.provenance;
  provenance["version"] = build::version;
  provenance["commit"] = build::commit;
  provenance["compiler"] = build::compiler;
  provenance["host"] = host_name();
  if (std::string reason; recording.device == Device::cuda)
    provenance["device"] = devices(reason).front().name;
  if (recording.dtype == DType::bfloat16)
    provenance["rounding"] = word_of(roundings, recording.rounding);
}

void record_again(const RecordArguments& arguments, Progress& progress) {
  const GoldenFile golden = GoldenFile::open(arguments.from);
  Recording recording = new_recording(arguments, progress);
  recording.config_json = golden.config_json();
  const ConfigReading reading =
      read_config_json(recording.config_json, printable(arguments.from) + ":/config");
  note_ignored_keys(arguments.from, reading);
  recording.config = reading.config;
  require_arithmetic(recording.config);
  recording.weights = &golden;
  recording.cases = cases_of(golden, recording.config);
  recording.dtype = arguments.dtype.value_or(golden.dtype());
  recording.provenance["recorded_from"] = golden.producer();
  if (golden.file().has_attribute("/", "seed"))
    recording.provenance["seed"] = golden.file().string_attribute("/", "seed");
  set_provenance(recording);
  record_golden(recording, arguments.out);
}

void record_seeded(const RecordArguments& arguments, Progress& progress) {
  const ModelArgument model = model_argument(arguments.config);
  note_ignored_keys(arguments.config, model.reading);
  Recording recording = new_recording(arguments, progress);
  recording.config = model.reading.config;
  require_arithmetic(recording.config);
  recording.config_json = model.config_json;
  recording.dtype = arguments.dtype.value_or(DType::float32);
  const SeededWeights weights(recording.config, arguments.seed, recording.dtype);
  recording.weights = &weights;
  recording.cases = cases_in_words(arguments.cases, recording.config.vocab_size, arguments.seed);
  if (recording.config.num_mtp_layers > 0)
    for (RecordedCase& each : recording.cases) each.draft_steps = arguments.draft_steps;
  recording.provenance["seed"] = std::to_string(arguments.seed);
  set_provenance(recording);
  record_golden(recording, arguments.out);
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<RecordArguments>();
  CLI::Option* const from =
      app.add_option("--from", arguments->from,
                     "Golden file whose configuration, weights and inputs are taken; its taps are "
                     "computed anew")
          ->type_name("GOLDEN");
  CLI::Option* const config =
      app.add_option("--config", arguments->config,
                     "Model with random weights: a preset, a config.json, the configuration of a "
                     "golden file, or a checkpoint folder")
          ->type_name("PRESET|FILE")
          ->excludes(from);
  app.add_option("--out", arguments->out,
                 "File to write; what is there stays until the new one is whole")
      ->type_name("FILE")
      ->required();
  add_number(app, "--seed", arguments->seed, std::uint64_t(0),
             std::numeric_limits<std::uint64_t>::max(), "Seed of weights and tokens (default 0)")
      ->needs(config);
  app.add_option("--cases", arguments->cases,
                 text("Cases with a comma between them: ", default_cases(),
                      " (default: all), or NAME=LENGTHS with a + between sequences, a length being "
                      "ROWS or CONTEXT:ROWS"))
      ->type_name("CASES")
      ->needs(config);
  add_number(app, "--draft-steps", arguments->draft_steps, std::int64_t(0), std::int64_t(64),
             "Draft steps of a model with an MTP layer (default 3)")
      ->needs(config);
  add_choice(app, "--dtype", arguments->dtype, dtypes,
             "Type of the model; default: that of the file of --from, else float32");
  add_choice(app, "--device", arguments->device, device_words,
             "Where the model runs: the reference on the CPU (default), the kernels of the first "
             "GPU, or a GPU where there is one");
  add_choice(app, "--rounding", arguments->rounding, roundings,
             "Whose rounding points a bfloat16 model has: Hugging Face's (default) or vLLM's");
  add_number(app, "--threads", arguments->num_threads, 1, max_threads,
             "Threads of the reference; default: all cores");
  return [arguments] {
    if (arguments->from.empty() && arguments->config.empty())
      throw UsageError("record: neither --from nor --config is given, expected one of them");
    catch_interrupts();
    Progress progress;
    if (!arguments->from.empty())
      record_again(*arguments, progress);
    else
      record_seeded(*arguments, progress);
    return Exit::match;
  };
}

}  // namespace

constinit const Verb record_verb = {
    "record", "Write a golden file from the serial reference",
    "tokenview record --config qwen3-next --seed 7 --out next.h5\n"
    "    a tiny model with random weights, the usual cases, three draft steps\n"
    "tokenview record --config config.json --cases prefill,late=7:1+20:1 --out mine.h5\n"
    "    one known case, and one of two sequences with 7 and 20 tokens behind them\n"
    "tokenview record --config qwen3.5-moe --dtype bfloat16 --rounding vllm --out bf16.h5\n"
    "    a bfloat16 model that rounds where vLLM does\n"
    "tokenview record --from golden.h5 --out ours.h5\n"
    "    the model and the inputs of another file, with our own taps",
    add_options};

}  // namespace tokenview
