// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "tests/boost_test.hpp"
#include "verify/launcher.hpp"

namespace tokenview {
namespace {

std::vector<LaunchedEnd> run_scripts(const std::string& script, int count, double timeout = 30,
                                     double grace = 30) {
  return launch({.command = {"/bin/sh", "-c", script},
                 .environments = torchrun_environments(count),
                 .timeout = timeout,
                 .grace = grace});
}

template <class Body>
double seconds_of(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

BOOST_AUTO_TEST_CASE(streams_and_exit_code_of_each_process_come_back) {
  const auto ends =
      run_scripts("echo out $RANK; echo err $LOCAL_RANK of $WORLD_SIZE >&2; exit $RANK", 3);
  BOOST_REQUIRE(ends.size() == 3);
  for (int rank = 0; rank < 3; ++rank) {
    const LaunchedEnd& end = ends[std::size_t(rank)];
    const std::string number = std::to_string(rank);
    BOOST_TEST(end.exit_code == rank);
    BOOST_TEST(end.succeeded() == (rank == 0));
    BOOST_TEST(end.out == "out " + number + "\n");
    BOOST_TEST(end.err == "err " + number + " of 3\n");
    BOOST_TEST(!end.timed_out);
    BOOST_TEST(!end.ended_early);
  }
}

BOOST_AUTO_TEST_CASE(all_processes_are_told_of_one_meeting_place) {
  std::set<std::string> places;
  for (const LaunchedEnd& end : run_scripts("echo $MASTER_ADDR:$MASTER_PORT", 4))
    places.insert(end.out);
  BOOST_TEST(places.size() == 1);
  BOOST_TEST(*places.begin() != "127.0.0.1:0\n");
}

BOOST_AUTO_TEST_CASE(a_variable_of_ours_is_replaced_and_others_stay) {
  setenv("RANK", "7", 1);
  setenv("TOKENVIEW_TEST", "kept", 1);
  const auto ends = run_scripts("echo $RANK $TOKENVIEW_TEST", 1);
  unsetenv("RANK");
  unsetenv("TOKENVIEW_TEST");
  BOOST_TEST(ends.front().out == "0 kept\n");
}

BOOST_AUTO_TEST_CASE(a_crash_is_told_by_its_signal) {
  const auto ends = run_scripts("kill -SEGV $$", 1);
  BOOST_TEST(ends.front().signal == SIGSEGV);
  BOOST_TEST(ends.front().exit_code == -1);
}

BOOST_AUTO_TEST_CASE(when_one_fails_the_others_have_the_grace_time_and_no_more) {
  const double seconds = seconds_of([] {
    const auto ends =
        run_scripts("[ $RANK = 1 ] && exit 5; echo begun; sleep 60; echo late", 3, 30, 0.3);
    BOOST_TEST(ends[1].exit_code == 5);
    BOOST_TEST(!ends[1].ended_early);
    for (const std::size_t other : {0, 2}) {
      BOOST_TEST(ends[other].ended_early);
      BOOST_TEST(!ends[other].timed_out);
      BOOST_TEST(ends[other].signal == SIGKILL);
      BOOST_TEST(ends[other].out == "begun\n");
    }
  });
  BOOST_TEST(seconds >= 0.3);
  BOOST_TEST(seconds < 10);
}

BOOST_AUTO_TEST_CASE(one_that_succeeds_hurries_nobody) {
  const auto ends = run_scripts("[ $RANK = 0 ] && exit 0; sleep 0.5; echo done", 2, 30, 0.05);
  BOOST_TEST(ends[1].succeeded());
  BOOST_TEST(ends[1].out == "done\n");
}

BOOST_AUTO_TEST_CASE(what_does_not_end_is_ended_with_what_it_started) {
  const double seconds = seconds_of([] {
    for (const LaunchedEnd& end : run_scripts("sleep 60 & sleep 60; true", 2, 0.3)) {
      BOOST_TEST(end.timed_out);
      BOOST_TEST(end.signal == SIGKILL);
    }
  });
  BOOST_TEST(seconds < 10);
}

BOOST_AUTO_TEST_CASE(what_a_process_leaves_behind_ends_with_it) {
  const auto ends = run_scripts("sleep 60 & echo $!", 1);
  BOOST_TEST(ends.front().succeeded());
  const std::string stat = "/proc/" + std::to_string(std::stol(ends.front().out)) + "/stat";
  const auto is_running = [&] {
    std::string number, name, state;
    std::ifstream(stat) >> number >> name >> state;
    return !state.empty() && state != "Z";
  };
  for (int wait = 0; wait < 200 && is_running(); ++wait)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  BOOST_TEST(!is_running());
}

BOOST_AUTO_TEST_CASE(much_output_is_taken_and_the_rest_dropped) {
  const auto ends = run_scripts("head -c 3000000 /dev/zero; echo all >&2", 1);
  BOOST_TEST(ends.front().out.size() == max_launched_output);
  BOOST_TEST(ends.front().err == "all\n");
  BOOST_TEST(ends.front().succeeded());
}

BOOST_AUTO_TEST_CASE(a_program_that_is_not_there_ends_with_127) {
  BOOST_TEST(launch({.command = {"/nowhere/tokenview"}}).front().exit_code == 127);
}

}  // namespace tokenview
