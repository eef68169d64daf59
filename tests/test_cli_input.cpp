// SPDX-License-Identifier: Apache-2.0
// Bad input from the command line: one clear line each, exit code 2, no crash, nothing written.
#include <hdf5.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <filesystem>
#include <functional>
#include <limits>
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
                     const std::vector<std::string>& said) {
  BOOST_TEST(end.code == 2, end.code << ": " << end.err);
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

}  // namespace
}  // namespace tokenview
