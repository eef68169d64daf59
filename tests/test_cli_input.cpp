// SPDX-License-Identifier: Apache-2.0
// Bad input from the command line: one clear line each, exit code 2, no crash, nothing written.
#include <hdf5.h>
#include <sys/file.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/boost_test.hpp"
#include "tests/cli_run.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;

/// A golden file of one small case, made once.
struct Golden {
  TemporaryFolder folder;
  std::string path = folder.file("golden.h5");

  Golden() {
    const Ended end = run({"record", "--config", "qwen3-next", "--cases", "a=3+2", "--draft-steps",
                           "1", "--out", path});
    if (end.code != 0) throw std::runtime_error(end.err);
  }
};
const Golden& golden() {
  static const Golden made;
  return made;
}

// ---- surgery on an HDF5 file that is open for writing

void remove_link(hid_t file, const char* path) {
  if (H5Lexists(file, path, H5P_DEFAULT) > 0) H5Ldelete(file, path, H5P_DEFAULT);
}

void write_data(hid_t file, const char* path, hid_t type, const std::vector<hsize_t>& shape,
                const void* values) {
  remove_link(file, path);
  const hid_t space = H5Screate_simple(int(shape.size()), shape.data(), nullptr);
  const hid_t data = H5Dcreate2(file, path, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
  H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
  H5Dclose(data);
  H5Sclose(space);
}

/// Replaces single elements of a data set that stays as it is.
template <class T>
void write_element(hid_t file, const char* path, hid_t type, std::size_t index, T value) {
  const hid_t data = H5Dopen2(file, path, H5P_DEFAULT);
  const hid_t space = H5Dget_space(data);
  std::vector<T> values(std::size_t(H5Sget_simple_extent_npoints(space)));
  H5Dread(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  values.at(index) = value;
  H5Dwrite(data, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  H5Sclose(space);
  H5Dclose(data);
}

/// A chunked data set that claims `shape` and stores nothing.
void claim_shape(hid_t file, const char* path, const std::vector<hsize_t>& shape) {
  remove_link(file, path);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  const std::vector<hsize_t> chunk(shape.size(), 1);
  H5Pset_chunk(properties, int(chunk.size()), chunk.data());
  const hid_t space = H5Screate_simple(int(shape.size()), shape.data(), nullptr);
  H5Dclose(H5Dcreate2(file, path, H5T_IEEE_F32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT));
  H5Sclose(space);
  H5Pclose(properties);
}

void set_version(hid_t file, std::int64_t version) {
  const hid_t attribute = H5Aopen(file, "schema_version", H5P_DEFAULT);
  H5Awrite(attribute, H5T_NATIVE_INT64, &version);
  H5Aclose(attribute);
}

constexpr const char* norm = "/weights/model.norm.weight";         // [64]
constexpr const char* head = "/weights/lm_head.weight";            // [160, 64]
constexpr const char* ids = "/cases/a/inputs/input_ids";           // [5]
constexpr const char* starts = "/cases/a/inputs/query_start_loc";  // [3]
constexpr const char* tap = "/cases/a/taps/model.layers.1.mlp";    // [5, 64]
constexpr const char* draft_tap = "/cases/a/mtp/step0/mtp.fc";     // [5, 64]
const std::vector<float> zeros(160 * 64, 0.0f);

/// What is done to a good file, and what the error must name.
struct Fault {
  const char* name;
  std::function<void(hid_t)> make;
  std::vector<std::string> said;
};
std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

const std::vector<Fault> faults = {
    {"no schema", [](hid_t f) { H5Adelete(f, "schema"); }, {"no attribute 'schema'"}},
    {"newer schema_version",
     [](hid_t f) { set_version(f, 2); },
     {"schema_version is 2, expected 1", "newer"}},
    {"no configuration", [](hid_t f) { remove_link(f, "/config"); }, {"/config"}},
    {"a weight of another type",
     [](hid_t f) { write_data(f, norm, H5T_NATIVE_INT, {64}, zeros.data()); },
     {norm, "expected float32 or bfloat16"}},
    {"a weight of another rank",
     [](hid_t f) {
       write_data(f, norm, H5T_NATIVE_FLOAT, {8, 8}, zeros.data());
     },
     {norm, "[8, 8]", "[64]"}},
    {"a weight of another shape",
     [](hid_t f) {
       write_data(f, head, H5T_NATIVE_FLOAT, {64, 160}, zeros.data());
     },
     {head, "[64, 160]", "[160, 64]"}},
    {"a dimension of 2^40",
     [](hid_t f) {
       claim_shape(f, head, {hsize_t(1) << 40, 64});
     },
     {head}},
    {"a tap with a dimension of 2^40",
     [](hid_t f) {
       claim_shape(f, tap, {5, hsize_t(1) << 40});
     },
     {tap}},
    {"a missing weight", [](hid_t f) { remove_link(f, head); }, {head, "missing"}},
    {"a weight too many",
     [](hid_t f) { write_data(f, "/weights/more", H5T_NATIVE_FLOAT, {1}, zeros.data()); },
     {"/weights/more"}},
    {"a missing tap", [](hid_t f) { remove_link(f, tap); }, {"a/target/model.layers.1.mlp"}},
    {"a missing draft tap", [](hid_t f) { remove_link(f, draft_tap); }, {"a/step0/mtp.fc"}},
    {"a tap too many",
     [](hid_t f) {
       write_data(f, "/cases/a/taps/more", H5T_NATIVE_FLOAT, {5, 1}, zeros.data());
     },
     {"a/target/more"}},
    {"a tap of another type",
     [](hid_t f) {
       write_data(f, tap, H5T_NATIVE_INT, {5, 64}, zeros.data());
     },
     {tap}},
    {"a tap of other rows",
     [](hid_t f) {
       write_data(f, tap, H5T_NATIVE_FLOAT, {4, 64}, zeros.data());
     },
     {tap, "[4, 64]", "[5, "}},
    {"an external link",
     [](hid_t f) {
       remove_link(f, head);
       H5Lcreate_external("/etc/hostname", "/x", f, head, H5P_DEFAULT, H5P_DEFAULT);
     },
     {head}},
    {"a dangling link",
     [](hid_t f) {
       remove_link(f, head);
       H5Lcreate_soft("/nowhere", f, head, H5P_DEFAULT, H5P_DEFAULT);
     },
     {head}},
    {"NaN in a weight",
     [](hid_t f) {
       write_element(f, norm, H5T_NATIVE_FLOAT, 7, std::numeric_limits<float>::quiet_NaN());
     },
     {norm, "nan", "element 7"}},
    {"an id as large as the vocabulary",
     [](hid_t f) { write_element(f, ids, H5T_NATIVE_INT64, 1, std::int64_t(160)); },
     {ids, "160", "0 to 159"}},
    {"a negative id",
     [](hid_t f) { write_element(f, ids, H5T_NATIVE_INT64, 4, std::int64_t(-1)); },
     {ids, "-1"}},
    {"query_start_loc that falls",
     [](hid_t f) { write_element(f, starts, H5T_NATIVE_INT32, 1, std::int32_t(6)); },
     {starts, "falls from 6 to 5"}},
    {"a configuration that cannot be",
     [](hid_t f) {
       remove_link(f, "/config");
       const std::string json = R"({"model_type": "qwen4"})";
       const hid_t type = H5Tcopy(H5T_C_S1);
       H5Tset_size(type, json.size());
       const hid_t space = H5Screate(H5S_SCALAR);
       const hid_t text =
           H5Dcreate2(f, "/config", type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
       H5Dwrite(text, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, json.data());
       H5Dclose(text);
       H5Sclose(space);
       H5Tclose(type);
     },
     {"/config", "qwen4"}},
};

/// One line on standard error that names the file, and exit code 2.
void require_refused(const Ended& end, const std::string& file,
                     const std::vector<std::string>& said, int code = 2) {
  BOOST_TEST(end.code == code, end.code << ": " << end.err);
  BOOST_TEST(end.error_lines() == 1, end.err);
  BOOST_TEST(end.err.starts_with("tokenview: error: "), end.err);
  for (const std::string& part : said) BOOST_TEST(contains(end.err, part), part + " in " + end.err);
  BOOST_TEST(contains(end.err, file), end.err);
}

BOOST_AUTO_TEST_CASE(the_file_that_the_faults_are_put_into_is_good) {
  BOOST_TEST(run({"check", golden().path}).code == 0);
}

BOOST_DATA_TEST_CASE(a_faulty_golden_is_refused_by_check, data::make(faults), fault) {
  const TemporaryFolder folder;
  const std::string path = folder.file("bad.h5");
  std::filesystem::copy(golden().path, path);
  const hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
  fault.make(file);
  H5Fclose(file);

  const Ended end = run({"check", path, golden().path});
  require_refused(end, "bad.h5", fault.said);
  BOOST_TEST(contains(end.out, "ok    " + golden().path));  // the good one is checked all the same
}

struct BadFile {
  const char* name;
  std::function<void(const std::string& path)> make;
};
std::ostream& operator<<(std::ostream& out, const BadFile& file) { return out << file.name; }

const std::vector<BadFile> bad_files = {
    {"missing", [](const std::string&) {}},
    {"empty", [](const std::string& path) { write_bytes(path, ""); }},
    {"truncated",
     [](const std::string& path) {
       const std::string whole = read_bytes(golden().path);
       write_bytes(path, whole.substr(0, whole.size() / 2));
     }},
    {"random bytes",
     [](const std::string& path) {
       std::mt19937 random(1);
       std::string bytes(4096, '\0');
       for (char& c : bytes) c = char(random());
       write_bytes(path, bytes);
     }},
    {"text", [](const std::string& path) { write_bytes(path, "no HDF5 at all\n"); }},
    {"a folder without golden files",
     [](const std::string& path) { std::filesystem::create_directory(path); }},
    {"a name with a newline", [](const std::string&) {}},
};

BOOST_DATA_TEST_CASE(a_file_that_is_no_golden_is_refused_by_every_verb,
                     data::make(bad_files) * data::make({"check", "info", "record"}), bad, verb) {
  const TemporaryFolder folder;
  const bool odd_name = contains(bad.name, "newline");
  const std::string path = folder.file(odd_name ? "bad\n.h5" : "bad.h5");
  bad.make(path);
  const std::size_t entries = folder.count();
  const std::vector<std::string> line =
      std::string(verb) == "record"
          ? std::vector<std::string>{"record", "--from", path, "--out", folder.file("new.h5")}
          : std::vector<std::string>{verb, path};
  require_refused(run(line), "bad", {});
  BOOST_TEST(folder.count() == entries);
}

BOOST_AUTO_TEST_CASE(a_file_that_may_not_be_read_is_refused) {
  const TemporaryFolder folder;
  const std::string path = folder.file("bad.h5");
  std::filesystem::copy(golden().path, path);
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (Process({"cat", path}, {.obey_permissions = true}).end().code == 0) {
    BOOST_TEST_MESSAGE("skipped: permissions mean nothing to this user");
    return;
  }
  require_refused(run({"check", path}, {.obey_permissions = true}), "bad.h5",
                  {"Permission denied"});
}

struct BadConfig {
  const char* name;
  std::string json;
  std::string said;
};
std::ostream& operator<<(std::ostream& out, const BadConfig& bad) { return out << bad.name; }

const std::vector<BadConfig> bad_configs = {
    {"empty", "", "config.json"},
    {"cut off", R"({"model_type": "qwen3_next",)", "config.json"},
    {"another model", R"({"model_type": "llama"})", "llama"},
    {"binary", std::string("\x00\x01\xff{", 4), "config.json"},
};

BOOST_DATA_TEST_CASE(a_bad_configuration_is_refused_by_record, data::make(bad_configs), bad) {
  const TemporaryFolder folder;
  write_bytes(folder.file("config.json"), bad.json);
  require_refused(
      run({"record", "--config", folder.file("config.json"), "--out", folder.file("new.h5")}),
      "config.json", {bad.said});
  BOOST_TEST(folder.count() == 1u);
}

// ---- output that cannot be written

Ended record_to(const std::string& path, const Surroundings& with = {}) {
  return run({"record", "--config", "qwen3-next", "--cases", "one", "--out", path}, with);
}

BOOST_AUTO_TEST_CASE(a_folder_that_does_not_exist_is_refused) {
  const TemporaryFolder folder;
  require_refused(record_to(folder.file("absent/new.h5")), "absent", {"No such file or directory"});
  BOOST_TEST(folder.count() == 0u);
}

BOOST_AUTO_TEST_CASE(a_device_and_a_folder_are_no_place_for_a_golden) {
  const TemporaryFolder folder;
  require_refused(record_to("/dev/full"), "/dev/full", {"no regular file"});
  require_refused(record_to(folder.file("")), "", {"no regular file"});
}

BOOST_AUTO_TEST_CASE(a_folder_without_permission_is_refused) {
  const TemporaryFolder folder;
  const std::string locked = folder.file("locked");
  std::filesystem::create_directory(locked);
  std::filesystem::permissions(
      locked, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  if (Process({"touch", locked + "/probe"}, {.obey_permissions = true}).end().code == 0) {
    BOOST_TEST_MESSAGE("skipped: permissions mean nothing to this user");
    return;
  }
  require_refused(record_to(locked + "/new.h5", {.obey_permissions = true}), "locked",
                  {"Permission denied"});
}

/// A limit on the size of files stands in for a full disk: both fail in the middle of a write.
BOOST_DATA_TEST_CASE(a_write_that_fails_leaves_the_old_file_and_nothing_else,
                     data::make({1024, 4096, 100'000, 1'000'000}), bytes) {
  const TemporaryFolder folder;
  write_bytes(folder.file("a.h5"), "old");
  require_refused(record_to(folder.file("a.h5"), {.largest_file = rlim_t(bytes)}), "a.h5",
                  {"File too large"});
  BOOST_TEST(read_bytes(folder.file("a.h5")) == "old");
  BOOST_TEST(folder.count() == 1u);
}

// ---- parallel configurations, releases and scenarios

/// A command line that cannot be meant, and what the error must name.
struct BadLine {
  std::vector<std::string> words, said;
};
std::ostream& operator<<(std::ostream& out, const BadLine& line) {
  for (const std::string& word : line.words) out << word << ' ';
  return out;
}

const std::vector<BadLine> bad_lines = {
    {{"run", "--tp", "0"}, {"--tp", "'0'", "1 to 32"}},
    {{"run", "--tp", "1.5"}, {"--tp", "'1.5'"}},
    {{"run", "--dp", "-1"}, {"--dp", "'-1'"}},
    {{"run", "--pp", "99999999999999999999"}, {"--pp", "1 to 32"}},
    {{"run", "--pp", "5"}, {"pp=5", "at most 4"}},
    {{"run", "--tp", "32", "--dp", "32"}, {"32 x 32", "at most 32"}},
    {{"run", "--tp", "16"}, {"heads (8)", "(16)"}},
    {{"run", "--tp", "3"}, {"heads (8)", "(3)"}},
    {{"run", "--draft-steps", "x"}, {"--draft-steps", "'x'", "0 to 16"}},
    {{"run", "--model", "qwen3.5-mo"}, {"'qwen3.5-mo'", "did you mean qwen3.5-moe?"}},
    {{"run", "--model", "deepseek-v2", "--draft-steps", "1"}, {"no MTP layer"}},
    {{"run", "--protocol", "vllm-5319"}, {"\"vllm-5319\"", "did you mean vllm-53191?"}},
    {{"run", "--protocol", ""}, {"protocol \"\"", "S, A, B"}},
    {{"run", "--protocol", "D"}, {"--protocol D", "--ep"}},
    {{"run", "--dispatch", "nave", "--ep"}, {"\"nave\"", "did you mean naive?"}},
    {{"run", "--engine", "vlm-0.26.0"}, {"\"vlm-0.26.0\"", "did you mean vllm-0.26.0?"}},
    {{"run", "--engine", "vllm-0.99.0"}, {"a newer one", "vllm-0.33.0"}},
    {{"run", "--engine", "vllm-0.2.0"}, {"an older one", "vllm-0.11.0"}},
    {{"run", "--engine", "vllm-0.26.0", "--tp", "2", "--dp", "2", "--ep", "--protocol", "D"},
     {"--protocol D contradicts --engine vllm-0.26.0"}},
    {{"run", "--engine", "vllm-0.26.0", "--tp", "2", "--dp", "2", "--ep", "--all2all-backend",
      "pplz"},
     {"\"pplz\"", "did you mean pplx?"}},
    {{"run", "--all2all-backend", "naive"}, {"--all2all-backend without --engine"}},
    {{"run", "--tokens", ""}, {"requests: empty"}},
    {{"run", "--tokens", "x"}, {"requests \"x\"", "column 1"}},
    {{"run", "--tokens", "-3"}, {"requests \"-3\""}},
    {{"run", "--tokens", "3,5"}, {"for 2 dp ranks, expected 1"}},
    {{"run", "--tokens", "3,5,1", "--dp", "2"}, {"for 3 dp ranks, expected 2"}},
    {{"run", "--tokens", "3,,5", "--dp", "2"}, {"column 3"}},
    {{"run", "--tokens", "99999999"}, {"0 to 16777216"}},
    {{"run", "--requests", "3/4,5", "--dp", "2"}, {"both ',' and '/'"}},
    {{"run", "--requests", "4v9"}, {"9 drafts verified in 4 rows"}},
    {{"run", "--requests", "4v2r3"}, {"3 of 2 drafts rejected"}},
    {{"run", "--requests", "4+"}, {"column 3"}},
    {{"run", "--graph-sizes", "4,2"}, {"--graph-sizes", "ascending"}},
    {{"run", "--graph-sizes", "0,2"}, {"--graph-sizes", "at least 1"}},
    {{"run", "--graph-sizes", "a"}, {"--graph-sizes", "'a'"}},
    {{"run", "--graph-sizes", "4", "--enforce-eager"}, {"--enforce-eager contradicts"}},
    {{"run", "--aux-layers", "5"}, {"--aux-layers 5", "0 to 4"}},
    {{"run", "--aux-layers", "-1"}, {"--aux-layers", "'-1'"}},
    {{"run", "--runner", "V3"}, {"--runner", "'V3'"}},
    {{"run", "--correct-target"}, {"--correct-target without --draft-steps"}},
    {{"run", "--disable-padded-drafter-batch"}, {"without --draft-steps"}},
    {{"run", "--numeric", "--tokens", "100000"}, {"--numeric", "100000", "at most"}},
    {{"run", "--numeric", "--model", "deepseek-v3.2"}, {"deepseek_v32"}},
    {{"run", "--fault", "drp:trim"}, {"\"drp\"", "did you mean drop?"}},
    {{"run", "--fault", "drop"}, {"op: is missing"}},
    {{"run", "--fault", "drop:trim,tp=x"}, {"\"tp=x\""}},
    {{"run", "--fault", "drop:trim,foo=1"}, {"foo: no such key"}},
    {{"run", "--fault", "drop:all_reduce,group=zp"}, {"group", "\"zp\"", "tp, dp, ep, pp"}},
    {{"run", "--fault", "replace:all_reduce,with=all_gater"}, {"did you mean all_gather?"}},
    {{"run", "--fault", "drop:trim@nowhere"}, {"never met its place"}},
    {{"run", "--format", "json"}, {"--format", "did you mean jsonl?"}},
    {{"run", "--tokns", "3"}, {"'--tokns'", "did you mean --tokens?"}},
    {{"run", "more"}, {"'more' is one argument too many"}},
    {{"repro"}, {"the name of a scenario"}},
    {{"repro", "vllm-4842"}, {"\"vllm-4842\"", "did you mean vllm-48429?"}},
    {{"repro", "vllm-48429", "--tp", "0"}, {"--tp", "'0'"}},
    {{"repro", "vllm-48429", "--tp", "16"}, {"heads (8)", "(16)"}},
    {{"repro", "vllm-48429", "--tokens", "1,2"}, {"for 2 dp ranks, expected 1"}},
    {{"repro", "vllm-48429", "--tokens", "x"}, {"requests \"x\""}},
    {{"repro", "vllm-48429", "--format", "xml"}, {"--format", "'xml'"}},
    {{"repro", "vllm-50681", "--with-target"}, {"--with-target", "vllm-50681"}},
    {{"repro", "--list", "--repaired"}, {"--list", "--repaired"}},
    {{"repro", "--list", "vllm-48429"}, {"--list", "NAME"}},
    {{"repro", "--coverage", "--list"}, {"--coverage", "--list"}},
    {{"affected"}, {"--engine"}},
    {{"affected", "--engine", "vllm-0.26.0", "--tp", "16"}, {"heads (8)", "(16)"}},
    {{"affected", "--engine", "vllm-0.26.0", "--all2all-backend", "pplz"}, {"did you mean pplx?"}},
    {{"affected", "--engine", "vllm-0.26.0", "--draft-steps", "99"}, {"--draft-steps", "0 to 16"}},
    {{"affected", "--matrix", "--engine", "vllm-0.26.0"}, {"--matrix", "--engine"}},
    {{"affected", "--matrix", "--tp", "2"}, {"--matrix", "--tp"}},
    {{"cost", "--tp", "33"}, {"--tp", "1 to 32"}},
    {{"cost", "--tp", "5"}, {"heads (32)", "(5)"}},
    {{"cost", "--tokens", "1,2"}, {"for 2 dp ranks, expected 1"}},
    {{"cost", "--element-bytes", "0"}, {"--element-bytes", "1 to 8"}},
    {{"cost", "--model", "qwen"}, {"'qwen'"}},
    {{"cost", "--format", "yaml"}, {"--format", "'yaml'"}},
    {{"record", "--config", "qwen3-next", "--out", "/nowhere/x.h5", "--cases", "a\nb=2"},
     {"a\\x0ab", "control"}},
    {{"record", "--config", "qwen3-next", "--out", "/nowhere/x.h5", "--cases", "a\x01=2"},
     {"a\\x01"}},
    {{"record", "--config", "qwen3-next", "--out", "/nowhere/x.h5", "--cases", "a\xc2\x9b=2"},
     {"a\\u009b"}},
    {{"record", "--config", "qwen3-next", "--out", "/nowhere/x.h5", "--cases", "a\xe2\x80\xae=2"},
     {"a\\u202e"}},
    {{"record", "--config", "qwen3-next", "--out", "/nowhere/x.h5", "--cases", "a\xe2\x81\xa6=2"},
     {"a\\u2066"}},
    {{"run", "--model", "\xc2\x9b.h5"}, {"\\u009b"}},
    {{"sweep", "--shard", "0/2"}, {"--shard \"0/2\"", "1 <= i <= n"}},
    {{"sweep", "--shard", "3/2"}, {"--shard \"3/2\""}},
    {{"sweep", "--shard", "1/2/3"}, {"--shard \"1/2/3\""}},
    {{"sweep", "--shard", ""}, {"--shard"}},
    {{"sweep", "--threads", "0"}, {"--threads", "1 to 256"}},
    {{"sweep", "--mutants", "--shard", "1/2"}, {"--mutants", "--shard"}},
    {{"sweep", "--state", "/nowhere/at/all"}, {"/nowhere/at/all: cannot be written"}},
    {{"check", "--matrix=fast"}, {"--matrix", "'fast'"}},
    {{"check", "--matrix", "--tp", "x"}, {"--tp", "'x'"}},
    {{"check", "--matrix", "--protocol", "vllm-5192"}, {"did you mean vllm-51927?"}},
    {{"check", "--matrix", "--tokens", "x"}, {"--tokens", "'x'"}},
    {{"check", "--matrix", "--only", "mlp"}, {"--only", "--matrix"}},
    {{"check", "--protocol", "D"}, {"--protocol requires --matrix"}},
    {{"check", "--comm", "mpi"}, {"--comm requires --matrix"}},
    {{"check", "--matrix", "--comm", "nccl"}, {"--comm nccl", "--device cuda"}},
    {{"check", "--matrix", "--device", "gpu"}, {"'gpu'", "cpu, cuda, auto"}},
    {{"run", "--device", "cuda"}, {"--device and --comm", "expected --numeric"}},
    {{"run", "--comm", "mpi"}, {"--device and --comm", "expected --numeric"}},
    {{"run", "--numeric", "--comm", "nccl"}, {"--comm nccl", "--device cuda"}},
    {{"run", "--numeric", "--comm", "mpi"}, {"--comm mpi"}},
    {{"run", "--numeric", "--comm", "ncl"}, {"'ncl'", "did you mean nccl?"}},
    {{"repro", "vllm-48429", "--device", "gpu"}, {"'gpu'", "cpu, cuda, auto"}},
    {{"repro", "vllm-48763", "--device", "cuda"}, {"deepseek_v32", "numeric work"}},
    {{"repro", "sglang-18685", "--device", "cuda"},
     {"poison:embed_tokens", "not injected on a GPU"}},
    {{"devices", "0"}, {"'0' is one argument too many"}},
    {{"--generate", "everything"}, {"'everything'", "protocols"}},
};

BOOST_DATA_TEST_CASE(a_line_that_cannot_be_meant_is_refused, data::make(bad_lines), line) {
  require_refused(run(line.words, {.folder = TOKENVIEW_SOURCE_DIR}), "", line.said);
}

/// No GPU, on any machine.
const Surroundings without_gpu = {.folder = TOKENVIEW_SOURCE_DIR,
                                  .variables = {{"CUDA_VISIBLE_DEVICES", ""}}};

BOOST_AUTO_TEST_CASE(a_gpu_that_is_demanded_and_not_there_is_one_error) {
  const TemporaryFolder folder;
  for (std::vector<std::string> words : std::vector<std::vector<std::string>>{
           {"check", golden().path},
           {"check", "--matrix=quick", golden().path},
           {"record", "--from", golden().path, "--out", folder.file("new.h5")},
           {"repro", "vllm-48429"},
           {"run", "--numeric", "--tokens", "2"},
           {"run", "--numeric", "--tokens", "2", "--comm", "nccl"}}) {
    words.insert(words.end(), {"--device", "cuda"});
    require_refused(run(words, without_gpu), "", {"no GPU: "}, 77);
  }
  BOOST_TEST(folder.count() == 0);
}

BOOST_AUTO_TEST_CASE(a_fault_that_does_not_show_at_other_sizes_is_said_to) {
  for (const std::string name : {"vllm-50681", "vllm-48763"}) {
    const Ended end = run({"repro", name, "--tokens", name == "vllm-50681" ? "10" : "0"});
    BOOST_TEST(end.code == 6, end.out);
    BOOST_TEST(contains(end.out, "the fault does not show here, at other sizes\n"), end.out);
    BOOST_TEST(!contains(end.out, "repaired variant is not clean"), end.out);
  }
  BOOST_TEST(run({"cost", "--ep", "--tokens", "4"}).code == 0);
}

BOOST_AUTO_TEST_CASE(a_gpu_that_may_be_there_is_done_without) {
  const TemporaryFolder folder;
  for (std::vector<std::string> words : std::vector<std::vector<std::string>>{
           {"check", golden().path},
           {"record", "--from", golden().path, "--out", folder.file("new.h5")},
           {"run", "--numeric", "--tokens", "2"}}) {
    words.insert(words.end(), {"--device", "auto"});
    const Ended end = run(words, without_gpu);
    BOOST_TEST(end.code == 0, end.err);
  }
  const Ended repro = run({"repro", "vllm-48429", "--device", "auto"}, without_gpu);
  BOOST_TEST(repro.code == 1);
  BOOST_TEST(contains(repro.err, "note: no GPU: "));
  BOOST_TEST(contains(repro.err, ": on token views alone"));
}

/// A folder that has one good scenario, and another of the given bytes.
struct ScenarioFolder {
  TemporaryFolder folder;

  explicit ScenarioFolder(const std::string& bad) {
    std::filesystem::create_directories(folder.file("data/scenarios"));
    std::filesystem::copy(TOKENVIEW_SOURCE_DIR "/data/scenarios/vllm-48429.json",
                          folder.file("data/scenarios/vllm-48429.json"));
    write_bytes(folder.file("data/scenarios/z-bad.json"), bad);
  }
  Ended repro(const std::string& word) const {
    return run({"repro", word}, {.folder = folder.file("")});
  }
};

using Json = nlohmann::json;

/// What is done to a good scenario, and what the error must name.
struct BadScenario {
  const char* name;
  std::function<std::string(Json scenario)> make;
  std::vector<std::string> said;
};
std::ostream& operator<<(std::ostream& out, const BadScenario& bad) { return out << bad.name; }

/// The good scenario with another value at a JSON pointer.
std::function<std::string(Json)> with(const std::string& at, const Json& value) {
  return [at, value](Json scenario) {
    scenario[Json::json_pointer(at)] = value;
    return scenario.dump();
  };
}
std::function<std::string(Json)> without(const std::string& key) {
  return [key](Json scenario) {
    scenario.erase(key);
    return scenario.dump();
  };
}

const std::vector<BadScenario> bad_scenarios = {
    {"empty", [](const Json&) { return std::string(); }, {"is empty"}},
    {"cut off", [](const Json& s) { return s.dump().substr(0, 100); }, {"line 1"}},
    {"binary", [](const Json&) { return std::string("\x00\x01\xff{", 4); }, {"line 1"}},
    {"a list", [](const Json& s) { return Json::array({s}).dump(); }, {"object"}},
    {"a key twice",
     [](const Json& s) { return "{\"name\": \"a\"," + s.dump().substr(1); },
     {"name"}},
    {"another schema", with("/schema", "other"), {"schema", "\"other\""}},
    {"a newer version", with("/version", 2), {"version", "2"}},
    {"no name", without("name"), {"name"}},
    {"no expectation", without("expect"), {"expect"}},
    {"no repair", without("repair"), {"repair"}},
    {"no requests", without("requests"), {"requests"}},
    {"an unknown key", with("/protocl", "B"), {"protocl", "no such key"}},
    {"an unknown protocol", with("/protocol", "vllm-5319"), {"did you mean vllm-53191?"}},
    {"an unknown dispatch", with("/dispatch", "nave"), {"did you mean naive?"}},
    {"an unknown check", with("/expect/check", "row"), {"did you mean rows?"}},
    {"an unknown act",
     with("/faults", Json::array({{{"act", "drp"}, {"op", "trim"}}})),
     {"faults[0].act", "did you mean drop?"}},
    {"an unknown word",
     with("/faults", Json::array({{{"act", "order"}, {"op", "all_gather"}, {"with", "revers"}}})),
     {"faults[0].with", "did you mean reverse?"}},
    {"no ranks", with("/parallel/tp", 0), {"parallel.tp", "1 to 32"}},
    {"ranks in words", with("/parallel/tp", "two"), {"parallel.tp", "\"two\""}},
    {"requests for other ranks", with("/requests", "1/2"), {"for 2 dp ranks, expected 1"}},
    {"no step", with("/requests", Json::array()), {"requests", "empty list"}},
    {"too many drafts", with("/draft_steps", 17), {"draft_steps", "0 to 16"}},
    {"nothing runs", with("/draft_steps", 0), {"draft_steps", "target_runs"}},
    {"a name that is taken", with("/name", "vllm-48429"), {"is also in", "vllm-48429.json"}},
    {"an alias that is taken", with("/aliases", Json::array({"f1"})), {"\"f1\" is also in"}},
};

BOOST_DATA_TEST_CASE(a_bad_scenario_is_refused_and_the_others_run, data::make(bad_scenarios), bad) {
  Json good = Json::parse(read_bytes(TOKENVIEW_SOURCE_DIR "/data/scenarios/vllm-48429.json"));
  good["name"] = "z-bad";
  good["aliases"] = Json::array();
  const ScenarioFolder scenarios(bad.make(good));
  require_refused(scenarios.repro("z-bad"), "z-bad.json", bad.said);

  const Ended other = scenarios.repro("vllm-48429");
  BOOST_TEST(other.code == 1, other.err);
  BOOST_TEST(other.error_lines() == 1, other.err);
  BOOST_TEST(other.err.starts_with("tokenview: note: "), other.err);
  BOOST_TEST(contains(other.err, "z-bad.json"), other.err);

  const Ended list = scenarios.repro("--list");
  require_refused(list, "z-bad.json", bad.said);
  BOOST_TEST(contains(list.out, "vllm-48429"));
}

/// Said when it is run: each is a scenario by its form.
const std::vector<BadScenario> impossible_scenarios = {
    {"more ranks than heads", with("/parallel/tp", 16), {"heads (8)", "(16)"}},
    {"more ranks than experts",
     with("/model_changes", {{"num_experts", 1}, {"num_experts_per_tok", 1}}),
     {"experts", "1", "2"}},
    {"an unknown model", with("/model", "qwen3.5-mo"), {"did you mean qwen3.5-moe?"}},
    {"a key of no model", with("/model_changes", {{"hidden_size", "wide"}}), {"hidden_size"}},
    {"a fault that meets nothing",
     with("/faults", Json::array({{{"act", "drop"}, {"op", "trim"}, {"at", "nowhere"}}})),
     {"never met its place"}},
};

BOOST_DATA_TEST_CASE(a_scenario_that_cannot_run_is_refused, data::make(impossible_scenarios), bad) {
  Json good = Json::parse(read_bytes(TOKENVIEW_SOURCE_DIR "/data/scenarios/vllm-48429.json"));
  good["name"] = "z-bad";
  good["aliases"] = Json::array();
  require_refused(ScenarioFolder(bad.make(good)).repro("z-bad"), "", bad.said);
}

// ---- a file of a newer library

BOOST_AUTO_TEST_CASE(a_type_of_a_newer_hdf5_library_is_called_so_and_not_damaged) {
  const TemporaryFolder folder;
  const Ended made = run({"run", "--model", golden().path, "--case", "a", "--tp", "1", "--numeric",
                          "--dump", folder.file("dump")});
  BOOST_TEST_REQUIRE(made.code == 0, made.err);
  const std::string path = folder.file("dump/dump.rank0.h5");
  std::string bytes = read_bytes(path);
  // The table of collectives: a compound type's class 6 below its version, 8 bytes before the name
  // of its first column.
  // Source: HDF5 File Format Specification 3.0, IV.A.2.d, the datatype message.
  std::size_t changed = 0;
  for (std::size_t at = 8; (at = bytes.find(std::string("op\0", 3), at)) != std::string::npos; ++at)
    if ((bytes[at - 8] & 0x0f) == 6 && bytes[at - 7] == 6) {
      bytes[at - 8] = 0x56;  // version 5, of HDF5 2.0
      ++changed;
    }
  BOOST_TEST_REQUIRE(changed == 1u);
  write_bytes(path, bytes);
  const Ended end = run({"diff", golden().path, path});
  BOOST_TEST(end.code == 2);
  BOOST_TEST(end.error_lines() == 1);
  for (const char* const part :
       {"collectives: was written with a newer version of the HDF5 library", "libver='earliest'"})
    BOOST_TEST(contains(end.err, part), end.err);
}

// ---- the state of a sweep

/// The state of one small part of the sweep, made once.
const std::string& swept() {
  static const std::string bytes = [] {
    const TemporaryFolder folder;
    const Ended end =
        run({"sweep", "--shard", "1/400", "--threads", "1", "--state", folder.file("state")});
    if (end.code != 0) throw std::runtime_error(end.err);
    return read_bytes(folder.file("state"));
  }();
  return bytes;
}

struct BadState {
  const char* name;
  std::function<std::string(std::string whole)> make;
  std::vector<std::string> said;
};
std::ostream& operator<<(std::ostream& out, const BadState& bad) { return out << bad.name; }

std::string replaced(std::string all, const std::string& from, const std::string& to) {
  return all.replace(all.find(from), from.size(), to);
}

const std::vector<BadState> bad_states = {
    {"text", [](const std::string&) { return std::string("no state\n"); }, {"line 1"}},
    {"of another shard",
     [](const std::string& s) { return replaced(s, "1/400", "2/400"); },
     {"line 1", "another sweep"}},
    {"a line of text", [](const std::string& s) { return s + "text\n"; }, {"no state"}},
    {"a chunk twice",
     [](const std::string& s) { return s + s.substr(s.find('\n') + 1); },
     {"chunk 0", "at most once"}},
    {"a chunk that is none",
     [](const std::string& s) { return replaced(s, "\"chunk\":0", "\"chunk\":99999999"); },
     {"chunk 99999999"}},
    {"a negative count",
     [](const std::string& s) { return replaced(s, "\"runs\":", "\"runs\":-"); },
     {"line 2: runs"}},
    {"no count",
     [](const std::string& s) { return replaced(s, "\"runs\":", "\"ran\":"); },
     {"line 2: runs"}},
};

BOOST_DATA_TEST_CASE(a_bad_state_of_a_sweep_is_refused_and_left_alone, data::make(bad_states),
                     bad) {
  const TemporaryFolder folder;
  const std::string bytes = bad.make(swept());
  write_bytes(folder.file("state"), bytes);
  require_refused(
      run({"sweep", "--shard", "1/400", "--threads", "1", "--state", folder.file("state")}),
      "state", bad.said);
  BOOST_TEST(read_bytes(folder.file("state")) == bytes);
}

BOOST_AUTO_TEST_CASE(two_sweeps_never_write_one_state) {
  const TemporaryFolder folder;
  const std::string state = folder.file("state");
  write_bytes(state, swept());
  const int other = open(state.c_str(), O_RDONLY);
  BOOST_TEST_REQUIRE(flock(other, LOCK_EX) == 0);
  const std::vector<std::string> sweep = {"sweep", "--shard", "1/400", "--threads",
                                          "1",     "--state", state};
  require_refused(run(sweep), "state", {"another sweep is writing it"});
  BOOST_TEST(read_bytes(state) == swept());
  close(other);
  BOOST_TEST(run(sweep).code == 0);
}

BOOST_AUTO_TEST_CASE(an_interrupted_sweep_goes_on) {
  const TemporaryFolder folder;
  for (const std::size_t lost : {std::size_t{1}, std::size_t{7}, swept().size() - 5}) {
    write_bytes(folder.file("state"), swept().substr(0, swept().size() - lost));
    BOOST_TEST(run({"sweep", "--shard", "1/400", "--threads", "1", "--state", folder.file("state")})
                   .code == 0);
    BOOST_TEST(read_bytes(folder.file("state")) == swept());
  }
}

}  // namespace
}  // namespace tokenview
