// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/raw_hdf5.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/hdf5_file.hpp"
#include "verify/hdf5_handle.hpp"
#include "verify/hdf5_writer.hpp"

namespace tokenview {
namespace {

using Shape = RawHdf5::Shape;
constexpr hsize_t huge = hsize_t{1} << 40;

struct Fixture {
  TemporaryFolder folder;
  std::string path = folder.file("x.h5");

  Hdf5File open() const { return Hdf5File::open_read(path); }

  /// What `read` is told, without the name of the file; "" where it is told nothing.
  template <class Read>
  std::string refusal(const Read& read) const {
    try {
      const Hdf5File file = open();
      read(file);
      return "";
    } catch (const FileError& error) {
      const std::string message = error.what();
      BOOST_TEST(message.starts_with(path + ":"));
      return message.substr(path.size() + 1);
    }
  }
  std::string refusal_to_open() const {
    return refusal([](const Hdf5File&) {});
  }
  std::string refusal_of_tensor() const {
    return refusal([](const Hdf5File& file) { file.tensor("/x"); });
  }
};

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(hdf5_file, Fixture)

// What stands at the path.

BOOST_AUTO_TEST_CASE(a_missing_file_is_refused) {
  BOOST_TEST(refusal_to_open() == " cannot be opened: No such file or directory");
}

BOOST_AUTO_TEST_CASE(an_empty_file_is_refused) {
  write_bytes(path, "");
  BOOST_TEST(refusal_to_open() == " is empty, expected an HDF5 file");
}

BOOST_AUTO_TEST_CASE(a_directory_is_refused) {
  std::filesystem::create_directory(path);
  BOOST_TEST(refusal_to_open() == " is a directory, expected an HDF5 file");
}

BOOST_AUTO_TEST_CASE(a_pipe_is_refused_without_waiting_for_it) {
  BOOST_REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  BOOST_TEST(refusal_to_open() == " is not a regular file, expected an HDF5 file");
}

BOOST_AUTO_TEST_CASE(random_bytes_are_refused) {
  std::mt19937 random(1);
  std::string bytes(5000, '\0');
  for (char& byte : bytes) byte = char(random());
  write_bytes(path, bytes);
  BOOST_TEST(refusal_to_open() == " is not an HDF5 file: no HDF5 signature");
}

BOOST_AUTO_TEST_CASE(a_signature_without_a_file_behind_it_is_refused) {
  write_bytes(path, "\x89HDF\r\n\x1a\n");
  BOOST_TEST(contains(refusal_to_open(), "is a damaged or truncated HDF5 file"));
}

BOOST_AUTO_TEST_CASE(a_truncated_file_is_refused) {
  const std::vector<float> values(1000, 1.0f);
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {1000}, values.data());
  write_bytes(path, read_bytes(path).substr(0, 3000));
  BOOST_TEST(contains(refusal_to_open(), "is a damaged or truncated HDF5 file (truncated file"));
}

BOOST_AUTO_TEST_CASE(an_unreadable_file_is_refused) {
  RawHdf5{path};
  std::filesystem::permissions(path, std::filesystem::perms::none);
  std::filesystem::permissions(std::filesystem::path(path).parent_path(),
                               std::filesystem::perms::all);
  const OrdinaryUser user;
  BOOST_TEST(refusal_to_open() == " cannot be read: Permission denied");
}

BOOST_AUTO_TEST_CASE(a_file_behind_a_user_block_is_read) {
  const Hdf5Handle properties(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_userblock(properties, 1024);
  Hdf5Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, properties, H5P_DEFAULT), H5Fclose);
  BOOST_TEST(refusal_to_open() == "");
}

// Types.

BOOST_AUTO_TEST_CASE(the_four_stored_types_come_back_with_their_values) {
  const std::vector<float> values = {0.0f, -1.5f, 3.0f, 65504.0f, 0x1p-24f, -0.0f};
  const std::vector<std::uint16_t> words = {0x0000, 0xbfc0, 0x4040, 0x477f, 0x3380, 0x8000};
  {
    const RawHdf5 file(path);
    const Hdf5Handle half(H5Tcopy(H5T_IEEE_F32BE), H5Tclose);
    H5Tset_fields(half, 15, 10, 5, 0, 10);
    H5Tset_size(half, 2);
    H5Tset_ebias(half, 15);
    file.add("float32", H5T_IEEE_F32LE, {2, 3}, values.data());
    file.add("big_endian", H5T_IEEE_F32BE, {2, 3}, values.data(), H5P_DEFAULT, H5T_NATIVE_FLOAT);
    file.add("float16", half, {2, 3}, values.data(), H5P_DEFAULT, H5T_NATIVE_FLOAT);
    file.add("bfloat16", H5T_STD_U16LE, {2, 3}, words.data());
    file.say_dtype("bfloat16", "bfloat16");
  }
  const Hdf5File file = open();
  for (const char* const name : {"/float32", "/big_endian", "/float16"})
    BOOST_TEST(file.tensor(name).values == values, boost::test_tools::per_element());
  BOOST_TEST((file.tensor("/float16").dtype == DType::float16));

  const HostTensor tensor = file.tensor("/bfloat16");
  BOOST_TEST((tensor.dtype == DType::bfloat16));
  BOOST_TEST((tensor.shape == std::vector<std::int64_t>{2, 3}));
  for (std::size_t i = 0; i < words.size(); ++i)
    BOOST_TEST(std::bit_cast<std::uint32_t>(tensor.values[i]) == std::uint32_t(words[i]) << 16);
}

BOOST_AUTO_TEST_CASE(nan_and_infinity_are_values) {
  const std::vector<float> values = {std::numeric_limits<float>::infinity(), std::nanf("")};
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {2}, values.data());
  const HostTensor tensor = open().tensor("/x");
  BOOST_TEST(std::isinf(tensor.values[0]));
  BOOST_TEST(std::isnan(tensor.values[1]));
}

BOOST_AUTO_TEST_CASE(a_type_that_is_no_tensor_is_refused_by_its_name) {
  const std::vector<double> bytes(8);
  {
    const RawHdf5 file(path);
    const Hdf5Handle compound(H5Tcreate(H5T_COMPOUND, 8), H5Tclose);
    H5Tinsert(compound, "seq", 0, H5T_NATIVE_INT64);
    const Hdf5Handle boolean(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
    const std::int8_t one = 1;
    H5Tenum_insert(boolean, "TRUE", &one);
    const Hdf5Handle opaque(H5Tcreate(H5T_OPAQUE, 3), H5Tclose);
    file.add("compound", compound, {1}, bytes.data());
    file.add("enum", boolean, {1}, bytes.data());
    file.add("opaque", opaque, {1}, bytes.data());
    file.add("float64", H5T_NATIVE_DOUBLE, {1}, bytes.data());
    file.add("uint16", H5T_NATIVE_UINT16, {1}, bytes.data());
    file.add("int64", H5T_NATIVE_INT64, {1}, bytes.data());
  }
  for (const std::string name : {"compound", "enum", "opaque", "float64", "uint16", "int64"})
    BOOST_TEST(refusal([&](const Hdf5File& file) { file.tensor("/" + name); }) ==
               "/" + name + ": is " + name + ", expected float32, float16 or bfloat16");
  BOOST_TEST(refusal([](const Hdf5File& file) { file.integers("/enum"); }) ==
             "/enum: is enum, expected integers");
}

BOOST_AUTO_TEST_CASE(integers_of_any_width_and_byte_order_are_read) {
  const std::vector<std::int64_t> values = {0, 100, 7};
  {
    const RawHdf5 file(path);
    file.add("i8", H5T_STD_I8LE, {3}, values.data(), H5P_DEFAULT, H5T_NATIVE_INT64);
    file.add("u16be", H5T_STD_U16BE, {3}, values.data(), H5P_DEFAULT, H5T_NATIVE_INT64);
    file.add("i32be", H5T_STD_I32BE, {3}, values.data(), H5P_DEFAULT, H5T_NATIVE_INT64);
    file.add("i64be", H5T_STD_I64BE, {3}, values.data(), H5P_DEFAULT, H5T_NATIVE_INT64);
    file.add("u64", H5T_STD_U64LE, {3}, values.data());
  }
  const Hdf5File file = open();
  for (const char* const name : {"/i8", "/u16be", "/i32be", "/i64be"})
    BOOST_TEST(file.integers(name).values == values, boost::test_tools::per_element());
  BOOST_TEST((file.info("/i64be").dtype == DType::int64));
  BOOST_TEST(refusal([](const Hdf5File& f) { f.integers("/u64"); }) ==
             "/u64: is uint64, expected integers");
}

BOOST_AUTO_TEST_CASE(a_dtype_attribute_that_the_type_belies_is_refused) {
  const float value = 1;
  {
    const RawHdf5 file(path);
    file.add("x", H5T_NATIVE_FLOAT, {1}, &value);
    file.say_dtype("x", "bfloat16");
  }
  BOOST_TEST(refusal_of_tensor() ==
             "/x: is float32 with the attribute dtype = 'bfloat16', expected uint16 with "
             "'bfloat16', uint8 with 'float8_e4m3fn' or 'float8_e5m2', or none");
}

// Sizes.

BOOST_AUTO_TEST_CASE(a_dimension_of_2_to_the_40_is_refused) {
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {huge}, nullptr);
  BOOST_TEST(refusal_of_tensor() ==
             "/x: shape is [1099511627776], expected every extent below 2^31");
}

BOOST_AUTO_TEST_CASE(a_dimension_of_2_to_the_40_is_refused_even_where_nothing_is_stored) {
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {huge, 0}, nullptr);
  BOOST_TEST(contains(refusal_of_tensor(), "expected every extent below 2^31"));
}

BOOST_AUTO_TEST_CASE(many_dimensions_that_make_an_absurd_size_are_refused) {
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {1 << 20, 1 << 10, 1 << 10}, nullptr);
  BOOST_TEST(contains(refusal_of_tensor(), "but 0 bytes are stored for it"));
}

BOOST_AUTO_TEST_CASE(a_data_set_that_was_never_written_is_refused) {
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {2, 3}, nullptr);
  BOOST_TEST(contains(refusal_of_tensor(),
                      "/x: shape is [2, 3] of float32, but 0 bytes are stored for it"));
}

BOOST_AUTO_TEST_CASE(a_null_data_space_is_refused) {
  {
    const RawHdf5 file(path);
    const Hdf5Handle space(H5Screate(H5S_NULL), H5Sclose);
    Hdf5Handle(
        H5Dcreate2(file, "x", H5T_NATIVE_FLOAT, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
        H5Dclose);
  }
  BOOST_TEST(refusal_of_tensor() == "/x: has a null data space, expected a tensor");
}

BOOST_AUTO_TEST_CASE(an_empty_tensor_needs_no_bytes) {
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {0, 64}, nullptr);
  const HostTensor tensor = open().tensor("/x");
  BOOST_TEST((tensor.shape == std::vector<std::int64_t>{0, 64}));
  BOOST_TEST(tensor.values.empty());
}

// Chunks and filters.

BOOST_AUTO_TEST_CASE(chunked_and_compressed_data_sets_are_read) {
  std::vector<float> values(60);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  {
    const RawHdf5 file(path);
    const Hdf5Handle plain = chunked({3, 4});
    const Hdf5Handle gzip = chunked({3, 4});
    H5Pset_shuffle(gzip);
    H5Pset_deflate(gzip, 6);
    H5Pset_fletcher32(gzip);
    file.add("plain", H5T_NATIVE_FLOAT, {10, 6}, values.data(), plain);
    file.add("gzip", H5T_NATIVE_FLOAT, {10, 6}, values.data(), gzip);
  }
  const Hdf5File file = open();
  for (const char* const name : {"/plain", "/gzip"})
    BOOST_TEST(file.tensor(name).values == values, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_missing_chunk_is_refused) {
  const std::vector<float> values(6, 1.0f);
  for (const bool is_compressed : {false, true}) {
    {
      const RawHdf5 file(path);
      const Hdf5Handle properties = chunked({2, 3});
      if (is_compressed) H5Pset_deflate(properties, 1);
      file.add("x", H5T_NATIVE_FLOAT, {4, 3}, nullptr, properties);
      const Hdf5Handle data(H5Dopen2(file, "x", H5P_DEFAULT), H5Dclose);
      const hsize_t offset[] = {2, 0};
      H5Dwrite_chunk(data, H5P_DEFAULT, is_compressed ? 1 : 0, offset, 24, values.data());
    }
    BOOST_TEST(contains(refusal_of_tensor(),
                        is_compressed ? "but 1 chunks are stored, expected 2"
                                      : "but 24 bytes are stored for it, expected 2 chunks of 24"));
  }
}

BOOST_AUTO_TEST_CASE(a_few_bytes_that_would_expand_without_measure_are_refused) {
  {
    const RawHdf5 file(path);
    const Hdf5Handle properties = chunked({1024, 1024});
    H5Pset_deflate(properties, 1);
    const std::vector<float> zeros(std::size_t(16) << 20);
    file.add("x", H5T_NATIVE_FLOAT, {16 * 1024, 1024}, zeros.data(), properties);
  }
  BOOST_TEST(contains(refusal_of_tensor(), "compressed bytes are stored for it, too few"));
}

BOOST_AUTO_TEST_CASE(a_giant_chunk_is_refused) {
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {4, 1 << 28}, nullptr, chunked({1, 1 << 28}));
  BOOST_TEST(contains(refusal_of_tensor(), "in chunks of 1073741824 bytes"));
}

BOOST_AUTO_TEST_CASE(a_filter_that_is_not_ours_is_refused_by_its_name) {
  constexpr H5Z_filter_t id = 300;
  H5Z_class2_t filter{};
  filter.version = H5Z_CLASS_T_VERS;
  filter.id = id;
  filter.encoder_present = filter.decoder_present = 1;
  filter.name = "house";
  filter.filter = [](unsigned, std::size_t, const unsigned*, std::size_t size, std::size_t*,
                     void**) { return size; };
  BOOST_REQUIRE(H5Zregister(&filter) >= 0);
  const std::vector<float> values(4, 1.0f);
  {
    const Hdf5Handle properties = chunked({4});
    H5Pset_filter(properties, id, 0, 0, nullptr);
    RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {4}, values.data(), properties);
  }
  H5Zunregister(id);
  BOOST_TEST(contains(refusal_of_tensor(), "/x: is stored with the HDF5 filter 300 'house'"));
}

// Where the data lie.

BOOST_AUTO_TEST_CASE(missing_and_misplaced_objects_are_told_apart) {
  const float value = 1;
  {
    const RawHdf5 file(path);
    file.add("x", H5T_NATIVE_FLOAT, {1}, &value);
    Hdf5Handle(H5Gcreate2(file, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  }
  const auto tensor = [](const char* inside) {
    return [inside](const Hdf5File& file) { file.tensor(inside); };
  };
  BOOST_TEST(refusal(tensor("/y")) == "/y: is missing");
  BOOST_TEST(refusal(tensor("/h/y")) == "/h/y: is missing, for want of a group 'h'");
  BOOST_TEST(refusal(tensor("/g")) == "/g: is a group, expected a data set");
  BOOST_TEST(refusal(tensor("/x/y")) ==
             "/x/y: leads through a data set, expected a group above 'y'");
  BOOST_TEST(refusal([](const Hdf5File& file) { file.children("/x"); }) ==
             "/x: is not a group, expected a group");
}

BOOST_AUTO_TEST_CASE(soft_links_are_followed_within_the_file) {
  const float value = 5;
  {
    const RawHdf5 file(path);
    Hdf5Handle(H5Gcreate2(file, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
    file.add("g/x", H5T_NATIVE_FLOAT, {1}, &value);
    H5Lcreate_soft("/g", file, "group", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("x", file, "g/relative", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/nowhere", file, "dangling", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_soft("/circle", file, "circle", H5P_DEFAULT, H5P_DEFAULT);
  }
  const Hdf5File file = open();
  BOOST_TEST(file.tensor("/group/relative").values[0] == 5);
  BOOST_TEST(file.contains("/dangling"));
  BOOST_TEST(refusal([](const Hdf5File& f) { f.tensor("/dangling"); }) ==
             "/dangling: is a dangling soft link to '/nowhere', expected data");
  BOOST_TEST(contains(refusal([](const Hdf5File& f) { f.tensor("/circle"); }),
                      "/circle: leads through more than 16 soft links"));
  BOOST_TEST(contains(refusal([](const Hdf5File& f) { f.children("/"); }), "16 soft links"));
}

BOOST_AUTO_TEST_CASE(no_other_file_is_ever_read) {
  const std::vector<float> values(4, 1.0f);
  const std::string other = folder.file("other.h5");
  RawHdf5(other).add("x", H5T_NATIVE_FLOAT, {4}, values.data());
  {
    const RawHdf5 file(path);
    H5Lcreate_external(other.c_str(), "/x", file, "link", H5P_DEFAULT, H5P_DEFAULT);
    const Hdf5Handle raw(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_external(raw, other.c_str(), 0, 16);
    file.add("raw", H5T_NATIVE_FLOAT, {4}, nullptr, raw);
    const Hdf5Handle view(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    const hsize_t extent = 4;
    const Hdf5Handle space(H5Screate_simple(1, &extent, nullptr), H5Sclose);
    H5Pset_virtual(view, space, other.c_str(), "/x", space);
    file.add("virtual", H5T_NATIVE_FLOAT, {4}, nullptr, view);
  }
  BOOST_TEST(refusal([](const Hdf5File& file) { file.tensor("/link"); }) ==
             "/link: is a link into another file, expected the data in this file");
  BOOST_TEST(refusal([](const Hdf5File& file) { file.tensor("/link/x"); }) ==
             "/link/x: is a link into another file, expected the data in this file");
  BOOST_TEST(refusal([](const Hdf5File& file) { file.tensor("/raw"); }) ==
             "/raw: stores its data in another file, expected them in this file");
  BOOST_TEST(refusal([](const Hdf5File& file) { file.tensor("/virtual"); }) ==
             "/virtual: is a virtual data set over other files, expected the data in this file");
}

BOOST_AUTO_TEST_CASE(groups_in_a_circle_are_no_trap) {
  {
    const RawHdf5 file(path);
    H5Lcreate_hard(file, "/", file, "again", H5P_DEFAULT, H5P_DEFAULT);
  }
  BOOST_TEST(open().children("/again/again/again").groups.size() == 1u);
}

BOOST_AUTO_TEST_CASE(children_come_in_the_order_of_their_names) {
  const float value = 1;
  {
    const RawHdf5 file(path);
    for (const char* const name : {"b", "a.10", "a", "a.2"})
      file.add(name, H5T_NATIVE_FLOAT, {1}, &value);
    Hdf5Handle(H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), H5Gclose);
  }
  const Hdf5File::Children children = open().children("/");
  const std::vector<std::string> expected = {"a", "a.10", "a.2", "b"};
  BOOST_TEST(children.datasets == expected, boost::test_tools::per_element());
  BOOST_TEST((children.groups == std::vector<std::string>{"group"}));
}

BOOST_AUTO_TEST_CASE(a_name_that_is_not_utf8_is_refused_in_one_printable_line) {
  const float value = 1;
  RawHdf5(path).add("a\xff\n", H5T_NATIVE_FLOAT, {1}, &value);
  BOOST_TEST(refusal([](const Hdf5File& file) { file.children("/"); }) ==
             "/: has an entry 'a\\xff\\x0a', expected a name in UTF-8");
}

// Rows, strings, attributes.

BOOST_AUTO_TEST_CASE(rows_are_slices_of_the_whole) {
  std::vector<float> values(30);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = float(i);
  {
    Hdf5Writer file(path);
    file.tensor("/x", {{10, 3}, values, DType::bfloat16});
    file.close();
  }
  const Hdf5File file = open();
  const HostTensor rows = file.rows("/x", 4, 3);
  BOOST_TEST((rows.shape == std::vector<std::int64_t>{3, 3}));
  BOOST_TEST(rows.values == std::vector<float>(values.begin() + 12, values.begin() + 21),
             boost::test_tools::per_element());
  BOOST_TEST(file.rows("/x", 10, 0).values.empty());
  BOOST_TEST(refusal([](const Hdf5File& f) { f.rows("/x", 9, 2); }) ==
             "/x: shape is [10, 3], expected rows 9 to 9 + 2");
  BOOST_TEST(contains(refusal([](const Hdf5File& f) { f.rows("/x", -1, 2); }), "expected rows -1"));
}

BOOST_AUTO_TEST_CASE(strings_of_fixed_and_variable_length_are_read) {
  {
    const RawHdf5 file(path);
    const Hdf5Handle fixed(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(fixed, 5);
    file.add("fixed", fixed, {}, "{\"a\"}");
    const Hdf5Handle variable(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(variable, H5T_VARIABLE);
    const char* const characters =
        "gr\xc3\xb6\xc3\x9f"
        "e";
    const char* const broken = "\xc3(";
    file.add("variable", variable, {}, &characters);
    file.add("broken", variable, {}, &broken);
    file.add("unwritten", variable, {}, nullptr);
    const int number = 1;
    file.add("number", H5T_NATIVE_INT, {}, &number);
    file.add("list", fixed, {1}, "12345");
  }
  const Hdf5File file = open();
  BOOST_TEST(file.string("/fixed") == "{\"a\"}");
  BOOST_TEST(file.string("/variable") ==
             "gr\xc3\xb6\xc3\x9f"
             "e");
  const auto refused = [&](const char* inside) {
    return refusal([inside](const Hdf5File& f) { f.string(inside); });
  };
  BOOST_TEST(refused("/broken") == "/broken: is not UTF-8: '\\xc3('");
  BOOST_TEST(contains(refused("/unwritten"), "/unwritten: shape is [] of string, but 0 bytes"));
  BOOST_TEST(refused("/number") == "/number: is int32, expected a string");
  BOOST_TEST(refused("/list") == "/list: shape is [1], expected a scalar string");
}

BOOST_AUTO_TEST_CASE(attributes_are_read_by_type) {
  {
    Hdf5Writer file(path);
    file.attribute("/", "text", "abc");
    file.attribute("/", "number", std::int64_t{-3});
    file.close();
  }
  const Hdf5File file = open();
  BOOST_TEST(file.string_attribute("/", "text") == "abc");
  BOOST_TEST(file.int_attribute("/", "number") == -3);
  BOOST_TEST((file.attribute_names("/") == std::vector<std::string>{"number", "text"}));
  BOOST_TEST(!file.has_attribute("/", "none"));
  BOOST_TEST(refusal([](const Hdf5File& f) { f.int_attribute("/", "none"); }) ==
             "/: has no attribute 'none'");
  BOOST_TEST(refusal([](const Hdf5File& f) { f.int_attribute("/", "text"); }) ==
             "/: its attribute 'text' is string, expected an integer");
  BOOST_TEST(refusal([](const Hdf5File& f) { f.string_attribute("/", "number"); }) ==
             "/: its attribute 'number' is int64, expected a string");
}

// The process around it.

BOOST_AUTO_TEST_CASE(the_library_prints_as_before_once_a_call_is_over) {
  H5E_auto2_t before = nullptr, after = nullptr;
  void* data = nullptr;
  H5Eget_auto2(H5E_DEFAULT, &before, &data);
  BOOST_REQUIRE(before != nullptr);
  RawHdf5{path};
  refusal_of_tensor();
  H5Eget_auto2(H5E_DEFAULT, &after, &data);
  BOOST_TEST((before == after));
}

BOOST_AUTO_TEST_CASE(the_writer_refuses_what_it_would_have_to_round_or_cut) {
  const auto write = [&](const std::function<void(Hdf5Writer&)>& body) -> std::string {
    Hdf5Writer file(path);
    try {
      body(file);
      return "";
    } catch (const FileError& error) {
      return std::string(error.what()).substr(path.size());
    }
  };
  BOOST_TEST(contains(write([](Hdf5Writer& f) {
                        f.tensor("/x", {{1}, {0.1f}, DType::bfloat16});
                      }),
                      "expected a value that bfloat16 holds exactly"));
  BOOST_TEST(write([](Hdf5Writer& f) {
               f.tensor("/x", {{2}, {0.1f}, DType::float32});
             }) == ":/x: shape is [2] for 1 values");
  BOOST_TEST(write([](Hdf5Writer& f) {
               f.integers("/x", {{1}, {std::int64_t{1} << 31}}, DType::int32);
             }) == ":/x: holds 2147483648, expected values that int32 holds");
}

// Release 1.10 of the library, told of this, would crash at the end of the process.
BOOST_AUTO_TEST_CASE(a_full_device_is_an_error) {
  std::string found;
  try {
    Hdf5Writer file(::open("/dev/full", O_RDWR), "x.h5");
    file.tensor("/x", {{1000}, std::vector<float>(1000), DType::float32});
    file.close();
  } catch (const FileError& error) {
    found = error.what();
  }
  BOOST_TEST(found.starts_with("x.h5:/"), found);
  BOOST_TEST(found.ends_with(": cannot be written: No space left on device"), found);
}

BOOST_AUTO_TEST_CASE(the_same_calls_write_the_same_bytes) {
  const auto bytes = [&] {
    Hdf5Writer file(path);
    file.tensor("/a/b", {{2}, {1, 2}, DType::bfloat16});
    file.close();
    return read_bytes(path);
  };
  BOOST_TEST((bytes() == bytes()));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
