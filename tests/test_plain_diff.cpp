// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <map>
#include <random>

#include "reference/program/error.hpp"
#include "tests/boost_test.hpp"
#include "tests/raw_hdf5.hpp"
#include "tests/temporary_folder.hpp"
#include "verify/plain_diff.hpp"

namespace tokenview {
namespace {

std::vector<float> random_values(std::size_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> result(count);
  for (float& x : result) x = normal(random);
  return result;
}

struct Results : PlainDiffListener {
  std::map<std::string, PlainDiffResult> by_name;
  void tensor(const PlainDiffResult& result) override { by_name[result.name] = result; }
};

struct Fixture {
  TemporaryFolder folder;
  std::string first = folder.file("first.h5"), second = folder.file("second.h5");
  PlainDiffOptions options;
  Results results;

  PlainDiffTotals diff() {
    results.by_name.clear();
    return diff_files(first, second, options, results);
  }

  static void write(const std::string& path, const std::map<std::string, std::vector<float>>& sets,
                    hsize_t columns = 1) {
    const RawHdf5 file(path);
    for (const auto& [name, values] : sets)
      file.add(name.c_str(), H5T_NATIVE_FLOAT, {values.size() / columns, columns}, values.data());
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(plain_diff, Fixture)

BOOST_AUTO_TEST_CASE(equal_files_match_and_one_wrong_element_is_found) {
  std::vector<float> x = random_values(300'000);
  write(first, {{"a/x", x}, {"y", {1, 2}}}, 2);
  write(second, {{"a/x", x}, {"y", {1, 2}}}, 2);
  PlainDiffTotals totals = diff();
  BOOST_TEST(totals.matches());
  BOOST_TEST(totals.compared == 2);
  BOOST_TEST(totals.values == 300'002);

  x[200'001] += 0.5f;
  write(second, {{"a/x", x}, {"y", {1, 2}}}, 2);
  totals = diff();
  BOOST_TEST(!totals.matches());
  BOOST_TEST(totals.differing == 1);
  const PlainDiffResult& result = results.by_name.at("a/x");
  BOOST_TEST(!result.matches);
  BOOST_TEST(result.comparison.over == 1);
  BOOST_TEST(result.comparison.first_over == 200'001);
  BOOST_TEST(result.detail ==
             "1 of 300000 over the limit, first at [100000, 1], worst at [100000, 1]");
  BOOST_TEST(results.by_name.at("y").matches);
}

BOOST_AUTO_TEST_CASE(the_layout_of_a_file_changes_no_digit) {
  const std::vector<float> x = random_values(1000 * 300);
  std::vector<float> y = x;
  for (std::size_t i = 0; i < y.size(); i += 3) y[i] *= 1 + 1e-6f;
  write(second, {{"x", y}}, 300);
  std::vector<Comparison> found;
  for (const RawHdf5::Shape& chunk : {RawHdf5::Shape{}, {64, 300}, {100, 70}, {1000, 1}}) {
    Hdf5Handle properties(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    if (!chunk.empty()) properties = chunked(chunk);
    if (chunk.size() == 2 && chunk[1] == 70) H5Pset_deflate(properties, 1);
    RawHdf5(first).add("x", H5T_NATIVE_FLOAT, {1000, 300}, x.data(), properties);
    for (options.threads = 1; options.threads <= 3; ++options.threads) {
      BOOST_TEST(diff().matches());
      found.push_back(results.by_name.at("x").comparison);
    }
  }
  for (const Comparison& each : found) {
    BOOST_TEST(each.error_l2 == found.front().error_l2);
    BOOST_TEST(each.golden_l2 == found.front().golden_l2);
    BOOST_TEST(each.worst_index == found.front().worst_index);
  }
}

BOOST_AUTO_TEST_CASE(names_of_one_side_alone_are_listed_and_fail) {
  write(first, {{"a", {1}}, {"b", {1}}});
  write(second, {{"b", {1}}, {"c", {1}}, {"d", {1}}});
  const PlainDiffTotals totals = diff();
  BOOST_TEST(!totals.matches());
  BOOST_TEST(totals.compared == 1);
  BOOST_TEST(totals.differing == 0);
  BOOST_TEST((totals.only_first == std::vector<std::string>{"a"}));
  BOOST_TEST((totals.only_second == std::vector<std::string>{"c", "d"}));
}

BOOST_AUTO_TEST_CASE(nothing_compared_is_no_match) {
  write(first, {{"a", {1}}});
  write(second, {{"b", {1}}});
  BOOST_TEST(diff().nothing_compared());
  BOOST_TEST(!diff().matches());
  write(first, {});
  write(second, {});
  BOOST_TEST(diff().nothing_compared());
  BOOST_TEST(!diff().matches());
}

BOOST_AUTO_TEST_CASE(maps_rename_the_second_file) {
  write(first, {{"model/layers.0.mlp", {1}}, {"model/layers.1.mlp", {2}}});
  write(second, {{"l0/mlp", {1}}, {"l1/mlp", {2}}});
  BOOST_TEST(!diff().matches());
  options.maps.emplace_back("l*/*=model/layers.*.*");
  options.maps.emplace_back("nothing=x");
  const PlainDiffTotals totals = diff();
  BOOST_TEST(totals.matches());
  BOOST_TEST((totals.unused == std::vector<std::string>{"nothing=x"}));
  BOOST_TEST(results.by_name.at("model/layers.1.mlp").second_name == "l1/mlp");

  options.maps.emplace(options.maps.begin(), "l*=x");
  BOOST_CHECK_THROW(diff(), UsageError);
}

BOOST_AUTO_TEST_CASE(rules_decide_by_name) {
  write(first, {{"a", {1}}, {"b", {1}}});
  write(second, {{"a", {1.01f}}, {"b", {1.01f}}});
  options.rules.add("b: rtol=0.1");
  options.rules.add("c: bitwise");
  const PlainDiffTotals totals = diff();
  BOOST_TEST(totals.differing == 1);
  BOOST_TEST(results.by_name.at("b").matches);
  BOOST_TEST((totals.unused == std::vector<std::string>{"c: bitwise"}));
}

BOOST_AUTO_TEST_CASE(what_is_not_wanted_is_counted_and_left_out) {
  write(first, {{"a", {1}}, {"b", {1}}});
  write(second, {{"a", {1}}, {"b", {2}}, {"c", {1}}});
  options.wanted = [](const std::string& name) { return name == "a"; };
  const PlainDiffTotals totals = diff();
  BOOST_TEST(totals.matches());
  BOOST_TEST(totals.left_out == 2);
}

BOOST_AUTO_TEST_CASE(other_shapes_differ_even_with_the_same_elements) {
  write(first, {{"x", {1, 2, 3, 4, 5, 6}}}, 2);
  write(second, {{"x", {1, 2, 3, 4, 5, 6}}}, 3);
  BOOST_TEST(!diff().matches());
  BOOST_TEST(results.by_name.at("x").detail == "shape is [2, 3], expected [3, 2]");
}

BOOST_AUTO_TEST_CASE(empty_tensors_match_only_where_they_are_expected) {
  for (const std::string& path : {first, second})
    RawHdf5(path).add("x", H5T_NATIVE_FLOAT, {0, 4}, nullptr);
  BOOST_TEST(!diff().matches());
  BOOST_TEST(results.by_name.at("x").detail == "is empty: [0, 4]");
  options.may_be_empty = [](const std::string& name) { return name == "x"; };
  BOOST_TEST(diff().matches());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_compared_fails) {
  const Hdf5Handle letters(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(letters, 4);
  for (const std::string& path : {first, second}) RawHdf5(path).add("x", letters, {}, "abcd");
  BOOST_TEST(!diff().matches());
  BOOST_TEST(results.by_name.at("x").detail ==
             "cannot be read: " + first + ":/x: is string, expected numbers");
}

BOOST_AUTO_TEST_CASE(other_types_are_compared_as_numbers_but_for_bitwise) {
  const double x = 0.5;
  RawHdf5(first).add("x", H5T_NATIVE_DOUBLE, {1}, &x);
  write(second, {{"x", {0.5f}}});
  RawHdf5(second).add("x", H5T_IEEE_F32BE, {1}, &x, H5P_DEFAULT, H5T_NATIVE_DOUBLE);
  BOOST_TEST(diff().matches());
  options.rules = ToleranceRules({.bitwise = true});
  BOOST_TEST(!diff().matches());
}

BOOST_AUTO_TEST_CASE(an_hdf5_and_a_safetensors_file_are_compared) {
  write(first, {{"weights/x", {1, 2}}}, 2);
  second = folder.file("second.safetensors");
  const std::string header = R"({"x":{"dtype":"BF16","shape":[1,2],"data_offsets":[0,4]}})";
  const std::uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  write_bytes(second, bytes + header + std::string("\x80\x3f\x00\x40", 4));
  options.maps.emplace_back("*=weights/*");
  BOOST_TEST(diff().matches());
  BOOST_TEST(results.by_name.at("weights/x").second_type == "bfloat16");
}

BOOST_AUTO_TEST_CASE(a_nan_is_named_in_the_detail) {
  write(first, {{"x", {1, 2}}});
  write(second, {{"x", {1, std::numeric_limits<float>::quiet_NaN()}}});
  BOOST_TEST(!diff().matches());
  BOOST_TEST(results.by_name.at("x").detail == "1 NaN, 1 of 2 over the limit, first at [1, 0]");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
