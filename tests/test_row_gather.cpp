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
                          const std::vector<std::int64_t>& index, AssertNote note = {}) {
  std::vector<T> x;
  for (std::int64_t e = 0; e < rows * cols; ++e) x.push_back(T(float(e)));
  std::vector<T> out(index.size() * std::size_t(cols));
  const auto x_device = to_device(x);
  const auto index_device = to_device(index);
  const auto out_device = to_device(out);
  row_gather<T>({out_device.get(), std::int64_t(index.size()), cols}, {x_device.get(), rows, cols},
                index_device.get(), nullptr, note);
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

/// A record in pinned memory, as the host and the GPU see it.
struct PinnedRecord {
  AssertRecord* host = nullptr;
  AssertRecord* device = nullptr;
  PinnedRecord() {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, sizeof(AssertRecord), cudaHostAllocMapped), "cudaHostAlloc");
    host = new (memory) AssertRecord;
    check(cudaHostGetDevicePointer(&memory, host, 0), "cudaHostGetDevicePointer");
    device = static_cast<AssertRecord*>(memory);
  }
};

/// What a test case of this program prints, run in a process of its own.
std::string output_of(const std::string& test_case) {
  const std::string program = boost::unit_test::framework::master_test_suite().argv[0];
  const std::string command = program + " --run_test=" + test_case + " 2>&1";
  const std::unique_ptr<FILE, int (*)(FILE*)> child(popen(command.c_str(), "r"), pclose);
  BOOST_REQUIRE(child);
  std::string output;
  for (int c = fgetc(child.get()); c != EOF; c = fgetc(child.get())) output.push_back(char(c));
  return output;
}

/// Kills the CUDA context of its process; run by the next case in a process of its own.
BOOST_AUTO_TEST_CASE(child_gathers_row_3_of_3, *boost::unit_test::disabled()) {
  gather<float>(3, 4, {0, 3});
}

BOOST_AUTO_TEST_CASE(an_index_out_of_bounds_is_a_device_side_assert) {
  const std::string output = output_of("child_gathers_row_3_of_3");
  BOOST_TEST_INFO(output);
  BOOST_TEST(output.find("block: [1,0,0], thread: [0,0,0] Assertion `-sizes[i] <= index && index < "
                         "sizes[i] && \"index out of bounds\"` failed") != std::string::npos);
  BOOST_TEST_INFO(output);
  BOOST_TEST(output.find("cudaErrorAssert") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(indices_in_bounds_leave_no_record) {
  const PinnedRecord record;
  gather<float>(3, 300, {2, 0, -3}, {record.device, 7});
  BOOST_TEST(record.host->is_complete == 0);
  BOOST_TEST(record.host->kernel == int(AssertingKernel::none));
}

/// Kills the CUDA context of its process. Three rows of eight are bad, and every thread of a row
/// finds it so.
BOOST_AUTO_TEST_CASE(child_notes_a_bad_index, *boost::unit_test::disabled()) {
  const PinnedRecord record;
  try {
    gather<float>(3, 300, {0, -4, 1, 2, 0, 9, 1, 3}, {record.device, 7});
  } catch (const DeviceError&) {
    const AssertRecord& r = *record.host;
    std::printf(
        "record %d complete %d rank %d row %d index %d bound %d block %u %u %u thread %u %u\n",
        int(r.kernel), int(r.is_complete), int(r.rank), int(r.row), int(r.index), int(r.bound),
        r.block[0], r.block[1], r.block[2], r.thread[1], r.thread[2]);
    std::fflush(stdout);
  }
}

BOOST_AUTO_TEST_CASE(the_record_of_one_bad_index_outlives_the_context) {
  const std::string output = output_of("child_notes_a_bad_index");
  int found = 0;  // the three bad rows, of which one writes
  for (const char* row : {"row 1 index -4 bound 3 block 1", "row 5 index 9 bound 3 block 5",
                          "row 7 index 3 bound 3 block 7"})
    found += output.find(text("record 1 complete 1 rank 7 ", row, " 0 0 thread 0 0\n")) !=
             std::string::npos;
  BOOST_TEST_INFO(output);
  BOOST_TEST(found == 1);
}
