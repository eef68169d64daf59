// SPDX-License-Identifier: Apache-2.0
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <functional>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/raw_hdf5.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/dump_file.hpp"
#include "verify/dump_writer.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

const std::string sample = TOKENVIEW_SOURCE_DIR "/data/engine/dump.rank";

/// A dump of tensor-parallel rank `tp` of two, one step.
DumpedStep small_step() {
  DumpedStep step;
  step.num_tokens = 2;
  step.inputs = {{5, 6}, {0, 1}, {0, 2}, {}, {0, 0}};
  step.taps["target/model.norm"] = {{1, 3}, {1, 2, 3}};
  step.taps["step0/mtp.fc"] = {{2, 3}, {1, 2, 3, 4, 5, 6}};
  step.ids["target/model.layers.0.mlp.gate.ids"] = {{1, 2}, {3, 4}};
  TokenView shard;
  shard.rows.append({0, 1});
  step.views["target/model.norm"] = shard;
  TokenView partial;
  partial.rows.append({0, 2});
  partial.sum = Completeness::summand(1, 2);
  partial.columns = {1, 2, 4};
  step.views["step0/mtp.fc"] = partial;
  step.collectives = {{"all_gather", "tp", "model.layers.0", 96, "float32", 0}};
  return step;
}

void write_rank(const std::string& path, std::int64_t tp, std::int64_t size = 2,
                const DumpedStep& step = small_step()) {
  const ParallelConfig parallel{.tp = size};
  DumpWriter writer(path, "a test");
  const RankCoordinates at = coordinates_of(tp, parallel);
  writer.write_rank(at, parallel, step.num_tokens);
  writer.write_step(at, step);
  writer.commit();
}

std::string refusal(const std::vector<std::string>& paths) {
  try {
    DumpFile::open(paths);
    return "it is read";
  } catch (const FileError& error) {
    return error.what();
  }
}

/// A change to a written file by the library alone.
struct Damage {
  const char* what;
  std::function<void(hid_t)> act;
  std::vector<std::string> expected;  // in the message

  friend std::ostream& operator<<(std::ostream& out, const Damage& d) { return out << d.what; }
};

void set_attribute(hid_t file, const char* object, const char* name, std::int64_t value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle at(H5Oopen(file, object, H5P_DEFAULT), H5Oclose);
  H5Adelete(at, name);
  const Hdf5Handle attribute(
      H5Acreate2(at, name, H5T_NATIVE_INT64, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  BOOST_REQUIRE(H5Awrite(attribute, H5T_NATIVE_INT64, &value) >= 0);
}

void set_text(hid_t file, const char* object, const char* name, const std::string& value) {
  const Hdf5Handle space(H5Screate(H5S_SCALAR), H5Sclose);
  const Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, value.size());
  const Hdf5Handle at(H5Oopen(file, object, H5P_DEFAULT), H5Oclose);
  if (H5Aexists(at, name) > 0) H5Adelete(at, name);
  const Hdf5Handle attribute(H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  BOOST_REQUIRE(H5Awrite(attribute, type, value.data()) >= 0);
}

void remove(hid_t file, const char* path) {
  BOOST_REQUIRE(H5Ldelete(file, path, H5P_DEFAULT) >= 0);
}

void put(hid_t file, const char* path, hid_t type, const std::vector<hsize_t>& shape,
         const void* values) {
  const Hdf5Handle space(H5Screate_simple(int(shape.size()), shape.data(), nullptr), H5Sclose);
  const Hdf5Handle made(H5Dcreate2(file, path, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
                        H5Dclose);
  BOOST_REQUIRE(made.is_open());
  if (values != nullptr)
    BOOST_REQUIRE(H5Dwrite(made, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
}

constexpr const char* rank = "/ranks/0";
constexpr const char* step = "/ranks/0/steps/0";
constexpr const char* norm = "/ranks/0/steps/0/taps/model.norm";
const double numbers[6] = {};

const Damage damages[] = {
    {"no schema", [](hid_t f) { H5Adelete(f, "schema"); }, {"schema", "tokenview.dump"}},
    {"a golden's schema",
     [](hid_t f) { set_text(f, "/", "schema", "tokenview.golden"); },
     {"tokenview.golden", "expected 'tokenview.dump'"}},
    {"a newer version",
     [](hid_t f) { set_attribute(f, "/", "schema_version", 2); },
     {"schema_version is 2", "newer than this program"}},
    {"no ranks", [](hid_t f) { remove(f, "/ranks"); }, {":/ranks", "expected a group"}},
    {"a foreign group",
     [](hid_t f) { H5Gclose(H5Gcreate2(f, "/weights", 0, 0, 0)); },
     {":/weights", "no part of this format"}},
    {"no tp_size",
     [](hid_t f) { H5Adelete_by_name(f, rank, "tp_size", H5P_DEFAULT); },
     {rank, "no attribute 'tp_size'"}},
    {"tp_rank out of range",
     [](hid_t f) { set_attribute(f, rank, "tp_rank", 7); },
     {"'tp_rank' is 7", "expected 0 to 1"}},
    {"a world of another size",
     [](hid_t f) { set_attribute(f, rank, "dp_size", 2); },
     {"tp_size x dp_size x pp_size", "world_size of 2"}},
    {"another rank's name", [](hid_t f) { set_attribute(f, rank, "rank", 1); }, {"'rank' is 1"}},
    {"tp_size as text",
     [](hid_t f) {
       H5Adelete_by_name(f, rank, "tp_size", H5P_DEFAULT);
       set_text(f, rank, "tp_size", "two");
     },
     {"'tp_size' is string", "expected an integer"}},
    {"no steps",
     [](hid_t f) { remove(f, "/ranks/0/steps"); },
     {"/ranks/0/steps", "is missing, expected a group"}},
    {"a step without a number",
     [](hid_t f) { H5Lmove(f, step, f, "/ranks/0/steps/first", H5P_DEFAULT, H5P_DEFAULT); },
     {"steps/first", "expected its number"}},
    {"a misspelt group",
     [](hid_t f) {
       H5Lmove(f, "/ranks/0/steps/0/taps", f, "/ranks/0/steps/0/tap", H5P_DEFAULT, H5P_DEFAULT);
     },
     {"steps/0/tap", "expected here: inputs, taps, mtp"}},
    {"a misspelt draft pass",
     [](hid_t f) {
       H5Lmove(f, "/ranks/0/steps/0/mtp/step0", f, "/ranks/0/steps/0/mtp/0", H5P_DEFAULT,
               H5P_DEFAULT);
     },
     {"mtp/0", "expected step0"}},
    {"a group among the taps",
     [](hid_t f) { H5Gclose(H5Gcreate2(f, "/ranks/0/steps/0/taps/x", 0, 0, 0)); },
     {"taps/x"}},
    {"float64",
     [](hid_t f) {
       remove(f, norm);
       put(f, norm, H5T_NATIVE_DOUBLE, {1, 3}, numbers);
     },
     {norm, "float64", "expected float32, float16 or bfloat16"}},
    {"a tap of one axis",
     [](hid_t f) {
       remove(f, norm);
       put(f, norm, H5T_NATIVE_FLOAT, {3}, numbers);
     },
     {norm, "[3]", "expected [rows, columns]"}},
    {"ids as floats",
     [](hid_t f) {
       remove(f, "/ranks/0/steps/0/taps/model.layers.0.mlp.gate.ids");
       put(f, "/ranks/0/steps/0/taps/model.layers.0.mlp.gate.ids", H5T_NATIVE_FLOAT, {1, 2},
           numbers);
     },
     {"gate.ids", "float32", "expected int64"}},
    {"a dangling link",
     [](hid_t f) {
       H5Lcreate_soft("/nowhere", f, "/ranks/0/steps/0/taps/x", H5P_DEFAULT, H5P_DEFAULT);
     },
     {"taps/x"}},
    {"an external link",
     [](hid_t f) {
       H5Lcreate_external("/etc/passwd", "/", f, "/ranks/0/steps/0/taps/x", H5P_DEFAULT,
                          H5P_DEFAULT);
     },
     {"taps/x"}},
    {"a name that is not UTF-8",
     [](hid_t f) {
       put(f, "/ranks/0/steps/0/taps/\xff", H5T_NATIVE_FLOAT, {1, 3}, numbers);
     },
     {"\\xff", "UTF-8"}},
    {"a view that is none",
     [](hid_t f) { set_text(f, norm, "view", "0..2"); },
     {norm, "'view' is '0..2'", "expected rows"}},
    {"a sum that is none",
     [](hid_t f) { set_text(f, norm, "view", "0-2 partial 3/2"); },
     {norm, "partial 3/2"}},
    {"columns that are none",
     [](hid_t f) { set_text(f, norm, "columns", "4/4"); },
     {norm, "'columns' is '4/4'"}},
    {"a position list of two axes",
     [](hid_t f) {
       remove(f, "/ranks/0/steps/0/inputs/positions");
       put(f, "/ranks/0/steps/0/inputs/positions", H5T_NATIVE_INT64, {1, 2}, numbers);
     },
     {"inputs/positions", "expected one axis"}},
    {"an unknown input",
     [](hid_t f) { put(f, "/ranks/0/steps/0/inputs/x", H5T_NATIVE_INT64, {2}, numbers); },
     {"inputs/x", "expected here: input_ids"}},
    {"collectives that are no table",
     [](hid_t f) {
       remove(f, "/ranks/0/steps/0/collectives");
       put(f, "/ranks/0/steps/0/collectives", H5T_NATIVE_INT64, {2}, numbers);
     },
     {"collectives", "expected a list of compounds"}},
    {"negative tokens",
     [](hid_t f) { set_attribute(f, step, "num_tokens", -4); },
     {"'num_tokens' is -4"}},
};

}  // namespace

BOOST_AUTO_TEST_SUITE(dump_file)

BOOST_AUTO_TEST_CASE(what_is_written_is_read_back) {
  const TemporaryFolder folder;
  write_rank(folder.file("a.h5"), 0);
  write_rank(folder.file("b.h5"), 1);
  const DumpFile dump = DumpFile::open({folder.file("b.h5"), folder.file("a.h5")});
  BOOST_TEST(dump.ranks().size() == 2);
  BOOST_TEST(dump.missing_ranks().empty());
  BOOST_TEST(dump.parallel().tp == 2);
  BOOST_TEST(dump.producer() == "a test");
  BOOST_TEST(dump.ranks()[1].at.tp == 1);

  const DumpStep& read = dump.ranks()[0].steps.at(0);
  BOOST_TEST(read.num_tokens == 2);
  BOOST_TEST(!read.dummy);
  BOOST_TEST(read.has_manifest);
  BOOST_TEST(read.lost.empty());
  BOOST_TEST((read.inputs->difference(small_step().inputs) == nullptr));
  BOOST_TEST((read.collectives == small_step().collectives));
  BOOST_TEST(read.taps.size() == 3);

  const DumpTap& tap = read.taps.at("step0/mtp.fc");
  BOOST_TEST(dump.values(tap).values == small_step().taps["step0/mtp.fc"].values);
  BOOST_TEST((*tap.view == small_step().views["step0/mtp.fc"]));
  BOOST_TEST((*read.taps.at("target/model.norm").view == small_step().views["target/model.norm"]));
  BOOST_TEST(dump.ids(read.taps.at("target/model.layers.0.mlp.gate.ids")).values ==
             std::vector<std::int64_t>({3, 4}));
}

BOOST_AUTO_TEST_CASE(the_batch_axis_of_a_hook_is_no_row) {
  const TemporaryFolder folder;
  const auto shape_of = [&](std::int64_t num_tokens, const std::string& tap,
                            const std::vector<std::int64_t>& shape) {
    DumpedStep step = small_step();
    step.num_tokens = num_tokens;
    step.inputs = {};
    step.inputs.input_ids.assign(std::size_t(num_tokens), 5);
    std::int64_t count = 1;
    for (const std::int64_t size : shape) count *= size;
    if (tap.ends_with("ids"))
      step.ids[tap] = {shape, std::vector<std::int64_t>(std::size_t(count), 1)};
    else
      step.taps[tap] = {shape, std::vector<float>(std::size_t(count), 1)};
    write_rank(folder.file("a.h5"), 0, 1, step);
    const DumpFile dump = DumpFile::open({folder.file("a.h5")});
    const DumpTap& read = dump.ranks()[0].steps.at(0).taps.at(tap);
    BOOST_TEST(read.shape == (tap.ends_with("ids") ? dump.ids(read).shape : read.shape),
               boost::test_tools::per_element());
    return to_string(read.shape);
  };
  BOOST_TEST(shape_of(2, "target/model.layers.0", {1, 2, 3}) == "[2, 3]");
  BOOST_TEST(shape_of(2, "target/model.layers.0.self_attn.q_norm", {1, 2, 4, 3}) == "[2, 4, 3]");
  BOOST_TEST(shape_of(2, "target/model.layers.1.mlp.gate.ids", {1, 2, 4}) == "[2, 4]");
  BOOST_TEST(shape_of(2, "step0/input_ids", {1, 2}) == "[2]");
  // One token of several heads; a row of a shard; a later draft pass, whose rows are not said.
  BOOST_TEST(shape_of(1, "target/model.layers.0.self_attn.q_norm", {1, 4, 3}) == "[1, 4, 3]");
  BOOST_TEST(shape_of(2, "target/model.layers.0", {1, 3}) == "[1, 3]");
  BOOST_TEST(shape_of(2, "target/model.layers.1.mlp.gate.ids", {1, 4}) == "[1, 4]");
  BOOST_TEST(shape_of(2, "step1/mtp.layers.0.self_attn.q_norm", {1, 4, 3}) == "[1, 4, 3]");
}

BOOST_AUTO_TEST_CASE(a_dump_of_a_real_engine) {
  const DumpFile dump = DumpFile::open({sample + "0.h5", sample + "1.h5"});
  BOOST_TEST(dump.parallel().enable_expert_parallel);
  BOOST_TEST(dump.steps() == std::vector<std::int64_t>({0, 1}));
  const DumpStep& second = dump.ranks()[1].steps.at(1);
  BOOST_TEST(second.num_tokens == 9);
  BOOST_TEST(second.collectives.size() == 47);
  BOOST_TEST(second.collectives[1].op == "all_gather");
  BOOST_TEST(second.collectives[1].count == 320);
  // Per head, flattened.
  BOOST_TEST(dump.values(second.taps.at("target/model.layers.3.self_attn.q_norm")).shape ==
             std::vector<std::int64_t>({9, 64}));
  BOOST_TEST(to_string(second.taps.at("step0/logits").view->rows) == "0,3,6");
}

BOOST_AUTO_TEST_CASE(a_name_of_the_manifest_without_data_is_lost) {
  const TemporaryFolder folder;
  write_rank(folder.file("a.h5"), 0, 1);
  {
    const Hdf5Handle file(H5Fopen(folder.file("a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT),
                          H5Fclose);
    remove(file, "/ranks/0/steps/0/mtp");  // with all that is below
    remove(file, norm);
  }
  const DumpFile dump = DumpFile::open({folder.file("a.h5")});
  BOOST_TEST(dump.ranks()[0].steps.at(0).lost ==
                 std::vector<std::string>({"mtp/step0/mtp.fc", "taps/model.norm"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(ranks_must_be_of_one_world) {
  const TemporaryFolder folder;
  write_rank(folder.file("a.h5"), 0);
  write_rank(folder.file("b.h5"), 0);
  write_rank(folder.file("c.h5"), 1, 4);
  BOOST_TEST(refusal({folder.file("a.h5"), folder.file("b.h5")}).find("as well") !=
             std::string::npos);
  BOOST_TEST(refusal({folder.file("a.h5"), folder.file("c.h5")}).find("of a world of tp") !=
             std::string::npos);
  BOOST_TEST(DumpFile::open({folder.file("a.h5")}).missing_ranks() ==
             std::vector<std::int64_t>({1}));
}

BOOST_AUTO_TEST_CASE(truncated_files_and_files_of_other_formats_are_refused) {
  const TemporaryFolder folder;
  write_rank(folder.file("a.h5"), 0);
  const std::string whole = read_bytes(folder.file("a.h5"));
  for (const std::size_t bytes :
       {std::size_t(0), std::size_t(7), whole.size() / 2, whole.size() - 1}) {
    write_bytes(folder.file("cut.h5"), whole.substr(0, bytes));
    BOOST_TEST_CONTEXT(bytes << " bytes")
    BOOST_TEST(refusal({folder.file("cut.h5")}).find("cut.h5") != std::string::npos);
  }
  write_bytes(folder.file("text.h5"), "no dump");
  BOOST_TEST(refusal({folder.file("text.h5")}).find("text.h5") != std::string::npos);
  BOOST_TEST(refusal({folder.file("none.h5")}).find("none.h5") != std::string::npos);
}

BOOST_DATA_TEST_CASE(what_is_not_as_described_is_one_clear_error, data::make(damages), damage) {
  const TemporaryFolder folder;
  write_rank(folder.file("a.h5"), 0);
  BOOST_TEST(refusal({folder.file("a.h5")}) == "it is read");
  {
    const Hdf5Quiet quiet;
    const Hdf5Handle file(H5Fopen(folder.file("a.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT),
                          H5Fclose);
    damage.act(file);
  }
  const std::string message = refusal({folder.file("a.h5")});
  BOOST_TEST(message.find("a.h5") != std::string::npos, message);
  for (const std::string& part : damage.expected)
    BOOST_TEST(message.find(part) != std::string::npos, message << " lacks " << part);
  BOOST_TEST(message.find('\n') == std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_dump_takes_its_place_when_it_is_whole) {
  const TemporaryFolder folder;
  write_bytes(folder.file("a.h5"), "what was there");
  {
    DumpWriter writer(folder.file("a.h5"), "a test");
    writer.write_rank({}, {}, 2);
  }
  BOOST_TEST(read_bytes(folder.file("a.h5")) == "what was there");
  BOOST_TEST(folder.count() == 1);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
