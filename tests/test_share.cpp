// SPDX-License-Identifier: Apache-2.0
// Runs that are spread over tasks, and their parts put together.
#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <fstream>

#include "tests/boost_test.hpp"
#include "tests/cli_run.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Words = std::vector<std::string>;

/// A small piece of the matrix of the shipped golden files.
Words matrix(Words more) {
  Words words = {"check", "--matrix", "--tp", "1,2", "--tokens", "3"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}
const Surroundings in_the_sources{.folder = TOKENVIEW_SOURCE_DIR};

/// What a run found: its last line without the time that it took and the parts that it had.
std::string verdict(const std::string& out) {
  std::string line = out.substr(0, out.rfind(" values, "));
  line = line.substr(line.rfind('\n', line.size() - 1) + 1);
  if (const auto parts = line.find(" in "); parts != std::string::npos)
    line.erase(parts, line.find(" (", parts) - parts);
  return line;
}

/// The files of `count` parts of the matrix.
Words parts_in(const TemporaryFolder& folder, int count) {
  Words files;
  for (int part = 1; part <= count; ++part) {
    const std::string shard = std::to_string(part) + '/' + std::to_string(count);
    files.push_back(folder.file("part" + std::to_string(part)));
    const Ended ended = run(matrix({"--shard", shard, "--format", "jsonl"}), in_the_sources);
    BOOST_TEST_REQUIRE(ended.code == 0, ended.err);
    std::ofstream(files.back()) << ended.out;
  }
  return files;
}

Ended merge(Words files) {
  files.insert(files.begin(), {"check", "--matrix", "--merge"});
  return run(files, in_the_sources);
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_parts_together_are_the_whole) {
  const TemporaryFolder folder;
  const Words files = parts_in(folder, 3);
  const Ended whole = run(matrix({}), in_the_sources);
  const Ended merged = merge({files[2], files[0], files[1]});
  BOOST_TEST(whole.code == 0);
  BOOST_TEST(merged.code == 0);
  BOOST_TEST(verdict(whole.out).starts_with("match: "), whole.out);
  BOOST_TEST(verdict(merged.out) == verdict(whole.out));
}

BOOST_AUTO_TEST_CASE(a_part_that_is_missing_twice_there_or_cut_off_is_named) {
  const TemporaryFolder folder;
  const Words files = parts_in(folder, 3);
  const Ended missing = merge({files[0], files[2]});
  BOOST_TEST(missing.code == 2);
  BOOST_TEST(missing.err == "tokenview: error: part 2/3 is in none of the 2 files\n");
  const Ended twice = merge({files[0], files[1], files[2], files[1]});
  BOOST_TEST(twice.code == 2);
  BOOST_TEST(contains(twice.err, files[1] + ": is part 2/3, and so is " + files[1]), twice.err);

  const std::string all = read_bytes(files[0]);
  std::ofstream(files[0], std::ios::trunc) << all.substr(0, all.rfind("{\"schema\""));
  const Ended cut_off = merge(files);
  BOOST_TEST(cut_off.code == 2);
  BOOST_TEST(contains(cut_off.err, files[0] + ": has no summary"), cut_off.err);
}

BOOST_AUTO_TEST_CASE(a_part_of_something_else_is_refused) {
  const TemporaryFolder folder;
  const Words files = parts_in(folder, 2);
  const Ended sweep = run({"sweep", "--merge", files[0], files[1]});
  BOOST_TEST(sweep.code == 2);
  BOOST_TEST(contains(sweep.err, "is a part of check --matrix, expected one of sweep"), sweep.err);

  const std::string whole = folder.file("whole");
  std::ofstream(whole) << run(matrix({"--format", "jsonl"}), in_the_sources).out;
  BOOST_TEST(contains(merge({whole}).err, "is a whole run and no part of one"));

  const std::string other = folder.file("other");
  std::ofstream(other) << run({"check", "--matrix", "--tp", "1", "--tokens", "3", "--shard", "2/2",
                               "--format", "jsonl"},
                              in_the_sources)
                              .out;
  BOOST_TEST(contains(merge({files[0], other}).err, "is a part of a run of "));
}

BOOST_AUTO_TEST_CASE(a_difference_in_one_part_is_the_verdict_of_all) {
  const TemporaryFolder folder;
  const Words files = parts_in(folder, 2);
  std::string part = read_bytes(files[1]);
  const std::string expected = "\"unexpected\":0";
  const auto at = part.rfind(expected);
  BOOST_TEST_REQUIRE(at != std::string::npos);
  std::ofstream(files[1], std::ios::trunc) << part.replace(at, expected.size(), "\"unexpected\":1");
  const Ended merged = merge(files);
  BOOST_TEST(merged.code == 1);
  BOOST_TEST(contains(merged.out, "difference: "));
}

BOOST_AUTO_TEST_CASE(a_task_of_a_slurm_array_takes_its_part) {
  Surroundings task = in_the_sources;
  task.variables = {{"SLURM_ARRAY_TASK_ID", "14"},
                    {"SLURM_ARRAY_TASK_MIN", "10"},
                    {"SLURM_ARRAY_TASK_STEP", "2"},
                    {"SLURM_ARRAY_TASK_COUNT", "8"}};
  BOOST_TEST(contains(run(matrix({}), task).out, "(shard 3/8)"));
  task.variables["SLURM_ARRAY_TASK_ID"] = "15";
  const Ended between = run(matrix({}), task);
  BOOST_TEST(between.code == 2);
  BOOST_TEST(contains(between.err, "SLURM_ARRAY_TASK_ID: found 15"), between.err);
}

BOOST_DATA_TEST_CASE(a_shard_that_is_none_is_refused,
                     data::make({"0/2", "3/2", "1", "1/2x", "a/b", "1/-2", "-1/2"}), shard) {
  const Ended ended = run({"sweep", "--shard", shard});
  BOOST_TEST(ended.code == 2);
  BOOST_TEST(contains(ended.err, "expected i/n with 1 <= i <= n"), ended.err);
}

#ifdef TOKENVIEW_MPIRUN

namespace {

Ended mpirun(const std::string& processes, const Words& arguments) {
  Words words = {TOKENVIEW_MPIRUN, "--oversubscribe", "--allow-run-as-root", "-n", processes};
  const Words program = program_line(arguments);
  words.insert(words.end(), program.begin(), program.end());
  return Process(words, in_the_sources).end();
}

}  // namespace

BOOST_AUTO_TEST_CASE(processes_of_mpirun_share_the_work_and_speak_once) {
  const Ended whole = run(matrix({}), in_the_sources);
  const Ended together = mpirun("3", matrix({}));
  BOOST_TEST(together.code == 0, together.err);
  BOOST_TEST(verdict(together.out) == verdict(whole.out));
  BOOST_TEST(contains(together.out, " in 3 parts "));
}

BOOST_AUTO_TEST_CASE(processes_of_mpirun_that_have_nothing_to_compare_all_say_so) {
  const Ended nothing = mpirun("2", matrix({"--case", "no-such-case"}));
  BOOST_TEST(nothing.code == 3);
  BOOST_TEST(contains(nothing.err, "nothing compared"), nothing.err);
}

#endif

}  // namespace tokenview
