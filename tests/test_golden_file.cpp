// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <bit>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <cmath>
#include <csignal>
#include <functional>
#include <limits>
#include <random>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/golden_file.hpp"
#include "verify/golden_writer.hpp"
#include "verify/hdf5_writer.hpp"

namespace tokenview {
namespace {

constexpr std::int64_t vocab_size = 160;

// A forked child costs tens of milliseconds under a sanitizer.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int slowdown = 5;
#else
constexpr int slowdown = 1;
#endif

std::string shipped(const std::string& name) {
  return std::string(TOKENVIEW_SOURCE_DIR) + "/data/golden/" + name + ".h5";
}

const std::vector<std::string> all_shipped = {
    "qwen3_next_tiny",  "qwen3_next_mixed", "qwen3_next_tp8",   "qwen3_next_bf16",
    "qwen3_5_moe_tiny", "qwen3_5_moe_tp3",  "qwen3_5_moe_bf16",
};

HostTensor tensor_of(const std::vector<std::int64_t>& shape, DType dtype = DType::float32) {
  HostTensor tensor{shape, {}, dtype};
  for (std::int64_t i = 0; i < element_count(shape); ++i) tensor.values.push_back(float(i % 128));
  return tensor;
}

IntegerTensor ids_of(const std::vector<std::int64_t>& shape) {
  IntegerTensor ids{shape, {}};
  for (std::int64_t i = 0; i < element_count(shape); ++i) ids.values.push_back(i % 7);
  return ids;
}

/// A small golden as a list of parts, each of which a test may change, drop or add to.
struct Recipe {
  std::map<std::string, std::string> attributes = {{"schema", "tokenview.golden"},
                                                   {"model_type", "qwen3_next"},
                                                   {"dtype", "float32"},
                                                   {"producer", "a test"}};
  std::int64_t schema_version = 1;
  std::map<std::string, std::string> strings = {{"/config", "{}"}};
  std::map<std::string, HostTensor> tensors = {
      {"/weights/model.norm.weight", tensor_of({3})},
      {"/weights/lm_head.weight", tensor_of({5, 3})},
      {"/cases/a/taps/model", tensor_of({3, 4})},
      {"/cases/a/mtp/step0/logits", tensor_of({3, 5})},
      {"/cases/a/mtp/step1/logits", tensor_of({2, 5})},
  };
  struct Integers {
    IntegerTensor tensor;
    DType dtype;
  };
  // Two sequences of 1 and 2 new tokens, the second after a context of 2.
  std::map<std::string, Integers> integers = {
      {"/cases/a/inputs/input_ids", {{{3}, {7, 8, 9}}, DType::int64}},
      {"/cases/a/inputs/positions", {{{3}, {0, 2, 3}}, DType::int64}},
      {"/cases/a/inputs/query_start_loc", {{{3}, {0, 1, 3}}, DType::int32}},
      {"/cases/a/inputs/context_ids", {{{2}, {5, 6}}, DType::int64}},
      {"/cases/a/inputs/context_start_loc", {{{3}, {0, 0, 2}}, DType::int32}},
      {"/cases/a/taps/model.layers.0.mlp.gate.ids", {ids_of({3, 2}), DType::int64}},
      {"/cases/a/mtp/step0/input_ids", {ids_of({3}), DType::int64}},
      {"/cases/a/mtp/step1/input_ids", {ids_of({2}), DType::int64}},
      {"/cases/a/mtp/draft_ids", {ids_of({2, 2}), DType::int64}},
  };

  std::vector<std::int64_t>& list(const std::string& input) {
    return integers.at("/cases/a/inputs/" + input).tensor.values;
  }
  void set_list(const std::string& input, const std::vector<std::int64_t>& values) {
    integers.at("/cases/a/inputs/" + input).tensor = {{std::int64_t(values.size())}, values};
  }

  void write(const std::string& path) const {
    Hdf5Writer file(path);
    for (const auto& [name, value] : attributes) file.attribute("/", name, value);
    file.attribute("/", "schema_version", schema_version);
    for (const auto& [inside, value] : strings) file.string(inside, value);
    for (const auto& [inside, value] : tensors) file.tensor(inside, value);
    for (const auto& [inside, value] : integers) file.integers(inside, value.tensor, value.dtype);
    file.close();
  }
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float x, float y) {
    return std::bit_cast<std::uint32_t>(x) == std::bit_cast<std::uint32_t>(y);
  });
}

void compare(const HostTensor& a, const HostTensor& b) {
  BOOST_REQUIRE((a.shape == b.shape && a.dtype == b.dtype));
  BOOST_REQUIRE(same_bits(a.values, b.values));
}

void compare(const IntegerTensor& a, const IntegerTensor& b) {
  BOOST_REQUIRE((a.shape == b.shape && a.values == b.values));
}

/// Calls a visitor with everything in a golden, in some fixed order.
template <class Visitor>
void visit(const GoldenFile& golden, Visitor&& visitor) {
  for (const auto& [name, shape] : golden.weight_shapes())
    visitor.weight(name, golden.weight(name, shape));
  for (const std::string& name : golden.case_names()) {
    visitor.inputs(name, golden.inputs(name, vocab_size));
    for (const std::string& tap : golden.tap_names(name)) {
      if (GoldenFile::holds_ids(tap))
        visitor.tap_ids(name, tap, golden.tap_ids(name, tap));
      else
        visitor.tap(name, tap, golden.tap(name, tap));
    }
    const std::int64_t steps = golden.mtp_step_count(name);
    for (std::int64_t step = 0; step < steps; ++step)
      for (const std::string& tap : golden.mtp_tap_names(name, step)) {
        if (GoldenFile::holds_ids(tap))
          visitor.mtp_ids(name, step, tap, golden.mtp_ids(name, step, tap));
        else
          visitor.mtp_tap(name, step, tap, golden.mtp_tap(name, step, tap));
      }
    if (steps > 0) visitor.draft_ids(name, golden.draft_ids(name));
  }
}

struct Writing {
  GoldenWriter& to;
  using Text = const std::string&;
  void weight(Text name, const HostTensor& x) { to.write_weight(name, x); }
  void inputs(Text name, const GoldenInputs& x) { to.write_inputs(name, x); }
  void tap(Text name, Text tap, const HostTensor& x) { to.write_tap(name, tap, x); }
  void tap_ids(Text name, Text tap, const IntegerTensor& x) { to.write_tap_ids(name, tap, x); }
  void mtp_tap(Text name, std::int64_t step, Text tap, const HostTensor& x) {
    to.write_mtp_tap(name, step, tap, x);
  }
  void mtp_ids(Text name, std::int64_t step, Text tap, const IntegerTensor& x) {
    to.write_mtp_ids(name, step, tap, x);
  }
  void draft_ids(Text name, const IntegerTensor& x) { to.write_draft_ids(name, x); }
};

struct Comparing {
  const GoldenFile& with;
  std::size_t tensors = 0;
  using Text = const std::string&;
  void weight(Text name, const HostTensor& x) { seen(), compare(x, with.weight(name, x.shape)); }
  void inputs(Text name, const GoldenInputs& x) {
    seen();
    const GoldenInputs y = with.inputs(name, vocab_size);
    BOOST_REQUIRE((x.input_ids == y.input_ids && x.positions == y.positions));
    BOOST_REQUIRE((x.query_start_loc == y.query_start_loc && x.context_ids == y.context_ids));
    BOOST_REQUIRE((x.context_start_loc == y.context_start_loc));
  }
  void tap(Text name, Text tap, const HostTensor& x) { seen(), compare(x, with.tap(name, tap)); }
  void tap_ids(Text name, Text tap, const IntegerTensor& x) {
    seen(), compare(x, with.tap_ids(name, tap));
  }
  void mtp_tap(Text name, std::int64_t step, Text tap, const HostTensor& x) {
    seen(), compare(x, with.mtp_tap(name, step, tap));
  }
  void mtp_ids(Text name, std::int64_t step, Text tap, const IntegerTensor& x) {
    seen(), compare(x, with.mtp_ids(name, step, tap));
  }
  void draft_ids(Text name, const IntegerTensor& x) { seen(), compare(x, with.draft_ids(name)); }

 private:
  void seen() { ++tensors; }
};

struct Reading {
  template <class... Any>
  void weight(const Any&...) {}
  template <class... Any>
  void inputs(const Any&...) {}
  template <class... Any>
  void tap(const Any&...) {}
  template <class... Any>
  void tap_ids(const Any&...) {}
  template <class... Any>
  void mtp_tap(const Any&...) {}
  template <class... Any>
  void mtp_ids(const Any&...) {}
  template <class... Any>
  void draft_ids(const Any&...) {}
};

GoldenHeader header_of(const GoldenFile& golden) {
  return {golden.model_type(), golden.dtype(), golden.producer(), golden.config_json()};
}

void copy(const GoldenFile& from, const std::string& path) {
  GoldenWriter to(path, header_of(from));
  visit(from, Writing{to});
  to.commit();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Fixture {
  TemporaryFolder folder;
  std::string path = folder.file("golden.h5");

  /// What is said of this golden when all of it is read, without its name; "" where it is fine.
  std::string refusal(const Recipe& recipe) const {
    recipe.write(path);
    return message([&] {
      const GoldenFile golden = GoldenFile::open(path);
      golden.config_json();
      visit(golden, Reading());
    });
  }

  std::string message(const std::function<void()>& body) const {
    try {
      body();
      return "";
    } catch (const FileError& error) {
      const std::string found = error.what();
      BOOST_TEST(found.starts_with(path + ":"), found);
      return found.substr(path.size() + 1);
    }
  }
};

/// No file of this process grows over `bytes`: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    BOOST_REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  void (*signal_)(int);
  rlimit before_{};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(golden_file, Fixture)

BOOST_AUTO_TEST_CASE(what_the_recipe_says_is_what_is_read) {
  Recipe().write(path);
  const GoldenFile golden = GoldenFile::open(path);
  BOOST_TEST(golden.model_type() == "qwen3_next");
  BOOST_TEST((golden.dtype() == DType::float32));
  BOOST_TEST(golden.producer() == "a test");
  BOOST_TEST(golden.config_json() == "{}");
  BOOST_TEST((golden.case_names() == std::vector<std::string>{"a"}));
  BOOST_TEST(golden.num_tokens("a") == 3);
  BOOST_TEST(golden.num_sequences("a") == 2);
  BOOST_TEST(golden.mtp_step_count("a") == 2);
  BOOST_TEST(
      (golden.tap_names("a") == std::vector<std::string>{"model", "model.layers.0.mlp.gate.ids"}));
  BOOST_TEST((golden.mtp_tap_names("a", 1) == std::vector<std::string>{"input_ids", "logits"}));
  BOOST_TEST(golden.contains("lm_head.weight"));
  BOOST_TEST(!golden.contains("lm_head"));
  compare(golden.weight("lm_head.weight", {5, 3}), tensor_of({5, 3}));
  compare(golden.tap("a", "model"), tensor_of({3, 4}));
  compare(golden.draft_ids("a"), ids_of({2, 2}));
}

// The schema.

BOOST_AUTO_TEST_CASE(hdf5_without_the_schema_is_refused) {
  Recipe recipe;
  recipe.attributes.erase("schema");
  BOOST_TEST(refusal(recipe) == "/: has no attribute 'schema', expected 'tokenview.golden'");
}

BOOST_AUTO_TEST_CASE(a_dump_is_no_golden) {
  Recipe recipe;
  recipe.attributes["schema"] = "tokenview.dump";
  BOOST_TEST(refusal(recipe) == "/: schema is 'tokenview.dump', expected 'tokenview.golden'");
}

BOOST_AUTO_TEST_CASE(a_newer_schema_version_is_refused_with_both_numbers) {
  Recipe recipe;
  recipe.schema_version = 2;
  BOOST_TEST(refusal(recipe) ==
             "/: schema_version is 2, expected 1: the file is newer than this program");
}

BOOST_AUTO_TEST_CASE(another_dtype_of_the_model_is_refused) {
  Recipe recipe;
  recipe.attributes["dtype"] = "float8";
  BOOST_TEST(refusal(recipe) == "/: dtype is 'float8', expected float32 or bfloat16");
}

BOOST_AUTO_TEST_CASE(a_missing_part_is_refused_by_name) {
  Recipe no_config;
  no_config.strings.clear();
  BOOST_TEST(refusal(no_config) == "/config: is missing, expected a scalar string");
  Recipe no_weights;
  no_weights.tensors.erase("/weights/model.norm.weight");
  no_weights.tensors.erase("/weights/lm_head.weight");
  BOOST_TEST(refusal(no_weights) == "/weights: is missing, expected a group");
  Recipe no_positions;
  no_positions.integers.erase("/cases/a/inputs/positions");
  BOOST_TEST(refusal(no_positions) == "/cases/a/inputs/positions: is missing");
  Recipe no_drafts;
  no_drafts.integers.erase("/cases/a/mtp/draft_ids");
  BOOST_TEST(refusal(no_drafts) == "/cases/a/mtp/draft_ids: is missing");
}

BOOST_AUTO_TEST_CASE(what_is_no_part_of_a_golden_is_not_passed_over) {
  for (const char* const inside :
       {"/extra", "/cases/a/extra", "/cases/a/inputs/extra", "/cases/a/mtp/extra"}) {
    Recipe recipe;
    recipe.tensors[inside] = tensor_of({1});
    BOOST_TEST(contains(refusal(recipe), std::string(inside) + ": is no part of this format"));
  }
  Recipe recipe;
  recipe.tensors["/cases/a/taps/group/x"] = tensor_of({3, 1});
  BOOST_TEST(refusal(recipe) == "/cases/a/taps/group: is a group, expected a data set");
}

// Weights.

BOOST_AUTO_TEST_CASE(a_missing_weight_is_refused_by_name) {
  Recipe().write(path);
  const GoldenFile golden = GoldenFile::open(path);
  BOOST_TEST(message([&] {
               golden.weight("mtp.fc.weight", {2, 4});
             }) == "/weights/mtp.fc.weight: is missing, expected [2, 4]");
}

BOOST_AUTO_TEST_CASE(a_weight_of_another_shape_is_refused) {
  Recipe().write(path);
  const GoldenFile golden = GoldenFile::open(path);
  BOOST_TEST(message([&] {
               golden.weight("lm_head.weight", {3, 5});
             }) == "/weights/lm_head.weight: shape is [5, 3], expected [3, 5]");
  BOOST_TEST(message([&] { golden.weight("lm_head.weight", {15}); }) ==
             "/weights/lm_head.weight: shape is [5, 3], expected [15]");
}

BOOST_AUTO_TEST_CASE(a_weight_of_another_type_is_refused) {
  Recipe recipe;
  recipe.tensors.erase("/weights/lm_head.weight");
  recipe.integers["/weights/lm_head.weight"] = {ids_of({5, 3}), DType::int32};
  BOOST_TEST(refusal(recipe) == "/weights/lm_head.weight: is int32, expected float32 or bfloat16");
}

BOOST_AUTO_TEST_CASE(a_weight_that_is_not_finite_is_refused_and_a_tap_is_not) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    Recipe tap;
    tap.tensors["/cases/a/taps/model"].values[5] = bad;
    BOOST_TEST(refusal(tap) == "");
    Recipe weight;
    weight.tensors["/weights/lm_head.weight"].values[4] = bad;
    BOOST_TEST(refusal(weight) == text("/weights/lm_head.weight: element 4 of [5, 3] is ", bad,
                                       ", expected finite weights"));
  }
}

// Inputs.

BOOST_AUTO_TEST_CASE(an_input_id_outside_the_vocabulary_is_refused) {
  for (const std::int64_t bad : {vocab_size, std::int64_t{-1}}) {
    Recipe recipe;
    recipe.list("input_ids")[2] = bad;
    BOOST_TEST(refusal(recipe) == text("/cases/a/inputs/input_ids: entry 2 is ", bad,
                                       ", expected 0 to 159 (vocabulary of 160)"));
  }
  Recipe recipe;
  recipe.list("context_ids")[0] = 160;
  BOOST_TEST(contains(refusal(recipe), "/cases/a/inputs/context_ids: entry 0 is 160"));
}

BOOST_AUTO_TEST_CASE(a_start_list_that_is_no_cut_of_the_rows_is_refused) {
  const auto refused = [&](const std::string& list, const std::vector<std::int64_t>& values) {
    Recipe recipe;
    recipe.set_list(list, values);
    return refusal(recipe);
  };
  const std::string query = "/cases/a/inputs/query_start_loc: ";
  BOOST_TEST(refused("query_start_loc", {}) == query + "is empty, expected to begin with 0");
  BOOST_TEST(refused("query_start_loc", {1, 2, 3}) == query + "begins with 1, expected 0");
  BOOST_TEST(refused("query_start_loc", {0, 3, 1, 3}) ==
             query + "falls from 3 to 1 at entry 2, expected never to fall");
  BOOST_TEST(refused("query_start_loc", {0, 1, 2}) ==
             query + "ends with 2, expected the 3 entries of input_ids");
  BOOST_TEST(refused("context_start_loc", {0, 0, 1}) ==
             "/cases/a/inputs/context_start_loc: ends with 1, expected the 2 entries of "
             "context_ids");
  BOOST_TEST(refused("context_start_loc", {0, 2}) ==
             "/cases/a/inputs/context_start_loc: has 2 entries, expected 3, as query_start_loc");
}

BOOST_AUTO_TEST_CASE(positions_that_do_not_follow_the_context_are_refused) {
  Recipe recipe;
  recipe.list("positions") = {0, 1, 2};
  BOOST_TEST(refusal(recipe) ==
             "/cases/a/inputs/positions: row 1 is 1, expected 2: token 0 of sequence 1 after a "
             "context of 2");
  recipe.set_list("positions", {0, 2});
  BOOST_TEST(refusal(recipe) ==
             "/cases/a/inputs/positions: has 2 entries, expected 3, as input_ids");
}

BOOST_AUTO_TEST_CASE(inputs_of_another_type_or_rank_are_refused) {
  Recipe type;
  type.integers["/cases/a/inputs/query_start_loc"].dtype = DType::int64;
  BOOST_TEST(refusal(type) == "/cases/a/inputs/query_start_loc: is int64, expected int32");
  Recipe rank;
  rank.integers["/cases/a/inputs/context_ids"].tensor.shape = {2, 1};
  BOOST_TEST(refusal(rank) == "/cases/a/inputs/context_ids: shape is [2, 1], expected one axis");
}

BOOST_AUTO_TEST_CASE(a_case_without_tokens_is_read) {
  Recipe recipe;
  for (const char* const list : {"input_ids", "positions", "context_ids"})
    recipe.set_list(list, {});
  for (const char* const list : {"query_start_loc", "context_start_loc"})
    recipe.set_list(list, {0});
  recipe.tensors["/cases/a/taps/model"] = tensor_of({0, 4});
  recipe.integers["/cases/a/taps/model.layers.0.mlp.gate.ids"].tensor = ids_of({0, 2});
  std::erase_if(recipe.tensors, [](const auto& part) { return contains(part.first, "/mtp/"); });
  std::erase_if(recipe.integers, [](const auto& part) { return contains(part.first, "/mtp/"); });
  BOOST_TEST(refusal(recipe) == "");
}

// Taps.

BOOST_AUTO_TEST_CASE(a_tap_of_other_rows_or_rank_is_refused) {
  Recipe rows;
  rows.tensors["/cases/a/taps/model"] = tensor_of({2, 4});
  BOOST_TEST(refusal(rows) == "/cases/a/taps/model: shape is [2, 4], expected [3, columns]");
  Recipe rank;
  rank.tensors["/cases/a/taps/model"] = tensor_of({3, 2, 2});
  BOOST_TEST(refusal(rank) == "/cases/a/taps/model: shape is [3, 2, 2], expected [3, columns]");
  Recipe step;
  step.tensors["/cases/a/mtp/step1/logits"] = tensor_of({3, 5});
  BOOST_TEST(refusal(step) == "/cases/a/mtp/step1/logits: shape is [3, 5], expected [2, columns]");
}

BOOST_AUTO_TEST_CASE(ids_of_another_type_or_shape_are_refused) {
  const std::string inside = "/cases/a/taps/model.layers.0.mlp.gate.ids";
  Recipe type;
  type.integers.erase(inside);
  type.tensors[inside] = tensor_of({3, 2});
  BOOST_TEST(refusal(type) == inside + ": is float32, expected int64");
  Recipe shape;
  shape.integers[inside].tensor = ids_of({3});
  BOOST_TEST(refusal(shape) == inside + ": shape is [3], expected [3, k]");
}

BOOST_AUTO_TEST_CASE(a_missing_tap_and_a_missing_case_are_refused_by_name) {
  Recipe().write(path);
  const GoldenFile golden = GoldenFile::open(path);
  BOOST_TEST(message([&] { golden.tap("a", "lm_head"); }) == "/cases/a/taps/lm_head: is missing");
  BOOST_TEST(message([&] { golden.tap("b", "model"); }) == "/cases/b: is missing, expected a case");
  BOOST_TEST(message([&] { golden.inputs("b", 1); }) == "/cases/b: is missing, expected a case");
}

BOOST_AUTO_TEST_CASE(a_gap_in_the_draft_steps_is_refused) {
  Recipe recipe;
  recipe.tensors["/cases/a/mtp/step3/logits"] = tensor_of({2, 5});
  BOOST_TEST(refusal(recipe) ==
             "/cases/a/mtp/step2: is missing among 3 draft steps, expected step0 to step2");
}

BOOST_AUTO_TEST_CASE(draft_ids_of_another_number_of_steps_are_refused) {
  Recipe recipe;
  recipe.integers["/cases/a/mtp/draft_ids"].tensor = ids_of({2, 3});
  BOOST_TEST(refusal(recipe) ==
             "/cases/a/mtp/draft_ids: shape is [2, 3], expected [2, 2]: one column a draft step");
}

// Damage: never a crash, a hang or a giant allocation; an error, or a golden that is well formed.

BOOST_AUTO_TEST_CASE(a_golden_cut_off_anywhere_is_refused) {
  Recipe().write(path);
  const std::string whole = read_bytes(path);
  std::mt19937 random(1);
  for (int i = 0; i < 200 / slowdown; ++i) {
    write_bytes(path, whole.substr(0, random() % whole.size()));
    BOOST_TEST(message([&] { visit(GoldenFile::open(path), Reading()); }) != "");
  }
}

BOOST_AUTO_TEST_CASE(wrong_bytes_in_a_golden_give_an_error_or_a_well_formed_golden) {
  Recipe recipe;
  recipe.tensors["/weights/lm_head.weight"].dtype = DType::bfloat16;
  recipe.write(path);
  const std::string whole = read_bytes(path);
  std::mt19937 random(2);
  int errors = 0;
  for (int i = 0; i < 500 / slowdown; ++i) {
    std::string bytes = whole;
    for (int flip = 0; flip <= i % 3; ++flip) bytes[random() % bytes.size()] = char(random());
    write_bytes(path, bytes);
    errors += message([&] { visit(GoldenFile::open(path), Reading()); }) != "";
  }
  BOOST_TEST(errors > 50 / slowdown);   // much of a small file is structure
  BOOST_TEST(errors < 500 / slowdown);  // but not all
}

BOOST_AUTO_TEST_CASE(wrong_bytes_in_a_shipped_golden_give_an_error_or_a_well_formed_golden) {
  const std::string whole = read_bytes(shipped("qwen3_next_bf16"));
  std::mt19937 random(3);
  for (int i = 0; i < 10; ++i) {
    std::string bytes = whole;
    for (int flip = 0; flip < 20; ++flip) bytes[random() % bytes.size()] = char(random());
    write_bytes(path, bytes);
    message([&] { visit(GoldenFile::open(path), Reading()); });
  }
  BOOST_TEST(message([&] { visit(GoldenFile::open(shipped("qwen3_next_bf16")), Reading()); }) ==
             "");
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(golden_writer, Fixture)

const GoldenHeader header = {"qwen3_next", DType::float32, "a test", "{}", {{"seed", "7"}}};
const GoldenInputs one_token = {{3}, {0}, {0, 1}, {}, {0, 0}};

BOOST_AUTO_TEST_CASE(provenance_becomes_attributes) {
  GoldenWriter(path, header).commit();
  BOOST_TEST(GoldenFile::open(path).file().string_attribute("/", "seed") == "7");
}

BOOST_AUTO_TEST_CASE(trailing_axes_of_a_tap_are_flattened) {
  GoldenWriter writer(path, header);
  writer.write_inputs("a", one_token);
  writer.write_tap("a", "x", tensor_of({1, 2, 3}));
  writer.commit();
  compare(GoldenFile::open(path).tap("a", "x"), tensor_of({1, 6}));
}

BOOST_AUTO_TEST_CASE(without_a_commit_the_old_file_stays_and_nothing_else) {
  write_bytes(path, "old");
  {
    GoldenWriter writer(path, header);
    writer.write_weight("w", tensor_of({1000}));
    BOOST_TEST(folder.count() == 2u);
  }
  BOOST_TEST(read_bytes(path) == "old");
  BOOST_TEST(folder.count() == 1u);
}

BOOST_AUTO_TEST_CASE(a_commit_replaces_the_old_file_and_leaves_nothing_else) {
  write_bytes(path, "old");
  GoldenWriter(path, header).commit();
  BOOST_TEST(GoldenFile::open(path).producer() == "a test");
  BOOST_TEST(folder.count() == 1u);
}

BOOST_AUTO_TEST_CASE(a_killed_run_leaves_the_old_file) {
  write_bytes(path, "old");
  const pid_t child = fork();
  if (child == 0) {
    GoldenWriter writer(path, header);
    writer.write_weight("w", tensor_of({100000}));
    raise(SIGKILL);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  BOOST_TEST(WIFSIGNALED(status));
  BOOST_TEST(read_bytes(path) == "old");
  GoldenWriter(path, header).commit();  // what it left is in nobody's way
  BOOST_TEST(GoldenFile::open(path).producer() == "a test");
}

BOOST_DATA_TEST_CASE(a_full_disk_is_an_error_and_leaves_the_old_file,
                     boost::unit_test::data::make({0, 1000, 100000, 1500000, 1840000})) {
  write_bytes(path, "old");
  const GoldenFile golden = GoldenFile::open(shipped("qwen3_next_bf16"));
  std::string found;
  {
    const FullDisk full{rlim_t(sample)};
    found = message([&] { copy(golden, path); });
  }
  BOOST_TEST(contains(found, "cannot be written: File too large"), found);
  BOOST_TEST(read_bytes(path) == "old");
  BOOST_TEST(folder.count() == 1u);
}

BOOST_AUTO_TEST_CASE(a_missing_folder_is_refused) {
  path = folder.file("none/golden.h5");
  BOOST_TEST(message([&] { GoldenWriter(path, header); }) ==
             " cannot be written: No such file or directory (folder '" + folder.file("none") +
                 "')");
}

BOOST_AUTO_TEST_CASE(a_folder_without_permission_is_refused) {
  std::filesystem::permissions(folder.file(""), std::filesystem::perms::owner_read |
                                                    std::filesystem::perms::owner_exec |
                                                    std::filesystem::perms::others_exec);
  const OrdinaryUser user;
  BOOST_TEST(contains(message([&] { GoldenWriter(path, header); }),
                      " cannot be written: Permission denied"));
}

BOOST_AUTO_TEST_CASE(a_device_is_not_replaced) {
  path = "/dev/full";
  BOOST_TEST(message([&] { GoldenWriter(path, header); }) ==
             " cannot be written: is there and no regular file");
}

BOOST_AUTO_TEST_CASE(a_symbolic_link_stays_one) {
  write_bytes(folder.file("target.h5"), "old");
  std::filesystem::create_symlink("target.h5", path);
  GoldenWriter(path, header).commit();
  BOOST_TEST(std::filesystem::is_symlink(path));
  BOOST_TEST(GoldenFile::open(folder.file("target.h5")).producer() == "a test");
}

BOOST_AUTO_TEST_CASE(what_a_reader_would_refuse_is_not_written) {
  GoldenWriter writer(path, header);
  writer.write_inputs("a", one_token);
  const auto refused = [&](const std::function<void()>& body) { return message(body); };
  BOOST_TEST(refused([&] {
               writer.write_weight("w", {{1}, {std::nanf("")}});
             }) == "/weights/w: holds nan, expected finite weights");
  BOOST_TEST(contains(refused([&] {
                        writer.write_weight("w", {{1}, {0.1f}, DType::bfloat16});
                      }),
                      "expected a value that bfloat16 holds exactly"));
  BOOST_TEST(
      contains(refused([&] { writer.write_weight("a/b", tensor_of({1})); }), "'a/b' is no name"));
  BOOST_TEST(contains(refused([&] {
                        writer.write_tap("b", "x", tensor_of({1, 1}));
                      }),
                      "/cases/b: has no inputs yet"));
  BOOST_TEST(refused([&] {
               writer.write_tap("a", "x", tensor_of({2, 1}));
             }) == "/cases/a/taps/x: shape is [2, 1], expected [1, columns]");
  BOOST_TEST(contains(refused([&] {
                        writer.write_inputs("c", {{3}, {1}, {0, 1}, {}, {0, 0}});
                      }),
                      "/cases/c/inputs/positions: row 0 is 1, expected 0"));
}

BOOST_AUTO_TEST_CASE(a_tap_is_written_once) {
  GoldenWriter writer(path, header);
  writer.write_weight("w", tensor_of({1}));
  BOOST_TEST(contains(message([&] { writer.write_weight("w", tensor_of({1})); }),
                      "/weights/w: cannot be written (name already exists"));
}

BOOST_AUTO_TEST_CASE(draft_steps_with_a_gap_are_not_committed) {
  GoldenWriter writer(path, header);
  writer.write_inputs("a", one_token);
  writer.write_mtp_tap("a", 1, "logits", tensor_of({1, 5}));
  BOOST_TEST(message([&] { writer.commit(); }) ==
             "/cases/a/mtp: has 1 draft steps, the last one step1, expected no gap");
  writer.write_mtp_tap("a", 0, "logits", tensor_of({1, 5}));
  BOOST_TEST(message([&] { writer.commit(); }) ==
             "/cases/a/mtp/draft_ids: has 0 columns, expected 2, one a draft step");
  writer.write_draft_ids("a", ids_of({1, 2}));
  BOOST_TEST(message([&] { writer.commit(); }) == "");
}

BOOST_DATA_TEST_CASE(a_copy_of_a_shipped_golden_reads_back_equal,
                     boost::unit_test::data::make(all_shipped)) {
  const GoldenFile original = GoldenFile::open(shipped(sample));
  copy(original, path);
  const GoldenFile golden = GoldenFile::open(path);
  BOOST_TEST(golden.model_type() == original.model_type());
  BOOST_TEST((golden.dtype() == original.dtype()));
  BOOST_TEST(golden.producer() == original.producer());
  BOOST_TEST(golden.config_json() == original.config_json());
  BOOST_TEST((golden.weight_shapes() == original.weight_shapes()));
  Comparing comparing{golden};
  visit(original, comparing);
  BOOST_TEST(comparing.tensors > 500u);
  Comparing back{original};
  visit(golden, back);
  BOOST_TEST(back.tensors == comparing.tensors);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
