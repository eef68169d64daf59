// SPDX-License-Identifier: Apache-2.0
// The reference model against golden files, and the check against files that are wrong on purpose.
#include <algorithm>
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <filesystem>
#include <functional>

#include "reference/program/config_json.hpp"
#include "tests/support.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/check.hpp"
#include "verify/golden_file.hpp"
#include "verify/hdf5_handle.hpp"
#include "verify/record.hpp"
#include "verify/tap_order.hpp"

namespace tokenview {
namespace {

const std::string golden_folder = TOKENVIEW_SOURCE_DIR "/data/golden/";
const std::string golden_names[] = {"qwen3_next_tiny", "qwen3_next_mixed", "qwen3_next_tp8",
                                    "qwen3_next_bf16", "qwen3_5_moe_tiny", "qwen3_5_moe_tp3",
                                    "qwen3_5_moe_bf16"};

/// Every result of a check, in order.
struct Results : CheckListener {
  std::vector<TapResult> all;
  void ignored_keys(const std::vector<std::string>&) override {}
  void tap(const TapResult& result) override { all.push_back(result); }
  void case_done(const std::string&, const CheckTotals&) override {}

  /// "decode/target/model.norm: difference", of those that do not match.
  std::vector<std::string> findings() const {
    std::vector<std::string> found;
    for (const TapResult& result : all)
      if (result.verdict != Verdict::match)
        found.push_back(result.place() + ": " + to_string(result.verdict));
    return found;
  }
};

using Findings = std::vector<std::string>;

/// What the check finds in a file, in its case `decode` unless told otherwise.
struct Checked {
  Results results;
  CheckTotals totals;

  explicit Checked(const std::string& path, CheckOptions options = {}) {
    if (!options.wanted)
      options.wanted = [](const std::string& place) {
        return place.find("/decode/") != std::string::npos;
      };
    totals = check_golden(path, options, results);
  }
  Findings findings() const { return results.findings(); }
  /// In the order of the program, so that the first one is nearest to the cause.
  std::string first() const { return findings().empty() ? "" : findings()[0]; }
};

template <class T>
hid_t memory_type() {
  if constexpr (std::is_same_v<T, float>) return H5T_NATIVE_FLOAT;
  if constexpr (std::is_same_v<T, std::uint16_t>) return H5T_NATIVE_UINT16;
  return H5T_NATIVE_INT64;
}

/// A golden file to spoil.
class Spoiled {
 public:
  /// A copy of a shipped file, or an empty place at path().
  explicit Spoiled(const std::string& name = "") : path_(folder_.file(name + ".h5")) {
    if (!name.empty()) std::filesystem::copy_file(golden_folder + name + ".h5", path_);
  }

  const std::string& path() const { return path_; }

  /// `change` gets all values of a data set.
  template <class T>
  void edit(const std::string& inside, const std::function<void(std::vector<T>&)>& change) const {
    const Hdf5Handle file = open();
    const Hdf5Handle data(H5Dopen2(file, inside.c_str(), H5P_DEFAULT), H5Dclose);
    BOOST_REQUIRE_MESSAGE(data.is_open(), inside);
    const Hdf5Handle space(H5Dget_space(data), H5Sclose);
    std::vector<T> values(std::size_t(H5Sget_simple_extent_npoints(space)));
    const hid_t type = memory_type<T>();
    BOOST_REQUIRE(H5Dread(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
    change(values);
    BOOST_REQUIRE(H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0);
  }
  void add(const std::string& inside, std::size_t index, float by) const {
    edit<float>(inside, [&](std::vector<float>& values) { values.at(index) += by; });
  }
  void remove(const std::string& inside) const {
    const Hdf5Handle file = open();
    BOOST_REQUIRE(H5Ldelete(file, inside.c_str(), H5P_DEFAULT) >= 0);
  }
  void copy(const std::string& from, const std::string& to) const {
    const Hdf5Handle file = open();
    BOOST_REQUIRE(H5Ocopy(file, from.c_str(), file, to.c_str(), H5P_DEFAULT, H5P_DEFAULT) >= 0);
  }

 private:
  Hdf5Handle open() const {
    Hdf5Handle file(H5Fopen(path_.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    BOOST_REQUIRE(file.is_open());
    return file;
  }

  TemporaryFolder folder_;
  std::string path_;
};

std::string tap_path(const std::string& name) { return "/cases/decode/taps/" + name; }
std::string step_path(int step, const std::string& name) {
  return text("/cases/decode/mtp/step", step, '/', name);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_files)

BOOST_DATA_TEST_CASE(every_tap_of_every_case_is_reproduced,
                     boost::unit_test::data::make(golden_names) *
                         boost::unit_test::data::make({0, 1}),
                     name, form) {
  CheckOptions options;
  options.gdn_form = form == 0 ? GdnForm::recurrent : GdnForm::chunked;
  options.wanted = [](const std::string&) { return true; };
  const Checked checked(golden_folder + name + ".h5", options);
  BOOST_TEST(checked.totals.failed == 0);
  BOOST_TEST(checked.totals.worst_ratio <= 1);

  // No tap of the file is left out.
  const GoldenFile golden = GoldenFile::open(golden_folder + name + ".h5");
  std::size_t taps = 0;
  for (const std::string& of : golden.case_names()) {
    taps += golden.tap_names(of).size();
    for (std::int64_t step = 0; step < golden.mtp_step_count(of); ++step)
      taps += golden.mtp_tap_names(of, step).size();
    taps += golden.mtp_step_count(of) > 0;
  }
  BOOST_TEST(checked.results.all.size() == taps);
  BOOST_TEST(checked.totals.taps == std::int64_t(taps));
  // Ids are exact in float32; in bfloat16 they may be ties.
  if (golden.dtype() == DType::float32) BOOST_TEST(checked.findings() == Findings{});
}

// The order that a dump's taps are judged in comes from their names; the check's from the program.
BOOST_DATA_TEST_CASE(names_are_ordered_as_the_program_runs,
                     boost::unit_test::data::make({"qwen3_next_tiny", "qwen3_5_moe_tiny"}), name) {
  const Checked checked(golden_folder + name + ".h5");
  std::vector<std::string> taps;  // without their case; the program does not make ids and positions
  for (const TapResult& result : checked.results.all)
    if (result.tap != "input_ids" && result.tap != "positions" && result.tap != "draft_ids")
      taps.push_back(name_of(result.place()));
  BOOST_TEST(taps.size() > 100);
  std::vector<std::string> ordered = taps;
  std::ranges::sort(ordered, InProgramOrder());
  BOOST_TEST(ordered == taps, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(float64_reproduces_a_float32_file_and_measures_the_reference_itself) {
  CheckOptions options;
  options.dtype = DType::float64;
  BOOST_TEST(Checked(golden_folder + "qwen3_next_mixed.h5", options).findings() == Findings{});
  options.dtype.reset();
  options.compare_float64 = true;
  const Checked checked(golden_folder + "qwen3_next_mixed.h5", options);
  for (const TapResult& result : checked.results.all) {
    if (result.metric == "rows") continue;
    BOOST_REQUIRE(result.float64.has_value());
    // Five layers, each of a dozen contractions of 64 or fewer terms. A tap of one column is a sum
    // that may cancel to any small number.
    if (!result.tap.ends_with("shared_expert_gate"))
      BOOST_TEST(*result.float64 <= tolerance<float>(5 * 12 * 64), result.place());
  }
}

BOOST_AUTO_TEST_CASE(only_what_is_wanted_is_compared) {
  CheckOptions options;
  options.wanted = [](const std::string& place) {
    return place == "qwen3_next_tiny/one/target/model.norm" ||
           place == "qwen3_next_tiny/varlen/step1/logits";
  };
  const Checked checked(golden_folder + "qwen3_next_tiny.h5", options);
  BOOST_TEST(checked.totals.taps == 2);
  BOOST_TEST(checked.findings() == Findings{});
  options.wanted = [](const std::string&) { return false; };
  BOOST_TEST(Checked(golden_folder + "qwen3_next_tiny.h5", options).totals.taps == 0);
}

BOOST_AUTO_TEST_CASE(a_tap_that_cancels_is_judged_in_float64) {
  const std::string path = TOKENVIEW_SOURCE_DIR "/data/tests/cancelling_tap.h5";
  CheckOptions options;
  options.wanted = [](const std::string&) { return true; };
  const Checked checked(path, options);
  options.dtype = DType::float32;  // asked for by name: no second opinion
  const Checked float32(path, options);
  options.dtype = DType::float64;
  BOOST_TEST(Checked(path, options).totals.failed == 0);
  // How many taps float32 misses by rounding depends on the compiler and the instruction set: three
  // with AVX-512 and optimisation, none without. Whatever it misses, float64 decides.
  BOOST_TEST(checked.totals.failed == 0);
  BOOST_TEST(checked.totals.by_float64 == float32.totals.failed);
}

BOOST_AUTO_TEST_CASE(each_tap_can_be_the_only_one_wanted) {
  const GoldenFile golden = GoldenFile::open(golden_folder + "qwen3_next_tiny.h5");
  std::vector<std::string> places = {"step1/positions", "step1/input_ids", "step1/logits",
                                     "target/draft_ids", "target/lm_head"};
  for (const std::string& name : golden.tap_names("one"))
    if (name.starts_with("model.layers.3.mlp")) places.push_back("target/" + name);
  for (const std::string& only : places) {
    CheckOptions options;
    options.wanted = [&](const std::string& place) {
      return place == "qwen3_next_tiny/one/" + only;
    };
    const Checked checked(golden_folder + "qwen3_next_tiny.h5", options);
    BOOST_TEST(checked.totals.taps == 1, only);
    BOOST_TEST(checked.findings() == Findings{}, only);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(spoiled_files)

/// One value off by twice the bound is found there and nowhere else; by half of it is within.
BOOST_AUTO_TEST_CASE(one_wrong_value_of_a_tap_is_found_in_that_tap) {
  for (const char* name :
       {"model.embed_tokens", "model.layers.0.linear_attn.norm", "model.layers.1.mlp.experts",
        "model.layers.2.mlp.gate.logits", "model.layers.2.mlp.gate.weights",
        "model.layers.3.self_attn.q_norm", "model.layers.3", "model", "lm_head"}) {
    const Spoiled file("qwen3_next_tiny");
    float largest = 1;
    for (const float value : GoldenFile::open(file.path()).tap("decode", name).values)
      largest = std::max(largest, std::abs(value));
    file.add(tap_path(name), 3, 0.5e-4f * largest);
    BOOST_TEST(Checked(file.path()).findings() == Findings{}, name);
    file.add(tap_path(name), 3, 2e-4f * largest);
    const Checked checked(file.path());
    BOOST_TEST(checked.findings() == Findings{text("decode/target/", name, ": difference")});
    BOOST_TEST(checked.totals.failed == 1);
    BOOST_TEST(checked.totals.worst_tap == text("decode/target/", name));
  }
}

BOOST_AUTO_TEST_CASE(one_wrong_value_of_a_draft_step_is_found_there) {
  const Spoiled file("qwen3_5_moe_tiny");
  file.add(step_path(1, "mtp.fc"), 5, 0.01f);
  file.add(step_path(2, "logits"), 5, 0.01f);
  BOOST_TEST(Checked(file.path()).findings() ==
             (Findings{"decode/step1/mtp.fc: difference", "decode/step2/logits: difference"}));
}

BOOST_AUTO_TEST_CASE(nan_and_infinity_never_match) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Spoiled file("qwen3_next_tiny");
    file.edit<float>(tap_path("model.layers.1.mlp"), [&](auto& values) { values[7] = value; });
    const Checked checked(file.path());
    BOOST_TEST(checked.findings() == Findings{"decode/target/model.layers.1.mlp: difference"});
  }
}

BOOST_AUTO_TEST_CASE(a_tap_that_the_file_lacks_is_unexpected) {
  const Spoiled file("qwen3_next_tiny");
  file.remove(tap_path("model.layers.2.linear_attn.in_proj_ba"));
  file.remove(step_path(0, "mtp.norm"));
  const Checked checked(file.path());
  BOOST_TEST(checked.findings() ==
             (Findings{"decode/target/model.layers.2.linear_attn.in_proj_ba: unexpected",
                       "decode/step0/mtp.norm: unexpected"}));
  BOOST_TEST(checked.totals.failed == 2);
}

BOOST_AUTO_TEST_CASE(a_tap_that_the_program_does_not_make_is_missing) {
  const Spoiled file("qwen3_next_tiny");
  file.copy(tap_path("model.layers.2"), tap_path("model.layers.2.self_attn"));
  file.copy(step_path(1, "mtp.fc"), step_path(1, "mtp.fc2"));
  const Checked checked(file.path());
  BOOST_TEST(checked.findings() == (Findings{"decode/target/model.layers.2.self_attn: missing",
                                             "decode/step1/mtp.fc2: missing"}));
  BOOST_TEST(checked.totals.failed == 2);
}

/// What follows is computed from the file's ids, so it may differ as well.
BOOST_AUTO_TEST_CASE(one_wrong_router_id_is_the_first_finding) {
  const Spoiled file("qwen3_next_tiny");
  file.edit<std::int64_t>(tap_path("model.layers.1.mlp.gate.ids"), [](auto& ids) {
    const auto row = ids.begin() + 4;  // four ids a token
    for (std::int64_t other = 0;; ++other)
      if (std::find(row, row + 4, other) == row + 4) {
        row[2] = other;
        return;
      }
  });
  const Checked checked(file.path());
  BOOST_TEST(checked.first() == "decode/target/model.layers.1.mlp.gate.ids: difference");
  BOOST_TEST(checked.totals.failed > 0);
}

BOOST_AUTO_TEST_CASE(a_router_id_that_is_no_expert_is_a_difference) {
  for (const std::int64_t id : {std::int64_t{-1}, std::int64_t{16}, std::int64_t{1} << 40}) {
    const Spoiled file("qwen3_next_tiny");
    file.edit<std::int64_t>(tap_path("model.layers.1.mlp.gate.ids"),
                            [&](auto& ids) { ids[5] = id; });
    BOOST_TEST(Checked(file.path()).first() ==
               "decode/target/model.layers.1.mlp.gate.ids: difference");
  }
}

BOOST_AUTO_TEST_CASE(ids_and_positions_of_a_draft_step_are_compared) {
  const Spoiled file("qwen3_next_tiny");
  file.edit<std::int64_t>(step_path(1, "positions"), [](auto& values) { values[2] += 1; });
  BOOST_TEST(Checked(file.path()).findings() == Findings{"decode/step1/positions: difference"});
  file.edit<std::int64_t>(step_path(0, "input_ids"),
                          [](auto& values) { values[1] = (values[1] + 1) % 160; });
  BOOST_TEST(Checked(file.path()).first() == "decode/step0/input_ids: difference");
}

BOOST_AUTO_TEST_CASE(one_wrong_draft_is_found) {
  const Spoiled file("qwen3_next_tiny");
  file.edit<std::int64_t>("/cases/decode/mtp/draft_ids",
                          [](auto& ids) { ids.back() = (ids.back() + 1) % 160; });
  const Checked checked(file.path());
  BOOST_TEST(checked.findings() == Findings{"decode/target/draft_ids: difference"});
}

BOOST_AUTO_TEST_CASE(a_tap_of_another_width_is_a_difference) {
  const Spoiled file("qwen3_next_tiny");
  file.remove(tap_path("model.layers.1.mlp"));
  file.copy(tap_path("model.layers.1.linear_attn.norm"), tap_path("model.layers.1.mlp"));
  BOOST_TEST(Checked(file.path()).findings() ==
             Findings{"decode/target/model.layers.1.mlp: difference"});
}

BOOST_AUTO_TEST_CASE(
    one_wrong_step_of_a_bfloat16_tap_is_found_and_goes_no_further_than_its_reader) {
  const Spoiled file("qwen3_next_bf16");
  const Findings before = Checked(file.path()).findings();  // ties at most
  file.edit<std::uint16_t>(tap_path("model.layers.1.mlp.shared_expert.up_proj"),
                           [](auto& values) { values[5] = std::uint16_t(values[5] ^ 0x0400u); });
  Findings after = Checked(file.path()).findings();
  for (const std::string& tie : before) std::erase(after, tie);
  BOOST_REQUIRE(!after.empty());
  BOOST_TEST(after[0] == "decode/target/model.layers.1.mlp.shared_expert.up_proj: difference");
  for (const std::string& finding : after)
    BOOST_TEST(finding.starts_with("decode/target/model.layers.1.mlp.shared_expert"));
}

namespace {

struct WeightChange {
  const char* weight;
  std::size_t index;
  float by;
  const char* first;  // the tap that shows it first
};

std::ostream& operator<<(std::ostream& out, const WeightChange& change) {
  return out << change.weight;
}

const WeightChange weight_changes[] = {
    {"model.layers.0.input_layernorm.weight", 1, 0.1f, "target/model.layers.0.input_layernorm"},
    {"model.layers.0.linear_attn.in_proj_qkvz.weight", 1, 0.1f,
     "target/model.layers.0.linear_attn.in_proj_qkvz"},
    {"model.layers.0.linear_attn.in_proj_ba.weight", 1, 0.1f,
     "target/model.layers.0.linear_attn.in_proj_ba"},
    {"model.layers.0.linear_attn.conv1d.weight", 3, 0.2f, "target/model.layers.0.linear_attn.norm"},
    {"model.layers.0.linear_attn.A_log", 1, 0.5f, "target/model.layers.0.linear_attn.norm"},
    {"model.layers.0.linear_attn.dt_bias", 1, 0.5f, "target/model.layers.0.linear_attn.norm"},
    {"model.layers.0.linear_attn.norm.weight", 1, 0.1f, "target/model.layers.0.linear_attn.norm"},
    {"model.layers.0.linear_attn.out_proj.weight", 1, 0.1f,
     "target/model.layers.0.linear_attn.out_proj"},
    {"model.layers.1.post_attention_layernorm.weight", 1, 0.1f,
     "target/model.layers.1.post_attention_layernorm"},
    {"model.layers.1.mlp.gate.weight", 1, 0.1f, "target/model.layers.1.mlp.gate.logits"},
    {"model.layers.1.mlp.shared_expert.gate_proj.weight", 1, 0.1f,
     "target/model.layers.1.mlp.shared_expert.gate_proj"},
    {"model.layers.1.mlp.shared_expert.up_proj.weight", 1, 0.1f,
     "target/model.layers.1.mlp.shared_expert.up_proj"},
    {"model.layers.1.mlp.shared_expert.down_proj.weight", 1, 0.1f,
     "target/model.layers.1.mlp.shared_expert.down_proj"},
    {"model.layers.1.mlp.shared_expert_gate.weight", 1, 0.1f,
     "target/model.layers.1.mlp.shared_expert_gate"},
    {"model.layers.3.self_attn.q_proj.weight", 1, 0.1f, "target/model.layers.3.self_attn.q_proj"},
    {"model.layers.3.self_attn.k_proj.weight", 1, 0.1f, "target/model.layers.3.self_attn.k_proj"},
    {"model.layers.3.self_attn.v_proj.weight", 1, 0.1f, "target/model.layers.3.self_attn.v_proj"},
    {"model.layers.3.self_attn.q_norm.weight", 1, 0.1f, "target/model.layers.3.self_attn.q_norm"},
    {"model.layers.3.self_attn.k_norm.weight", 1, 0.1f, "target/model.layers.3.self_attn.k_norm"},
    {"model.layers.3.self_attn.o_proj.weight", 1, 0.1f, "target/model.layers.3.self_attn.o_proj"},
    {"model.norm.weight", 1, 0.1f, "target/model.norm"},
    {"lm_head.weight", 1, 0.1f, "target/lm_head"},
    {"mtp.pre_fc_norm_embedding.weight", 1, 0.1f, "step0/mtp.pre_fc_norm_embedding"},
    {"mtp.pre_fc_norm_hidden.weight", 1, 0.1f, "step0/mtp.pre_fc_norm_hidden"},
    {"mtp.fc.weight", 1, 0.1f, "step0/mtp.fc"},
    {"mtp.layers.0.self_attn.q_norm.weight", 1, 0.1f, "step0/mtp.layers.0.self_attn.q_norm"},
    {"mtp.norm.weight", 1, 0.1f, "step0/mtp.norm"},
};

}  // namespace

BOOST_DATA_TEST_CASE(one_wrong_weight_is_seen_first_where_it_is_used,
                     boost::unit_test::data::make(weight_changes), change) {
  const Spoiled file("qwen3_next_tiny");
  file.add(std::string("/weights/") + change.weight, change.index, change.by);
  CheckOptions options;
  options.wanted = [](const std::string& place) {
    return place.find("/varlen/") != std::string::npos;
  };
  BOOST_TEST(Checked(file.path(), options).first() ==
             text("varlen/", change.first, ": difference"));
}

BOOST_AUTO_TEST_CASE(one_wrong_weight_of_a_chosen_expert_is_seen_in_the_experts) {
  const Spoiled file("qwen3_next_tiny");
  const GoldenFile golden = GoldenFile::open(file.path());
  const auto expert =
      std::size_t(golden.tap_ids("decode", "model.layers.2.mlp.gate.ids").values[0]);
  for (const char* name : {"gate_up_proj", "down_proj"}) {
    const std::string weight = text("model.layers.2.mlp.experts.", name);
    const auto& shape = golden.weight_shapes().at(weight);
    const Spoiled spoiled("qwen3_next_tiny");
    spoiled.add("/weights/" + weight, expert * std::size_t(shape[1] * shape[2]) + 2, 0.5f);
    BOOST_TEST(Checked(spoiled.path()).first() ==
               "decode/target/model.layers.2.mlp.experts: difference");
  }
}

BOOST_AUTO_TEST_CASE(a_weight_too_many_or_too_few_is_refused) {
  {
    const Spoiled file("qwen3_next_tiny");
    file.copy("/weights/model.norm.weight", "/weights/model.norm2.weight");
    BOOST_CHECK_THROW(Checked checked(file.path()), FileError);
  }
  {
    const Spoiled file("qwen3_next_tiny");
    file.remove("/weights/model.layers.1.mlp.gate.weight");
    BOOST_CHECK_THROW(Checked checked(file.path()), FileError);
  }
  const Spoiled file("qwen3_next_tiny");
  file.remove("/weights/mtp.fc.weight");  // draft steps, but no drafter
  BOOST_CHECK_THROW(Checked checked(file.path()), FileError);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(ties)

/// Two experts with the same weights and the same router row always tie. A file that has the other
/// one of them is right in every tap but the ids.
BOOST_AUTO_TEST_CASE(another_expert_with_the_same_score_is_a_tie) {
  const ModelConfig config = *preset("qwen3-next");
  EditableWeights weights(config);
  for (const char* name : {"gate.weight", "experts.gate_up_proj", "experts.down_proj"}) {
    auto weight = weights[std::string("model.layers.0.mlp.") + name];
    for (Eigen::Index e = 8; e < 16; ++e) weight.row(e) = Matrix<float>(weight.row(e - 8));
  }
  Recording recording;
  recording.config = config;
  recording.config_json = write_config_json(config);
  recording.weights = &weights;
  recording.cases = cases_in_words("decode=3:1+2:1", config.vocab_size, 0);
  const Spoiled file;
  record_golden(recording, file.path());
  BOOST_REQUIRE(Checked(file.path()).findings() == Findings{});
  BOOST_TEST(Checked(file.path()).totals.worst_ratio == 0);

  // An expert comes with its twin, the lower one first: exchanged, the weights are still theirs.
  file.edit<std::int64_t>(tap_path("model.layers.0.mlp.gate.ids"), [](auto& ids) {
    BOOST_REQUIRE(ids[5] == ids[4] + 8);
    std::swap(ids[4], ids[5]);
  });
  const Checked strict(file.path());
  BOOST_TEST(strict.findings() == Findings{"decode/target/model.layers.0.mlp.gate.ids: tie"});
  BOOST_TEST(strict.totals.failed == 1);
  BOOST_TEST(strict.totals.ties == 1);
  CheckOptions options;
  options.allow_ties = true;
  BOOST_TEST(Checked(file.path(), options).totals.failed == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE(layer_types)

namespace {

/// Which layers of a model make the taps of full attention.
std::vector<bool> full_attention_layers(const ModelConfig& config) {
  const SerialModel<float> model(config, EditableWeights(config), EigenOps<float>());
  auto state = model.empty_state();
  Taps<float> taps;
  model.forward(state, batch_of({{{1, 2, 3}}}), &taps);
  std::vector<bool> full;
  for (std::int64_t i = 0; i < config.num_hidden_layers; ++i) {
    full.push_back(taps.values.count(text("model.layers.", i, ".self_attn")) != 0);
    BOOST_TEST(full.back() != (taps.values.count(text("model.layers.", i, ".linear_attn")) != 0));
  }
  return full;
}

/// The tiny configuration as JSON with `layer_types` replaced by `key_and_value`.
ModelConfig read_with(const std::string& key_and_value) {
  std::string json = write_config_json(*preset("qwen3-next"));
  const std::size_t begin = json.find("\"layer_types\"");
  BOOST_REQUIRE(begin != std::string::npos);
  json.replace(begin, json.find(']', begin) + 1 - begin, key_and_value);
  return read_config_json(json, "a.json").config;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_list_of_layer_types_is_followed_in_any_order) {
  const ModelConfig config = read_with(R"("layer_types": ["full_attention", "linear_attention",)"
                                       R"( "full_attention", "linear_attention"])");
  BOOST_TEST(full_attention_layers(config) == (std::vector<bool>{true, false, true, false}));
}

BOOST_AUTO_TEST_CASE(without_a_list_the_interval_decides) {
  BOOST_TEST(full_attention_layers(read_with(R"("full_attention_interval": 2)")) ==
             (std::vector<bool>{false, true, false, true}));
  BOOST_TEST(full_attention_layers(read_with(R"("full_attention_interval": 4)")) ==
             (std::vector<bool>{false, false, false, true}));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
