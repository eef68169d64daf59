// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <cstring>
#include <functional>
#include <limits>

#include "reference/program/presets.hpp"
#include "reference/program/weights.hpp"
#include "tests/boost_test.hpp"
#include "tests/checkpoint_draft.hpp"
#include "tests/support.hpp"
#include "verify/check.hpp"
#include "verify/checkpoint.hpp"
#include "verify/golden_weights.hpp"
#include "verify/record.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using nlohmann::json;

/// How a checkpoint is laid out.
struct Layout {
  const char* name;
  bool one_by_one = false, nested = false;
  std::size_t shards = 0;
};
std::ostream& operator<<(std::ostream& out, const Layout& layout) { return out << layout.name; }
const std::vector<Layout> layouts = {{"merged experts, one file"},
                                     {"merged experts, shards", false, false, 3},
                                     {"experts one by one, one file", true},
                                     {"experts one by one, shards", true, false, 7}};

Claim same_bits(const HostTensor& found, const HostTensor& expected) {
  if (found.shape != expected.shape)
    return refuted("shape is " + to_string(found.shape) + ", not " + to_string(expected.shape));
  if (found.values.size() != expected.values.size()) return refuted("another number of values");
  for (std::size_t i = 0; i < found.values.size(); ++i)
    if (std::memcmp(&found.values[i], &expected.values[i], sizeof(float)) != 0)
      return refuted(text("value ", i, " is ", found.values[i], ", not ", expected.values[i]));
  return true;
}

/// A folder with the weights of a shipped golden file, or with seeded ones.
struct Fixture {
  TemporaryFolder folder;
  std::string path = folder.file("checkpoint");

  static GoldenFile golden(const std::string& name) {
    return GoldenFile::open(std::string(TOKENVIEW_SOURCE_DIR "/data/golden/") + name + ".h5");
  }
  static ModelConfig config_of(const GoldenFile& file) {
    return read_config_json(file.config_json(), "config").config;
  }
  static CheckpointDraft draft_of(const GoldenFile& file, const Layout& layout = {}) {
    CheckpointDraft draft(config_of(file), file.config_json(), file,
                          file.dtype() == DType::bfloat16 ? "BF16" : "F32");
    if (layout.one_by_one) draft.split_experts();
    if (layout.nested) draft.nest();
    return draft;
  }
  static CheckpointDraft small_draft() {
    const ModelConfig config = *preset("qwen3-next");
    return {config, write_config_json(config), SeededWeights(config, 3)};
  }

  /// "" or why the folder is refused before any weight is read, in a line that names it.
  std::string refusal() const {
    try {
      const Checkpoint checkpoint(path);
      return "";
    } catch (const Error& error) {
      const std::string message = error.what();
      BOOST_TEST(message.find(path) != std::string::npos, message);
      BOOST_TEST(message.find('\n') == std::string::npos, message);
      return message;
    }
  }
  void require_refusal(const std::string& part) const {
    const std::string message = refusal();
    BOOST_TEST(message.find(part) != std::string::npos,
               "'" << message << "' lacks '" << part << "'");
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(checkpoint, Fixture)

// Weights

BOOST_DATA_TEST_CASE(weights_are_those_of_the_file_that_it_was_made_of,
                     data::make({"qwen3_next_tiny", "qwen3_next_mixed", "qwen3_5_moe_tiny",
                                 "qwen3_next_bf16"}) *
                         data::make(layouts),
                     name, layout) {
  const GoldenFile file = golden(name);
  draft_of(file, layout).write(path, layout.shards);
  const Checkpoint found(path);
  BOOST_TEST((found.reading().config == config_of(file)));
  for (const auto& [weight, shape] : file.weight_shapes()) {
    BOOST_TEST(same_bits(found.weight(weight, shape), file.weight(weight, shape)), weight);
    BOOST_TEST((found.weight(weight, shape).dtype == file.dtype()));
  }
  BOOST_TEST(found.unused().empty());
  BOOST_CHECK_THROW(found.weight("model.norm.weight", {1}), FileError);
  BOOST_CHECK_THROW(found.weight("model.normal.weight", {1}), FileError);
}

BOOST_AUTO_TEST_CASE(a_vision_language_model_gives_its_text_model) {
  const GoldenFile file = golden("qwen3_5_moe_tiny");
  draft_of(file, {"", true, true}).write(path, 2);
  const Checkpoint found(path);
  BOOST_TEST((found.reading().config == config_of(file)));
  for (const auto& [weight, shape] : file.weight_shapes())
    BOOST_TEST(same_bits(found.weight(weight, shape), file.weight(weight, shape)), weight);
  BOOST_TEST(found.unused().size() == 1u);
  BOOST_TEST(found.unused().at("model.visual") == 2);
}

BOOST_AUTO_TEST_CASE(float16_weights_are_widened_exactly) {
  const ModelConfig config = *preset("qwen3-next");
  const SeededWeights weights(config, 3);
  CheckpointDraft(config, write_config_json(config), weights, "F16").write(path);
  const WeightsOfType expected(weights, DType::float16);
  const Checkpoint found(path);
  for (const auto& [name, shape] : weight_shapes(config))
    BOOST_TEST(same_bits(found.weight(name, shape), expected.weight(name, shape)), name);
}

BOOST_AUTO_TEST_CASE(types_may_differ_from_weight_to_weight_and_from_expert_to_expert) {
  const ModelConfig config = *preset("qwen3-next");
  const SeededWeights weights(config, 3, DType::bfloat16);
  CheckpointDraft wide(config, write_config_json(config), weights, "F32");
  CheckpointDraft narrow(config, write_config_json(config), weights, "BF16");
  wide.split_experts();
  narrow.split_experts();
  for (const char* const name :
       {"model.layers.0.linear_attn.A_log", "model.layers.0.mlp.experts.3.up_proj.weight"})
    narrow.tensors[name] = wide.tensors[name];
  narrow.write(path);
  const Checkpoint found(path);
  for (const auto& [name, shape] : weight_shapes(config))
    BOOST_TEST(same_bits(found.weight(name, shape), weights.weight(name, shape)), name);
}

namespace {

/// Passes a rank's parts on, and holds each against the slice of the whole weight.
class ComparedParts final : public WeightSource {
 public:
  ComparedParts(const Checkpoint& source) : source_(source) {}
  bool contains(const std::string& name) const override { return source_.contains(name); }
  HostTensor weight(const std::string& name,
                    const std::vector<std::int64_t>& shape) const override {
    return source_.weight(name, shape);
  }
  HostTensor part(const WeightBlock& block) const override {
    HostTensor found = source_.part(block);
    BOOST_TEST(same_bits(found, WeightSource::part(block)), block.name);
    parts += 1;
    return found;
  }
  mutable std::int64_t parts = 0;

 private:
  const Checkpoint& source_;
};

}  // namespace

BOOST_DATA_TEST_CASE(the_parts_of_every_rank_are_slices_of_the_whole,
                     data::make({"qwen3_next_mixed", "qwen3_5_moe_tiny"}) * data::make(layouts) *
                         data::make({1, 2, 4}) * data::make({false, true}),
                     name, layout, tp, expert_parallel) {
  draft_of(golden(name), layout).write(path, layout.shards);
  const Checkpoint checkpoint(path);
  const ComparedParts parts(checkpoint);
  const EigenOps<float> ops;
  for (std::int64_t rank = 0; rank < tp; ++rank)
    WeightLoader<EigenOps<float>>(ops, parts, checkpoint.reading().config,
                                  {.tp_rank = rank,
                                   .tp_size = tp,
                                   .expert_rank = rank,
                                   .expert_size = tp,
                                   .expert_parallel = expert_parallel})
        .model();
  BOOST_TEST(parts.parts > 20 * tp);
}

BOOST_DATA_TEST_CASE(a_part_looks_at_nothing_else, data::make({false, true}), one_by_one) {
  CheckpointDraft draft = small_draft();
  const std::string name = "model.layers.0.mlp.experts.gate_up_proj";
  const std::vector<std::int64_t> shape = draft.tensors[name].shape;
  const std::int64_t expert_bytes = 4 * shape[1] * shape[2];
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(draft.tensors[name].bytes.data() + 5 * expert_bytes + 8, &nan, sizeof(nan));
  if (one_by_one) draft.split_experts();
  draft.write(path);
  const Checkpoint checkpoint(path);
  const auto experts = [&](std::int64_t begin, std::int64_t end) {
    return checkpoint.part({name, shape, {}, {}, {{begin, end}}, 0});
  };
  BOOST_CHECK_NO_THROW(experts(0, 5));
  BOOST_CHECK_NO_THROW(experts(6, 8));
  BOOST_CHECK_THROW(experts(5, 6), FileError);
  const std::string part = one_by_one ? "experts.5.gate_proj.weight: element 2 of [32, 64] is nan"
                                      : "experts.gate_up_proj: element ";
  BOOST_CHECK_EXCEPTION(checkpoint.weight(name, shape), FileError, [&](const FileError& error) {
    return std::string(error.what()).find(part) != std::string::npos;
  });
}

BOOST_AUTO_TEST_CASE(a_part_of_a_file_larger_than_memory_is_read_at_once) {
  const std::int64_t rows = std::int64_t{1} << 28;  // 64 GiB of zeros, which take no place
  CheckpointDraft draft = small_draft();
  draft.config["vocab_size"] = rows;
  draft.config["tie_word_embeddings"] = true;
  draft.tensors.erase("lm_head.weight");
  draft.tensors.erase("model.embed_tokens.weight");
  draft.write(path, 1);
  const std::string large = path + "/large.safetensors";
  const std::int64_t bytes = rows * 64 * 4;
  const std::string header = text(R"({"model.embed_tokens.weight":{"dtype":"F32","shape":[)", rows,
                                  R"(,64],"data_offsets":[0,)", bytes, "]}}");
  std::string length(8, '\0');
  length[0] = char(header.size());
  write_bytes(large, length + header);
  std::filesystem::resize_file(large, 8 + header.size() + std::size_t(bytes));
  json index = json::parse(read_bytes(path + "/model.safetensors.index.json"));
  index["weight_map"]["model.embed_tokens.weight"] = "large.safetensors";
  write_bytes(path + "/model.safetensors.index.json", index.dump());

  const Checkpoint checkpoint(path);
  const HostTensor part = checkpoint.part(
      {"model.embed_tokens.weight", {rows, 64}, {{rows - 3, rows + 5}}, {{8, 16}}, {}, rows + 64});
  BOOST_TEST((part.shape == std::vector<std::int64_t>{8, 8}));
  BOOST_TEST((part.values == std::vector<float>(64, 0.0f)));
}

BOOST_AUTO_TEST_CASE(a_file_that_has_become_shorter_is_an_error_and_no_signal) {
  small_draft().write(path);
  const Checkpoint checkpoint(path);
  std::filesystem::resize_file(path + "/model.safetensors", 5000);
  BOOST_CHECK_EXCEPTION(
      checkpoint.weight("model.norm.weight", {64}), FileError, [](const FileError& error) {
        return std::string(error.what()).find("has 5000 bytes, but had") != std::string::npos;
      });
}

BOOST_AUTO_TEST_CASE(a_tied_head_is_the_embedding) {
  ModelConfig config = *preset("qwen3-next");
  config.tie_word_embeddings = true;
  CheckpointDraft draft(config, write_config_json(config), SeededWeights(config, 3));
  BOOST_TEST(draft.tensors.count("lm_head.weight") == 0u);
  draft.write(path);
  BOOST_TEST(refusal() == "");
  draft.tensors["lm_head.weight"] = draft.tensors["model.embed_tokens.weight"];
  draft.write(path);
  BOOST_TEST(refusal() == "");
  draft.tensors["lm_head.weight"].bytes[7] ^= 1;
  draft.write(path);
  require_refusal("lm_head.weight: is not model.embed_tokens.weight");
}

BOOST_AUTO_TEST_CASE(the_mtp_stack_may_be_missing_as_a_whole) {
  CheckpointDraft draft = small_draft();
  std::erase_if(draft.tensors, [](const auto& entry) { return entry.first.starts_with("mtp."); });
  draft.write(path);
  BOOST_TEST(refusal() == "");
  BOOST_TEST(!Checkpoint(path).contains("mtp.fc.weight"));
  draft.tensors["mtp.norm.weight"] = small_draft().tensors["mtp.norm.weight"];
  draft.write(path);
  require_refusal("mtp.pre_fc_norm_embedding.weight: is missing, expected [64]");
}

BOOST_AUTO_TEST_CASE(tensors_of_other_modules_are_counted) {
  CheckpointDraft draft = small_draft();
  draft.tensors["model.visual.norm.weight"] = {"F32", {1}, std::string(4, '\0')};
  draft.tensors["audio.layers.0.weight"] =
      draft.tensors["audio.layers.1.weight"] = {"I8", {1}, std::string(1, '\0')};
  draft.tensors["scale"] = {"F8_E4M3", {1}, std::string(1, '\0')};
  draft.write(path);
  const std::map<std::string, std::int64_t> expected = {
      {"audio.layers", 2}, {"model.visual", 1}, {"scale", 1}};
  BOOST_TEST((Checkpoint(path).unused() == expected));
}

// Golden files that refer to a checkpoint

BOOST_DATA_TEST_CASE(taps_and_fingerprint_are_those_of_the_same_weights_in_a_file,
                     data::make({"qwen3_next_tiny", "qwen3_5_moe_bf16"}) * data::make(layouts),
                     name, layout) {
  const GoldenFile file = golden(name);
  draft_of(file, layout).write(path, layout.shards);
  const Checkpoint checkpoint(path);
  Recording recording{.config = config_of(file),
                      .config_json = file.config_json(),
                      .weights = &file,
                      .cases = {seeded_case("a", {{2, 5}, {0, 3}}, 64, 1)},
                      .dtype = file.dtype()};
  recording.cases[0].draft_steps = 2;
  const std::string own = folder.file("own.h5"), referring = folder.file("referring.h5");
  record_golden(recording, own);
  recording.weights = &checkpoint;
  recording.stores_weights = false;
  record_golden(recording, referring);

  const GoldenFile expected = GoldenFile::open(own), found = GoldenFile::open(referring);
  BOOST_TEST(found.weight_shapes().empty());
  BOOST_TEST(found.tap_names("a") == expected.tap_names("a"), boost::test_tools::per_element());
  for (const std::string& tap : expected.tap_names("a"))
    if (!GoldenFile::holds_ids(tap))
      BOOST_TEST(same_bits(found.tap("a", tap), expected.tap("a", tap)), tap);
  for (std::int64_t step = 0; step < 2; ++step)
    BOOST_TEST(
        same_bits(found.mtp_tap("a", step, "logits"), expected.mtp_tap("a", step, "logits")));
  BOOST_TEST(found.file().string_attribute("/", fingerprint_attribute) ==
             weights_fingerprint(file, config_of(file)));

  struct Taps : CheckListener {
    void ignored_keys(const std::vector<std::string>&) override {}
    void tap(const TapResult& result) override {
      BOOST_TEST((result.verdict == Verdict::match), result.place());
      BOOST_TEST(result.max_abs == 0, result.place());
    }
    void case_done(const std::string&, const CheckTotals&) override {}
  } listener;
  CheckOptions options;
  options.checkpoint = &checkpoint;
  BOOST_TEST(check_golden(referring, options, listener).taps > 100);
}

BOOST_AUTO_TEST_CASE(a_fingerprint_tells_weights_apart_and_nothing_else) {
  const ModelConfig config = *preset("qwen3-next");
  const SeededWeights weights(config, 3, DType::bfloat16);
  const std::string expected = weights_fingerprint(weights, config);
  for (const char* const dtype : {"F32", "BF16"}) {
    CheckpointDraft draft(config, write_config_json(config), weights, dtype);
    draft.split_experts();
    draft.write(path, 4);
    BOOST_TEST(weights_fingerprint(Checkpoint(path), config) == expected, dtype);
    std::filesystem::remove_all(path);
  }
  EditableWeights edited(config, 3, DType::bfloat16);
  BOOST_TEST(weights_fingerprint(edited, config) == expected);
  std::swap(edited["model.layers.1.mlp.experts.down_proj"](3, 1),
            edited["model.layers.1.mlp.experts.down_proj"](3, 2));
  BOOST_TEST(weights_fingerprint(edited, config) != expected);
}

// What is refused

namespace {

/// A folder that is no checkpoint, or one with a fault: what is done to one in three shards, and
/// what the message holds.
struct BadFolder {
  const char* name;
  std::function<void(CheckpointDraft&)> change;
  std::function<void(const std::string& path)> spoil;
  std::string said;
};
std::ostream& operator<<(std::ostream& out, const BadFolder& bad) { return out << bad.name; }

const std::string second_shard = "/model-00002-of-00003.safetensors";
const std::string index_file = "/model.safetensors.index.json";

void nothing(CheckpointDraft&) {}
void as_it_is(const std::string&) {}

/// Changes the parsed index.
std::function<void(const std::string&)> index_edit(const std::function<void(json&)>& edit) {
  return [edit](const std::string& path) {
    json index = json::parse(read_bytes(path + index_file));
    edit(index);
    write_bytes(path + index_file, index.dump());
  };
}
std::function<void(const std::string&)> index_of(const std::string& content) {
  return [content](const std::string& path) { write_bytes(path + index_file, content); };
}
/// Puts a tensor of the index in another file.
std::function<void(const std::string&)> norm_in(const json& shard) {
  return index_edit([shard](json& index) { index["weight_map"]["model.norm.weight"] = shard; });
}
std::function<void(CheckpointDraft&)> added(const std::string& name, const char* dtype = "F32",
                                            std::size_t bytes = 4) {
  return [=](CheckpointDraft& draft) {
    draft.tensors[name] = {dtype, {1}, std::string(bytes, '\0')};
  };
}
std::function<void(CheckpointDraft&)> removed(const std::string& name) {
  return [=](CheckpointDraft& draft) { draft.tensors.erase(name); };
}
std::function<void(CheckpointDraft&)> set(const std::string& key, const json& value) {
  return [=](CheckpointDraft& draft) { draft.config[key] = value; };
}

const std::vector<BadFolder> bad_folders = {
    {"no folder", nothing, [](const auto& path) { std::filesystem::remove_all(path); },
     "is no folder"},
    {"a file", nothing,
     [](const auto& path) {
       std::filesystem::remove_all(path);
       write_bytes(path, "x");
     },
     "is no folder"},
    {"an empty folder", nothing,
     [](const auto& path) {
       std::filesystem::remove_all(path);
       std::filesystem::create_directory(path);
     },
     "config.json': cannot be opened: No such file"},
    {"no config.json", nothing,
     [](const auto& path) { std::filesystem::remove(path + "/config.json"); },
     "config.json': cannot be opened: No such file"},
    {"config.json is a folder", nothing,
     [](const auto& path) {
       std::filesystem::remove(path + "/config.json");
       std::filesystem::create_directory(path + "/config.json");
     },
     "config.json': is a directory"},
    {"config.json is no JSON", nothing,
     [](const auto& path) { write_bytes(path + "/config.json", "{"); }, "line 1"},
    {"config.json of another family", set("model_type", "llama"), as_it_is,
     "model_type: is \"llama\""},
    {"config.json of a family without arithmetic",
     [](CheckpointDraft& draft) {
       draft.config = json::parse(write_config_json(*preset("deepseek-v2")));
     },
     as_it_is, "layout"},
    {"quantised", set("quantization_config", {{"quant_method", "fp8"}}), as_it_is,
     "quantization_config: the weights are quantised (\"fp8\")"},
    {"no weights", nothing, [](const auto& path) { std::filesystem::remove(path + index_file); },
     "has neither model.safetensors nor model.safetensors.index.json"},
    {"both", nothing,
     [](const auto& path) {
       std::filesystem::copy_file(path + second_shard, path + "/model.safetensors");
     },
     "has both model.safetensors and model.safetensors.index.json"},
    {"index is no JSON", nothing, index_of("model-00001-of-00003.safetensors"), "index.json"},
    {"index is empty", nothing, index_of(""), "index.json"},
    {"index is a list", nothing, index_of("[]"), "index.json: holds"},
    {"index without a map", nothing, index_of("{}"), "has no weight_map"},
    {"index with a list", nothing, index_of(R"({"weight_map": []})"),
     "weight_map is an array of 0"},
    {"index with nothing", nothing, index_of(R"({"weight_map": {}})"), "weight_map is empty"},
    {"index with a number", nothing, norm_in(7), "model.norm.weight is in 7, expected"},
    {"index repeats a name", nothing, index_of(R"({"weight_map": {"a": "x", "a": "y"}})"),
     "weight_map.a: appears twice"},
    {"index leaves the folder", nothing, norm_in("../x.safetensors"),
     "is in \"../x.safetensors\", expected the name of a file in the same folder"},
    {"index has an absolute path", nothing, norm_in("/etc/passwd"), "is in \"/etc/passwd\""},
    {"index names a folder", nothing, norm_in(".."), "is in \"..\""},
    {"index names nothing", nothing, norm_in(""), "is in \"\""},
    {"index has another shard", nothing, norm_in("model-00004-of-00003.safetensors"),
     "model-00004-of-00003.safetensors': cannot be opened: No such file"},
    {"a shard is missing", nothing,
     [](const auto& path) { std::filesystem::remove(path + second_shard); },
     second_shard + "': cannot be opened: No such file"},
    {"a shard is a dangling link", nothing,
     [](const auto& path) {
       std::filesystem::remove(path + second_shard);
       std::filesystem::create_symlink("nowhere", path + second_shard);
     },
     second_shard + "': cannot be opened: No such file"},
    {"a shard is cut", nothing,
     [](const auto& path) {
       std::filesystem::resize_file(path + second_shard,
                                    std::filesystem::file_size(path + second_shard) - 1);
     },
     "bytes after the header"},
    {"a shard is empty", nothing,
     [](const auto& path) { std::filesystem::resize_file(path + second_shard, 0); },
     "has 0 bytes, expected a safetensors file"},
    {"a shard lacks a tensor", nothing, index_edit([](json& index) {
       index["weight_map"]["model.extra.weight"] = "model-00002-of-00003.safetensors";
     }),
     second_shard + ":model.extra.weight: is missing"},
    {"a tensor is in another shard", nothing, index_edit([](json& index) {
       json& shard = index["weight_map"]["lm_head.weight"];
       shard = shard == "model-00002-of-00003.safetensors" ? "model-00001-of-00003.safetensors"
                                                           : "model-00002-of-00003.safetensors";
     }),
     "lm_head.weight: is missing"},
    {"a tensor is not in the index", nothing,
     index_edit([](json& index) { index["weight_map"].erase("lm_head.weight"); }),
     "lm_head.weight: is not in the weight_map"},
    {"a tensor is in two shards", nothing,
     [](const auto& path) {
       write_bytes(path + "/more.safetensors",
                   CheckpointDraft::file_of({{"lm_head.weight", {"U8", {1}, "x"}}}));
       index_edit([](json& index) { index["weight_map"]["other"] = "more.safetensors"; })(path);
     },
     "lm_head.weight: is in "},
    {"a weight is missing", removed("model.layers.0.linear_attn.A_log"), as_it_is,
     ": model.layers.0.linear_attn.A_log: is missing, expected [16]"},
    {"all experts are missing", removed("model.layers.0.mlp.experts.down_proj"), as_it_is,
     ": model.layers.0.mlp.experts.down_proj: is missing, expected [16, 64, 32]"},
    {"an expert is missing",
     [](CheckpointDraft& draft) {
       draft.split_experts();
       draft.tensors.erase("model.layers.1.mlp.experts.15.up_proj.weight");
     },
     as_it_is, ": model.layers.1.mlp.experts.15.up_proj.weight: is missing, expected [32, 64]"},
    {"an expert is too many",
     [](CheckpointDraft& draft) {
       draft.split_experts();
       draft.tensors["model.layers.1.mlp.experts.16.up_proj.weight"] =
           draft.tensors["model.layers.1.mlp.experts.15.up_proj.weight"];
     },
     as_it_is, "experts.16.up_proj.weight: no such weight in a qwen3_next model"},
    {"experts are there in both forms",
     [](CheckpointDraft& draft) {
       const auto merged = draft.tensors;
       draft.split_experts();
       draft.tensors.insert(*merged.find("model.layers.1.mlp.experts.down_proj"));
     },
     as_it_is, "experts.0.down_proj.weight: no such weight"},
    {"a shape", set("vocab_size", 96), as_it_is,
     "model.embed_tokens.weight: shape is [160, 64], expected [96, 64]"},
    {"the shape of an expert",
     [](CheckpointDraft& draft) {
       draft.split_experts();
       std::swap(draft.tensors["model.layers.1.mlp.experts.3.down_proj.weight"].shape[0],
                 draft.tensors["model.layers.1.mlp.experts.3.down_proj.weight"].shape[1]);
     },
     as_it_is, "experts.3.down_proj.weight: shape is [32, 64], expected [64, 32]"},
    {"an 8-bit weight",
     [](CheckpointDraft& draft) {
       draft.tensors["model.norm.weight"] = {"F8_E4M3", {64}, std::string(64, '\0')};
     },
     as_it_is, "model.norm.weight: is float8_e4m3fn, expected float32, bfloat16 or float16"},
    {"an integer weight",
     [](CheckpointDraft& draft) {
       draft.tensors["model.norm.weight"] = {"I32", {64}, std::string(256, '\0')};
     },
     as_it_is, "model.norm.weight: is int32, expected"},
    {"a scale", added("model.layers.0.mlp.gate.weight_scale_inv"), as_it_is,
     "weight_scale_inv: no such weight"},
    {"a layer too many", added("model.layers.9.input_layernorm.weight"), as_it_is,
     "model.layers.9.input_layernorm.weight: no such weight"},
    {"a bias", added("lm_head.bias"), as_it_is, "lm_head.bias: no such weight"},
    {"an MTP weight too many", added("mtp.layers.1.input_layernorm.weight"), as_it_is,
     "mtp.layers.1.input_layernorm.weight: no such weight"},
    {"both prefixes", added("model.language_model.norm.weight"), as_it_is,
     "model.norm.weight: is there a second time, as "},
};

}  // namespace

BOOST_DATA_TEST_CASE(a_bad_folder_is_refused, data::make(bad_folders), bad) {
  CheckpointDraft draft = small_draft();
  bad.change(draft);
  draft.write(path, 3);
  bad.spoil(path);
  require_refusal(bad.said);
}

BOOST_AUTO_TEST_CASE(the_folder_that_is_spoiled_above_is_a_good_one) {
  small_draft().write(path, 3);
  BOOST_TEST(refusal() == "");
}

BOOST_AUTO_TEST_CASE(an_unreadable_folder_is_refused) {
  small_draft().write(path, 3);
  std::filesystem::permissions(path + second_shard, std::filesystem::perms::none);
  std::filesystem::permissions(folder.file(""), std::filesystem::perms::all);
  const OrdinaryUser user;
  require_refusal(second_shard + "': cannot be read: Permission denied");
}

BOOST_AUTO_TEST_CASE(a_golden_file_and_a_checkpoint_must_belong_together) {
  const GoldenFile file = golden("qwen3_next_bf16");
  const ModelConfig config = config_of(file);
  draft_of(file).write(path);
  const Checkpoint checkpoint(path);
  const auto refusal_of = [](const auto& body) -> std::string {
    try {
      body();
      return "";
    } catch (const FileError& error) {
      return error.what();
    }
  };
  const auto require = [](const std::string& message, const std::string& part) {
    BOOST_TEST(message.find(part) != std::string::npos, message);
  };
  require(refusal_of([&] { GoldenWeights(file, config, &checkpoint); }),
          "/weights: the file has weights of its own, expected");

  const std::string referring = folder.file("referring.h5");
  Recording recording{.config = config,
                      .config_json = file.config_json(),
                      .weights = &checkpoint,
                      .cases = {seeded_case("a", {{0, 2}}, 64, 1)},
                      .stores_weights = false,
                      .provenance = {{checkpoint_attribute, path}}};
  record_golden(recording, referring);
  const GoldenFile found = GoldenFile::open(referring);
  BOOST_TEST(refusal_of([&] { GoldenWeights(found, config, &checkpoint); }) == "");
  require(
      refusal_of([&] { GoldenWeights(found, config); }),
      "/weights: is empty, expected --checkpoint with the folder that has the weights: the file "
      "was recorded from " +
          path);

  CheckpointDraft other = draft_of(file);
  other.tensors["model.norm.weight"].bytes[1] ^= 1;
  other.write(folder.file("other"));
  const Checkpoint other_weights(folder.file("other"));
  require(refusal_of([&] { GoldenWeights(found, config, &other_weights); }),
          "have the fingerprint ");

  other = draft_of(file);
  other.config["rms_norm_eps"] = 1e-5;
  other.write(folder.file("other"));
  const Checkpoint other_model(folder.file("other"));
  require(refusal_of([&] { GoldenWeights(found, config, &other_model); }),
          "/config: is not the configuration of " + folder.file("other"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
