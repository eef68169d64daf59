// SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <random>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/raw_hdf5.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/tensor_file.hpp"

namespace tokenview {
namespace {

using Shape = RawHdf5::Shape;

/// Elements no two of which are alike.
std::vector<float> counted(std::size_t count) {
  std::vector<float> result(count);
  std::iota(result.begin(), result.end(), 1.0f);
  return result;
}

template <class T>
std::vector<T> read(const TensorFile& file, const std::string& name, std::int64_t begin,
                    std::size_t count) {
  const TensorInfo* const tensor = file.find(name);
  BOOST_REQUIRE(tensor != nullptr);
  std::vector<T> result(count);
  file.read(*tensor, begin, std::as_writable_bytes(std::span(result)));
  return result;
}

struct Fixture {
  TemporaryFolder folder;
  std::string path = folder.file("x");

  TensorFile open() const { return TensorFile::open(path); }

  /// Every tensor from beginning to end, and "" or what the reader is told.
  std::string refusal() const {
    try {
      const TensorFile file = open();
      for (const TensorInfo& tensor : file.tensors()) {
        if (!tensor.type) return tensor.refusal;
        std::vector<std::byte> bytes(std::size_t(tensor.elements() * element_bytes(*tensor.type)));
        file.read(tensor, 0, bytes);
      }
      return "";
    } catch (const FileError& error) {
      const std::string message = error.what();
      BOOST_TEST(message.find(path) != std::string::npos);
      return message;
    }
  }
  void require_refusal(const std::string& part) const {
    const std::string message = refusal();
    BOOST_TEST(message.find(part) != std::string::npos,
               "'" << message << "' lacks '" << part << "'");
  }

  void write_safetensors(const std::string& header, const std::string& data,
                         std::uint64_t length) const {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    write_bytes(path, bytes + header + data);
  }
  void write_safetensors(const std::string& header, std::size_t data_bytes) const {
    write_safetensors(header, std::string(data_bytes, 'x'), header.size());
  }

  /// [rows, columns] in chunks, with what `set` adds to the properties.
  void write_chunked(const Shape& shape, const Shape& chunk,
                     const std::function<void(hid_t)>& set) const {
    const Hdf5Handle properties = chunked(chunk);
    set(properties);
    std::size_t count = 1;
    for (const hsize_t extent : shape) count *= extent;
    RawHdf5(path).add("x", H5T_NATIVE_FLOAT, shape, counted(count).data(), properties);
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(tensor_file, Fixture)

// HDF5

BOOST_AUTO_TEST_CASE(data_sets_of_all_groups_are_there_by_their_paths) {
  {
    const RawHdf5 file(path);
    const float one = 1;
    file.add("b/c/x", H5T_NATIVE_FLOAT, {}, &one);
    file.add("a", H5T_NATIVE_FLOAT, {1}, &one);
    file.add("b/a", H5T_NATIVE_FLOAT, {1, 1}, &one);
    H5Lcreate_soft("/b/a", file, "soft", H5P_DEFAULT, H5P_DEFAULT);
  }
  const TensorFile tensors = open();
  std::string names;
  for (const TensorInfo& tensor : tensors.tensors()) names += tensor.name + ' ';
  BOOST_TEST(names == "a b/a b/c/x soft ");
  BOOST_TEST(read<float>(tensors, "soft", 0, 1).front() == 1);
}

BOOST_AUTO_TEST_CASE(every_part_of_a_contiguous_data_set_can_be_read) {
  const std::vector<float> values = counted(35);
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {5, 7}, values.data());
  const TensorFile file = open();
  BOOST_TEST(file.find("x")->columns() == 7);
  for (std::int64_t begin = 0; begin <= 35; ++begin)
    for (std::size_t count = 0; count <= 35 - std::size_t(begin); ++count) {
      const auto part = read<float>(file, "x", begin, count);
      BOOST_REQUIRE(std::equal(part.begin(), part.end(), values.begin() + begin));
    }
  std::vector<std::byte> room(4 * 36);
  BOOST_CHECK_THROW(file.read(*file.find("x"), 0, room), ShapeError);
  BOOST_CHECK_THROW(file.read(*file.find("x"), 35, std::span(room).first(4)), ShapeError);
  BOOST_CHECK_THROW(file.read(*file.find("x"), 0, std::span(room).first(3)), ShapeError);
}

BOOST_AUTO_TEST_CASE(every_part_of_a_chunked_data_set_can_be_read) {
  const std::pair<Shape, Shape> cases[] = {{{7}, {3}},
                                           {{7}, {9}},
                                           {{5, 7}, {2, 7}},
                                           {{5, 7}, {2, 3}},
                                           {{5, 7}, {5, 1}},
                                           {{3, 4, 5}, {2, 3, 2}},
                                           {{2, 1, 6}, {1, 1, 4}}};
  for (const auto& [shape, chunk] : cases) {
    // A data set may be smaller than its chunks only if it can grow; here the library makes room.
    if (chunk[0] > shape[0]) continue;
    write_chunked(shape, chunk, [](hid_t) {});
    std::size_t count = 1;
    for (const hsize_t extent : shape) count *= extent;
    const std::vector<float> values = counted(count);
    const TensorFile file = open();
    for (std::size_t begin = 0; begin <= count; ++begin)
      for (std::size_t size = 0; size <= count - begin; ++size) {
        const auto part = read<float>(file, "x", std::int64_t(begin), size);
        BOOST_REQUIRE(std::equal(part.begin(), part.end(), values.begin() + std::ptrdiff_t(begin)));
      }
  }
}

BOOST_AUTO_TEST_CASE(filters_are_undone) {
  const std::function<void(hid_t)> filters[] = {[](hid_t p) { H5Pset_deflate(p, 6); },
                                                [](hid_t p) { H5Pset_shuffle(p); },
                                                [](hid_t p) { H5Pset_fletcher32(p); },
                                                [](hid_t p) {
                                                  H5Pset_shuffle(p);
                                                  H5Pset_deflate(p, 1);
                                                  H5Pset_fletcher32(p);
                                                },
                                                [](hid_t p) {
                                                  H5Pset_fletcher32(p);
                                                  H5Pset_deflate(p, 1);
                                                  H5Pset_shuffle(p);
                                                }};
  const std::vector<float> values = counted(100 * 70);
  for (const auto& set : filters) {
    write_chunked({100, 70}, {33, 23}, set);
    BOOST_TEST((read<float>(open(), "x", 0, values.size()) == values));
  }
}

BOOST_AUTO_TEST_CASE(a_damaged_chunk_is_refused_by_its_checksum_and_by_its_stream) {
  for (const bool has_checksum : {true, false}) {
    write_chunked({64, 64}, {64, 64}, [&](hid_t p) {
      H5Pset_deflate(p, 1);
      if (has_checksum) H5Pset_fletcher32(p);
    });
    haddr_t address = 0;
    hsize_t size = 0;
    {
      const Hdf5Handle file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), H5Fclose);
      const Hdf5Handle data(H5Dopen2(file, "x", H5P_DEFAULT), H5Dclose);
      const Hdf5Handle space(H5Dget_space(data), H5Sclose);
      hsize_t offset[2];
      unsigned mask = 0;
      BOOST_REQUIRE(H5Dget_chunk_info(data, space, 0, offset, &mask, &address, &size) >= 0);
    }
    std::string bytes = read_bytes(path);
    bytes[address + size / 2] = char(~bytes[address + size / 2]);
    write_bytes(path, bytes);
    require_refusal(has_checksum ? "x: has a chunk with a wrong checksum" : "it is damaged");
  }
}

BOOST_AUTO_TEST_CASE(chunks_behind_a_user_block_are_found) {
  const Hdf5Handle creation(H5Pcreate(H5P_FILE_CREATE), H5Pclose);
  H5Pset_userblock(creation, 1024);
  const std::vector<float> values = counted(64);
  RawHdf5(path, creation).add("x", H5T_NATIVE_FLOAT, {64}, values.data(), chunked({16}));
  BOOST_TEST((read<float>(open(), "x", 0, 64) == values));
  RawHdf5(path, creation).add("x", H5T_NATIVE_FLOAT, {64}, values.data());
  BOOST_TEST((read<float>(open(), "x", 0, 64) == values));
}

BOOST_AUTO_TEST_CASE(a_compact_data_set_is_read) {
  const Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
  H5Pset_layout(properties, H5D_COMPACT);
  const std::vector<float> values = counted(16);
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {16}, values.data(), properties);
  BOOST_TEST((read<float>(open(), "x", 3, 5) == std::vector<float>{4, 5, 6, 7, 8}));
}

BOOST_AUTO_TEST_CASE(big_endian_data_are_converted) {
  const std::vector<float> values = counted(16);
  const std::vector<std::int64_t> ids = {1, -2, std::int64_t{1} << 40};
  {
    const RawHdf5 file(path);
    file.add("x", H5T_IEEE_F32BE, {16}, values.data(), H5P_DEFAULT, H5T_NATIVE_FLOAT);
    file.add("y", H5T_IEEE_F32BE, {16}, values.data(), chunked({5}), H5T_NATIVE_FLOAT);
    file.add("ids", H5T_STD_I64BE, {3}, ids.data(), H5P_DEFAULT, H5T_NATIVE_INT64);
  }
  BOOST_TEST((read<float>(open(), "x", 0, 16) == values));
  BOOST_TEST((read<float>(open(), "y", 0, 16) == values));
  BOOST_TEST((read<std::int64_t>(open(), "ids", 0, 3) == ids));
}

BOOST_AUTO_TEST_CASE(types_are_recognised) {
  const std::vector<std::uint64_t> zeros(8);
  {
    const RawHdf5 file(path);
    const Hdf5Handle truth(H5Tenum_create(H5T_NATIVE_INT8), H5Tclose);
    std::int8_t value = 0;
    H5Tenum_insert(truth, "FALSE", &value);
    value = 1;
    H5Tenum_insert(truth, "TRUE", &value);
    file.add("bool", truth, {8}, zeros.data());
    file.add("uint8", H5T_NATIVE_UINT8, {8}, zeros.data());
    file.add("int64", H5T_NATIVE_INT64, {8}, zeros.data());
    file.add("float64", H5T_NATIVE_DOUBLE, {8}, zeros.data());
    for (const char* name : {"float8_e4m3fn", "float8_e5m2"}) {
      file.add(name, H5T_NATIVE_UINT8, {8}, zeros.data());
      file.say_dtype(name, name);
    }
    file.add("bfloat16", H5T_NATIVE_UINT16, {8}, zeros.data());
    file.say_dtype("bfloat16", "bfloat16");
  }
  const TensorFile file = open();
  BOOST_TEST(file.tensors().size() == 7);
  for (const TensorInfo& tensor : file.tensors()) {
    BOOST_REQUIRE(tensor.type.has_value());
    BOOST_TEST(to_string(*tensor.type) == tensor.name);
  }
}

BOOST_AUTO_TEST_CASE(what_holds_no_numbers_is_listed_and_not_read) {
  const Hdf5Handle text(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(text, 4);
  RawHdf5(path).add("x", text, {}, "abcd");
  BOOST_TEST(!open().find("x")->type.has_value());
  require_refusal("x: is string, expected numbers");
}

BOOST_AUTO_TEST_CASE(a_group_that_contains_itself_is_refused) {
  {
    const RawHdf5 file(path);
    const float one = 1;
    file.add("a/x", H5T_NATIVE_FLOAT, {1}, &one);
    H5Lcreate_hard(file, "/", file, "a/up", H5P_DEFAULT, H5P_DEFAULT);
  }
  require_refusal("/a/up: is a link to a group above it");
}

BOOST_AUTO_TEST_CASE(a_data_set_that_cannot_be_read_leaves_its_neighbours) {
  {
    const RawHdf5 file(path);
    const float one = 1;
    file.add("x", H5T_NATIVE_FLOAT, {1}, &one);
    file.add("y", H5T_NATIVE_FLOAT, {hsize_t{1} << 40}, nullptr, chunked({1}));
  }
  const TensorFile file = open();
  BOOST_TEST(read<float>(file, "x", 0, 1).front() == 1);
  BOOST_TEST(!file.find("y")->type.has_value());
  BOOST_CHECK_THROW(file.read(*file.find("y"), 0, {}), FileError);
}

BOOST_AUTO_TEST_CASE(data_outside_of_the_file_are_refused) {
  {
    const RawHdf5 file(path);
    const float one = 1;
    file.add("x", H5T_NATIVE_FLOAT, {1}, &one);
    H5Lcreate_external("/etc/passwd", "/", file, "outside", H5P_DEFAULT, H5P_DEFAULT);
  }
  require_refusal("/outside: is a link into another file");
}

BOOST_AUTO_TEST_CASE(data_that_were_never_written_are_refused) {
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {1 << 20}, nullptr);
  require_refusal("x: shape is [1048576] of float32, but 0 bytes are stored for it");
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {1 << 20}, nullptr, chunked({1 << 10}));
  require_refusal("x: shape is [1048576] of float32, but 0 bytes are stored for it");
}

BOOST_AUTO_TEST_CASE(a_truncated_hdf5_file_is_refused) {
  const std::vector<float> values = counted(4096);
  RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {4096}, values.data(), chunked({512}));
  const std::string bytes = read_bytes(path);
  for (const std::size_t size : {bytes.size() - 1, bytes.size() / 2, std::size_t(100)}) {
    write_bytes(path, bytes.substr(0, size));
    BOOST_TEST(!refusal().empty());
  }
}

BOOST_AUTO_TEST_CASE(a_file_that_shrinks_while_it_is_read_is_an_error) {
  write_safetensors(R"({"x":{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}})", 4096);
  const TensorFile file = open();
  std::filesystem::resize_file(path, 1000);
  std::vector<std::byte> bytes(4096);
  BOOST_CHECK_THROW(file.read(file.tensors()[0], 0, bytes), FileError);
}

BOOST_AUTO_TEST_CASE(what_is_no_file_of_tensors_is_refused) {
  require_refusal("No such file or directory, expected an HDF5 or a safetensors file");
  std::filesystem::create_directory(path);
  require_refusal("is a directory, expected an HDF5 or a safetensors file");
  std::filesystem::remove(path);
  write_bytes(path, "");
  require_refusal("is empty");
  write_bytes(path, "some text that is no file of tensors");
  require_refusal("is not an HDF5 file");
}

// safetensors

BOOST_AUTO_TEST_CASE(tensors_of_a_safetensors_file_are_read) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<std::uint16_t> words = {0x3f80, 0x4000};
  std::string data(2 * 2 + 6 * 4, '\0');
  std::memcpy(data.data(), words.data(), 4);
  std::memcpy(data.data() + 4, values.data(), 24);
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
      R"("none":{"dtype":"F32","shape":[0,3],"data_offsets":[28,28]}}   )";
  write_safetensors(header, data, header.size());
  const TensorFile file = open();
  BOOST_TEST(file.tensors().size() == 3);
  BOOST_TEST((read<float>(file, "b", 0, 6) == values));
  BOOST_TEST((read<float>(file, "b", 2, 2) == std::vector<float>{3, 4}));
  BOOST_TEST((read<std::uint16_t>(file, "a", 0, 2) == words));
  BOOST_TEST((file.find("a")->type == StorageType::bfloat16));
  BOOST_TEST(file.find("none")->elements() == 0);
  BOOST_TEST((file.find("c") == nullptr));
}

BOOST_AUTO_TEST_CASE(a_safetensors_header_that_lies_is_refused) {
  const struct {
    const char* header;
    std::size_t data_bytes;
    const char* refusal;
  } cases[] = {
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 4,
       "expected begin <= end <= 4"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8, "expected begin <= end"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 9,
       "has 1 bytes after the last"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}})", 9, "begins 1 bytes after"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,7]}})", 7, "7 bytes, expected 8"},
      {R"({"x":{"dtype":"F32","shape":[],"data_offsets":[0,0]}})", 0, "0 bytes, expected 4"},
      {R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[0,4]}})", 4, "4 bytes, expected 0"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("y":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       12, "y: overlaps x by 4 bytes"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8, "overlaps"},
      {R"({"x":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},)"
       R"("y":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       8, "overlaps"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("x":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
       16, "x: appears twice"},
      {R"({"x":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8, "x: dtype is \"F33\""},
      {R"({"x":{"dtype":"C64","shape":[1],"data_offsets":[0,8]}})", 8, "x: dtype is \"C64\""},
      {R"({"x":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", 8, "x: dtype is 7"},
      {R"({"x":{"shape":[2],"data_offsets":[0,8]}})", 8, "x: has no dtype"},
      {R"({"x":{"dtype":"F32","data_offsets":[0,8]}})", 8, "x: has no shape"},
      {R"({"x":{"dtype":"F32","shape":[2]}})", 8, "x: has no data_offsets"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", 8, "expected [begin, end]"},
      {R"({"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8, "shape has -2"},
      {R"({"x":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", 8, "shape has 2.0"},
      {R"({"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8, "shape is 2"},
      {R"({"x":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8,
       "expected whole numbers from 0 to 2^60"},
      {R"({"x":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "expected at most 2^60 elements"},
      {R"({"x":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "expected at most 2^60 elements"},
      {R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})", 8, "has a key 'more'"},
      {R"({"x":[]})", 0, "x: is an array of 0, expected an object"},
      {R"({"__metadata__":{"a":1}})", 0, "__metadata__: a is 1, expected a string"},
      {R"({"__metadata__":1})", 0, "__metadata__: is 1, expected an object"},
      {R"({"x":)", 0, ""},
      {R"({} {})", 0, ""},
  };
  for (const auto& each : cases) {
    write_safetensors(each.header, each.data_bytes);
    const std::string message = refusal();
    BOOST_TEST(!message.empty(), each.header << " is not refused");
    BOOST_TEST(message.find(each.refusal) != std::string::npos,
               "'" << message << "' lacks '" << each.refusal << "'");
  }
}

BOOST_AUTO_TEST_CASE(a_safetensors_length_that_lies_is_refused) {
  const std::string header = R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  for (const std::uint64_t length :
       {std::uint64_t{1} << 40, ~std::uint64_t{0}, std::uint64_t(header.size() + 9)}) {
    write_safetensors(header, std::string(8, 'x'), length);
    require_refusal("it is truncated or no safetensors file");
  }
  write_safetensors(header, std::string(8, 'x'), header.size() - 1);
  BOOST_TEST(!refusal().empty());
  path += ".safetensors";
  write_bytes(path, "1234567");
  require_refusal("has 7 bytes, expected a safetensors file of at least 8");
  write_bytes(path, std::string(8, '\0'));
  require_refusal("does not begin with '{'");
}

BOOST_AUTO_TEST_CASE(a_truncated_safetensors_file_is_refused_at_every_length) {
  write_safetensors(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  const std::string bytes = read_bytes(path);
  BOOST_TEST(refusal().empty());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    write_bytes(path, bytes.substr(0, size));
    BOOST_TEST(!refusal().empty());
  }
}

BOOST_AUTO_TEST_CASE(random_damage_is_an_error_or_goes_unseen) {
  const auto damaged_often = [&](const std::string& whole) {
    std::mt19937 random(1);
    for (int round = 0; round < 60; ++round) {
      std::string bytes = whole;
      for (int i = 0; i < 4; ++i) bytes[random() % bytes.size()] = char(random());
      write_bytes(path, bytes);
      BOOST_CHECK_NO_THROW(refusal());  // which lets nothing pass but a FileError
    }
  };
  write_chunked({64, 32}, {16, 32}, [](hid_t p) {
    H5Pset_shuffle(p);
    H5Pset_deflate(p, 1);
    H5Pset_fletcher32(p);
  });
  damaged_often(read_bytes(path));
  write_safetensors(R"({"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                    R"("y":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})",
                    11);
  damaged_often(read_bytes(path));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
