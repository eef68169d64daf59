// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>

#include "device/device_info.hpp"
#include "reference/program/config_json.hpp"
#include "reference/program/seeded_weights.hpp"
#include "tokenview_version.hpp"
#include "verify/cli.hpp"
#include "verify/cli_checkpoint.hpp"
#include "verify/cli_options.hpp"
#include "verify/data_folder.hpp"
#include "verify/golden_file.hpp"
#include "verify/golden_weights.hpp"
#include "verify/hdf5_text.hpp"
#include "verify/interrupt.hpp"
#include "verify/model_argument.hpp"
#include "verify/progress.hpp"
#include "verify/record.hpp"

namespace tokenview {
namespace {

constexpr Word<DType> dtypes[] = {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}};

struct RecordArguments {
  std::string from, config, checkpoint, out;
  std::optional<std::string> cases;
  std::vector<std::string> ids;
  std::optional<std::uint64_t> seed;
  std::optional<std::int64_t> draft_steps;
  bool with_weights = false;
  std::optional<DType> dtype;
  GdnForm gdn_form = GdnForm::recurrent;
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

Recording new_recording(const RecordArguments& arguments, const std::string& config_json,
                        const ModelConfig& config, Progress& progress) {
  require_arithmetic(config);
  Recording recording;
  recording.config = config;
  recording.config_json = config_json;
  recording.rounding = arguments.rounding;
  recording.gdn_form = arguments.gdn_form;
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

/// The weights of a checkpoint are referred to, for they may be larger than all taps;
/// --with-weights stores them.
void refer_to(const Checkpoint& checkpoint, const RecordArguments& arguments,
              Recording& recording) {
  recording.provenance[checkpoint_attribute] = checkpoint.folder();
  recording.stores_weights = arguments.with_weights;
}

void record_again(const RecordArguments& arguments, const Checkpoint* checkpoint,
                  Progress& progress) {
  const GoldenFile golden = GoldenFile::open(arguments.from);
  const ConfigReading reading =
      read_config_json(golden.config_json(), printable(arguments.from) + ":/config");
  note_ignored_keys(arguments.from, reading);
  Recording recording = new_recording(arguments, golden.config_json(), reading.config, progress);
  const GoldenWeights weights(golden, recording.config, checkpoint);
  recording.weights = &weights;
  if (checkpoint != nullptr) {
    recording.weights = checkpoint;  // unrounded: the type may be another
    refer_to(*checkpoint, arguments, recording);
  }
  recording.cases = cases_of(golden, recording.config);
  recording.dtype = arguments.dtype.value_or(golden.dtype());
  recording.provenance["recorded_from"] = golden.producer();
  if (golden.file().has_attribute("/", "seed"))
    recording.provenance["seed"] = golden.file().string_attribute("/", "seed");
  set_provenance(recording);
  record_golden(recording, arguments.out);
}

/// The cases of --ids and --cases; the usual ones without either.
std::vector<RecordedCase> cases_of(const RecordArguments& arguments, std::int64_t vocab_size) {
  std::vector<RecordedCase> cases;
  if (arguments.cases || arguments.ids.empty())
    cases = cases_in_words(arguments.cases.value_or(default_cases()), vocab_size,
                           arguments.seed.value_or(0));
  for (const std::string& argument : arguments.ids) {
    cases.push_back(case_of_ids(argument, vocab_size));
    for (std::size_t other = 0; other + 1 < cases.size(); ++other)
      if (cases[other].name == cases.back().name)
        throw UsageError(text("record: --ids ", printable(argument), ": there is a case '",
                              cases.back().name, "' already, expected NAME=IDS with another name"));
  }
  return cases;
}

void record_model(const RecordArguments& arguments, const std::string& config_json,
                  const ModelConfig& config, const Checkpoint* checkpoint, Progress& progress) {
  Recording recording = new_recording(arguments, config_json, config, progress);
  recording.dtype = arguments.dtype.value_or(DType::float32);
  std::optional<SeededWeights> seeded;
  if (checkpoint != nullptr) {
    recording.weights = checkpoint;
    refer_to(*checkpoint, arguments, recording);
  } else {
    recording.weights = &seeded.emplace(config, arguments.seed.value_or(0), recording.dtype);
    recording.provenance["seed"] = std::to_string(arguments.seed.value_or(0));
  }
  recording.cases = cases_of(arguments, config.vocab_size);
  constexpr std::int64_t usual_draft_steps = 3;
  const bool drafts = recording.weights->contains("mtp.fc.weight");
  for (RecordedCase& each : recording.cases)
    each.draft_steps = arguments.draft_steps.value_or(drafts ? usual_draft_steps : 0);
  set_provenance(recording);
  record_golden(recording, arguments.out);
}

void require_fitting(const RecordArguments& arguments) {
  if (arguments.from.empty() && arguments.config.empty() && arguments.checkpoint.empty())
    throw UsageError(
        "record: neither --from nor --config nor --checkpoint is given, expected one of them");
  if (!arguments.from.empty() &&
      (arguments.cases || !arguments.ids.empty() || arguments.seed || arguments.draft_steps))
    throw UsageError(
        "record: --cases, --ids, --seed and --draft-steps say what to record of --config or "
        "--checkpoint: --from has its cases");
  // A golden file that is trusted would have our own taps from then on.
  std::vector<std::string> inputs = {arguments.from, arguments.config};
  std::error_code none;
  for (const std::string& folder : {arguments.config, arguments.checkpoint})
    if (std::filesystem::is_directory(folder, none))
      for (const char* const extension : {".json", ".safetensors"})
        std::ranges::move(files_of(folder, extension), std::back_inserter(inputs));
  for (const std::string& input : inputs)
    if (!input.empty() && is_same_file(arguments.out, input))
      throw UsageError(
          text("record: --out ", printable(arguments.out), " is read: expected another file"));
  if (arguments.with_weights && arguments.checkpoint.empty())
    throw UsageError("record: --with-weights stores those of --checkpoint: expected --checkpoint");
}

void record(const RecordArguments& arguments, Progress& progress) {
  require_fitting(arguments);
  const std::unique_ptr<const Checkpoint> checkpoint = opened_checkpoint(arguments.checkpoint);
  if (!arguments.from.empty()) {
    record_again(arguments, checkpoint.get(), progress);
  } else if (checkpoint) {
    note_ignored_keys(arguments.checkpoint, checkpoint->reading());
    record_model(arguments, checkpoint->config_json(), checkpoint->reading().config,
                 checkpoint.get(), progress);
  } else {
    const ModelArgument model = model_argument(arguments.config);
    note_ignored_keys(arguments.config, model.reading);
    record_model(arguments, model.config_json, model.reading.config, nullptr, progress);
  }
}

std::function<Exit()> add_options(CLI::App& app) {
  const auto arguments = std::make_shared<RecordArguments>();
  CLI::Option* const from =
      app.add_option("--from", arguments->from,
                     "Golden file whose configuration, weights and inputs are taken; its taps are "
                     "computed anew")
          ->type_name("GOLDEN")
          ->check(not_empty());
  CLI::Option* const config =
      app.add_option("--config", arguments->config,
                     "Model with random weights: a preset, a config.json, the configuration of a "
                     "golden file, or a checkpoint folder")
          ->type_name("PRESET|FILE")
          ->check(not_empty())
          ->excludes(from);
  app.add_option("--checkpoint", arguments->checkpoint,
                 "Model of a Hugging Face folder: config.json and safetensors. The golden file "
                 "refers to its weights; with --from, a file that does")
      ->type_name("FOLDER")
      ->check(not_empty())
      ->excludes(config);
  app.add_flag("--with-weights", arguments->with_weights,
               "Stores the weights of --checkpoint in the golden file");
  app.add_option("--out", arguments->out,
                 "File to write; what is there stays until the new one is whole")
      ->type_name("FILE")
      ->check(not_empty())
      ->required();
  add_number(app, "--seed", arguments->seed, std::uint64_t(0),
             std::numeric_limits<std::uint64_t>::max(), "Seed of weights and tokens (default 0)");
  app.add_option("--cases", arguments->cases,
                 text("Cases with a comma between them: ", default_cases(),
                      " (default: all), or NAME=LENGTHS with a + between sequences, a length being "
                      "ROWS or CONTEXT:ROWS"))
      ->type_name("CASES");
  app.add_option(
         "--ids", arguments->ids,
         "A case with these token ids instead of those of --cases, or beside them: 1,2,3; with "
         "a + between sequences, ids that came before in front of a colon, and a name: "
         "late=1,2+7,8:9; repeatable")
      ->type_name("IDS")
      ->take_all();
  add_number(app, "--draft-steps", arguments->draft_steps, std::int64_t(0), std::int64_t(64),
             "Draft steps of a model with an MTP layer (default 3)");
  add_choice(app, "--dtype", arguments->dtype, dtypes,
             "Type of the model; default: that of the file of --from, else float32");
  add_choice(app, "--device", arguments->device, device_words,
             "Where the model runs: the reference on the CPU (default), the kernels of the first "
             "GPU, or a GPU where there is one");
  add_choice(app, "--rounding", arguments->rounding, roundings,
             "Whose rounding points a bfloat16 model has: Hugging Face's (default) or vLLM's");
  add_choice(app, "--gdn", arguments->gdn_form, gdn_forms,
             "Form of the gated delta rule: token by token (default) or in chunks of 64");
  add_number(app, "--threads", arguments->num_threads, 1, max_threads,
             "Threads of the reference; default: all cores");
  return [arguments] {
    catch_interrupts();
    Progress progress;
    record(*arguments, progress);
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
    "    the model and the inputs of another file, with our own taps\n"
    "tokenview record --checkpoint Qwen3-Next-80B-A3B-Instruct --ids 1,2,3 --out golden.h5\n"
    "    three tokens through a checkpoint's model; check --checkpoint reads its weights again",
    add_options};

}  // namespace tokenview
