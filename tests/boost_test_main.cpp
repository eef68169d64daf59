// SPDX-License-Identifier: Apache-2.0
// main() of every test program, and Boost.Test itself where it is there as headers only.
#ifdef TOKENVIEW_BOOST_TEST_HEADERS
#include <boost/test/included/unit_test.hpp>
#else
#include <boost/test/unit_test.hpp>
#endif

#include <filesystem>

namespace {

/// Names the test module after its program.
bool name_module() {
  auto& module = boost::unit_test::framework::master_test_suite();
  module.p_name.value = std::filesystem::path(module.argv[0]).filename().string();
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  return boost::unit_test::unit_test_main(&name_module, argc, argv);
}
