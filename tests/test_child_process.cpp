// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "tests/boost_test.hpp"
#include "verify/child_process.hpp"

namespace tokenview {
namespace {

constexpr ChildLimits limits{std::int64_t{64} << 20, 1};

}  // namespace

BOOST_AUTO_TEST_SUITE(child_process)

BOOST_AUTO_TEST_CASE(the_text_of_the_child_comes_back_whole) {
  for (const std::size_t size : {0, 1, 1 << 20}) {
    const std::string sent(size, 'x');
    BOOST_TEST((child_result(limits, [&] { return sent; }) == sent));
  }
}

BOOST_AUTO_TEST_CASE(what_the_child_changes_is_lost) {
  int value = 1;
  BOOST_TEST((child_result(limits, [&] { return std::to_string(++value); }) == "2"));
  BOOST_TEST(value == 1);
}

BOOST_AUTO_TEST_CASE(a_crash_is_no_answer) {
  BOOST_TEST(!child_result(limits, []() -> std::string {
    raise(SIGSEGV);
    return "alive";
  }));
}

BOOST_AUTO_TEST_CASE(an_exception_is_no_answer) {
  BOOST_TEST(!child_result(limits, []() -> std::string { throw std::runtime_error("x"); }));
}

BOOST_AUTO_TEST_CASE(a_circle_ends_with_the_cpu_time) {
  BOOST_TEST(!child_result(limits, []() -> std::string {
    volatile bool forever = true;
    while (forever) {
    }
    return "";
  }));
}

BOOST_AUTO_TEST_CASE(memory_over_the_limit_is_refused) {
  const auto allocate = [](std::size_t bytes) {
    return [bytes] { return std::to_string(std::vector<char>(bytes).size()); };
  };
  BOOST_TEST(!child_result(limits, allocate(std::size_t{1} << 30)));
  BOOST_TEST((child_result(limits, allocate(1 << 20)) == "1048576"));
}

BOOST_AUTO_TEST_CASE(it_works_where_the_process_ignores_its_children) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  BOOST_TEST((child_result(limits, [] { return std::string("text"); }) == "text"));
  std::signal(SIGCHLD, before);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace tokenview
