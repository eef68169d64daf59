// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "device/check.hpp"
#include "device/device_info.hpp"
#include "device/row_gather.hpp"
#include "tests/boost_test.hpp"
#include "tests/skip.hpp"

using namespace tokenview;

namespace {

/// The whole program needs a GPU.
struct RequireGpu {
  RequireGpu() {
    std::string reason;
    if (devices(reason).empty()) skip_program(reason);
  }
};

/// Host values copied to the device, freed with the object.
template <class T>
std::shared_ptr<T> to_device(const std::vector<T>& values) {
  void* data = nullptr;
  check(cudaMalloc(&data, values.size() * sizeof(T)), "cudaMalloc");
  check(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        "cudaMemcpy");
  return {static_cast<T*>(data), cudaFree};
}

/// x [rows, cols] holds 0, 1, 2, ... in storage order: every element tells where it came from.
template <class T>
std::vector<float> gather(std::int64_t rows, std::int64_t cols,
                          const std::vector<std::int64_t>& index) {
  std::vector<T> x;
  for (std::int64_t e = 0; e < rows * cols; ++e) x.push_back(T(float(e)));
  std::vector<T> out(index.size() * std::size_t(cols));
  const auto x_device = to_device(x);
  const auto index_device = to_device(index);
  const auto out_device = to_device(out);
  row_gather<T>({out_device.get(), std::int64_t(index.size()), cols}, {x_device.get(), rows, cols},
                index_device.get(), nullptr);
  check(cudaMemcpy(out.data(), out_device.get(), out.size() * sizeof(T), cudaMemcpyDeviceToHost),
        "row_gather_kernel");
  return std::vector<float>(out.begin(), out.end());
}

template <class T>
void require_rows_in_order_of_index(std::int64_t cols) {
  const std::vector<std::int64_t> index = {2, 0, -1, 2};
  const std::vector<std::int64_t> row = {2, 0, 2, 2};
  std::vector<float> expected;
  for (std::int64_t r : row)
    for (std::int64_t d = 0; d < cols; ++d) expected.push_back(float(T(float(r * cols + d))));
  BOOST_TEST(gather<T>(3, cols, index) == expected, boost::test_tools::per_element());
}

}  // namespace

BOOST_TEST_GLOBAL_FIXTURE(RequireGpu);

BOOST_AUTO_TEST_CASE(rows_come_in_the_order_of_the_index) {
  for (std::int64_t cols : {1, 31, 300}) {
    require_rows_in_order_of_index<float>(cols);
    require_rows_in_order_of_index<__nv_bfloat16>(cols);
  }
}

BOOST_AUTO_TEST_CASE(no_row_is_a_call_without_effect) {
  row_gather<float>({nullptr, 0, 4}, {nullptr, 3, 4}, nullptr, nullptr);
  BOOST_TEST(cudaDeviceSynchronize() == cudaSuccess);
}

BOOST_AUTO_TEST_CASE(other_columns_are_refused) {
  BOOST_CHECK_THROW(row_gather<float>({nullptr, 1, 4}, {nullptr, 3, 5}, nullptr, nullptr),
                    ShapeError);
}

/// Kills the CUDA context of its process; run by the next case in a process of its own.
BOOST_AUTO_TEST_CASE(child_gathers_row_3_of_3, *boost::unit_test::disabled()) {
  gather<float>(3, 4, {0, 3});
}

BOOST_AUTO_TEST_CASE(an_index_out_of_bounds_is_a_device_side_assert) {
  const std::string program = boost::unit_test::framework::master_test_suite().argv[0];
  const std::string command = program + " --run_test=child_gathers_row_3_of_3 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> child(popen(command.c_str(), "r"), pclose);
  BOOST_REQUIRE(child);
  std::string output;
  for (int c = fgetc(child.get()); c != EOF; c = fgetc(child.get())) output.push_back(char(c));
  BOOST_TEST_INFO(output);
  BOOST_TEST(output.find("block: [1,0,0], thread: [0,0,0] Assertion `-sizes[i] <= index && index < "
                         "sizes[i] && \"index out of bounds\"` failed") != std::string::npos);
  BOOST_TEST_INFO(output);
  BOOST_TEST(output.find("cudaErrorAssert") != std::string::npos);
}
