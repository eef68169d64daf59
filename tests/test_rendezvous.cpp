// SPDX-License-Identifier: Apache-2.0
// Processes that find each other by what torchrun sets, on TCP.
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/data/monomorphic.hpp>
#include <boost/test/data/test_case.hpp>
#include <csignal>
#include <cstdlib>
#include <map>

#include "comm_sim/transport/process_rank.hpp"
#include "comm_sim/transport/tcp_transport.hpp"
#include "tests/boost_test.hpp"
#include "tests/host_comm_cases.hpp"

namespace tokenview {
namespace {

namespace data = boost::unit_test::data;
using Seconds = Transport::Seconds;

/// A port that nobody else of this machine is likely to use at the moment.
std::uint16_t next_port() {
  static int next = 0;
  return std::uint16_t(20000 + (getpid() * 37 + 11 * next++) % 12000);
}

/// Runs `body(rank)` in a forked process a rank; what each returned, or "died".
std::vector<std::string> in_processes(std::int64_t size,
                                      const std::function<std::string(std::int64_t)>& body) {
  struct Child {
    pid_t process;
    int pipe;
  };
  std::vector<Child> children;
  for (std::int64_t rank = 0; rank < size; ++rank) {
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("pipe");
    const pid_t process = fork();
    if (process == 0) {
      std::string words;
      try {
        words = body(rank);
      } catch (const std::exception& error) {
        words = text("threw ", error.what());
      }
      words += "\n";
      const ssize_t written = write(ends[1], words.data(), words.size());
      _exit(written == ssize_t(words.size()) ? 0 : 1);
    }
    close(ends[1]);
    children.push_back({process, ends[0]});
  }
  std::vector<std::string> words;
  for (const Child& child : children) {
    std::string& of_child = words.emplace_back();
    char buffer[4096];
    for (ssize_t got; (got = read(child.pipe, buffer, sizeof(buffer))) > 0;)
      of_child.append(buffer, std::size_t(got));
    close(child.pipe);
    int status = 0;
    waitpid(child.process, &status, 0);
    if (of_child.empty())
      of_child = "died";
    else
      of_child.pop_back();
  }
  return words;
}

std::string in_world(std::int64_t rank, std::int64_t size, std::uint16_t port,
                     const std::function<std::string(Transport&)>& body) {
  const auto world = tcp_transport(rank, size, {"127.0.0.1", port}, Seconds(30));
  return body(*world);
}

}  // namespace

BOOST_DATA_TEST_CASE(processes_do_what_every_host_communicator_must, data::make({2, 4}), size) {
  const std::uint16_t port = next_port();
  const auto found = in_processes(size, [&](std::int64_t rank) {
    return in_world(rank, size, port, [](Transport& world) {
      for (const auto& the_case : host_comm_cases::all())
        if (const std::string problem = the_case.run(world); !problem.empty())
          return text(the_case.name, ": ", problem);
      return std::string();
    });
  });
  for (const std::string& problem : found) BOOST_TEST(problem == "");
}

BOOST_DATA_TEST_CASE(a_process_that_is_killed_ends_the_run_of_all_others, data::make({0, 1, 2}),
                     victim) {
  const std::uint16_t port = next_port();
  const auto start = std::chrono::steady_clock::now();
  const auto found = in_processes(3, [&](std::int64_t rank) {
    return in_world(rank, 3, port, [&](Transport& world) {
      return host_comm_cases::error_of(world, {.tp = 3}, [&](auto& comms) {
        comms.tp.barrier();
        if (rank == victim) raise(SIGKILL);
        comms.tp.barrier();
      });
    });
  });
  for (int rank = 0; rank < 3; ++rank) {
    if (rank == victim)
      BOOST_TEST(found[std::size_t(rank)] == "died");
    else
      BOOST_TEST(found[std::size_t(rank)].find(text("rank ", victim, ": its process has ended")) !=
                     std::string::npos,
                 found[std::size_t(rank)]);
  }
  BOOST_TEST((std::chrono::steady_clock::now() - start < std::chrono::seconds(20)));
}

BOOST_AUTO_TEST_CASE(a_peer_that_never_comes_is_named) {
  const std::uint16_t port = next_port();
  const auto found = in_processes(3, [&](std::int64_t rank) {
    if (rank == 2) return std::string();
    tcp_transport(rank, 3, {"127.0.0.1", port}, Seconds(0.5));
    return std::string("came together");
  });
  BOOST_TEST(found[0] ==
             text("threw rank 2 of 3 did not come to 127.0.0.1:", port, " within 0.5 s"));
  BOOST_TEST(found[1] == text("threw rank 0 at 127.0.0.1:", port,
                              " went away before all ranks had come, within 0.5 s"));
}

BOOST_AUTO_TEST_CASE(a_rank_0_that_is_not_there_is_named) {
  const std::uint16_t port = next_port();
  BOOST_CHECK_EXCEPTION(
      tcp_transport(1, 2, {"127.0.0.1", port}, Seconds(0.2)), CommError, [&](const Error& error) {
        return std::string(error.what()) ==
               text("rank 0 is not at 127.0.0.1:", port,
                    " (MASTER_ADDR, MASTER_PORT) within 0.2 s: Connection refused");
      });
}

BOOST_AUTO_TEST_CASE(a_port_in_use_is_named) {
  const std::uint16_t port = next_port();
  const auto found = in_processes(2, [&](std::int64_t rank) {
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    tcp_transport(0, 2, {"127.0.0.1", port}, Seconds(1));
    return std::string();
  });
  BOOST_TEST(found[1] == text("threw rank 0 cannot listen at 127.0.0.1:", port,
                              " (MASTER_ADDR, MASTER_PORT): Address already in use"));
}

BOOST_AUTO_TEST_CASE(ranks_that_count_differently_are_refused) {
  const std::uint16_t port = next_port();
  const auto found = in_processes(2, [&](std::int64_t rank) {
    tcp_transport(rank, rank == 0 ? 2 : 3, {"127.0.0.1", port}, Seconds(5));
    return std::string();
  });
  const std::string words =
      text("threw at 127.0.0.1:", port, ": WORLD_SIZE is 3 on rank 1 and 2 on rank 0");
  BOOST_TEST(found[0] == words);
  BOOST_TEST(found[1] == words);
}

BOOST_AUTO_TEST_CASE(a_stranger_at_the_port_is_no_rank) {
  const std::uint16_t port = next_port();
  const auto found = in_processes(3, [&](std::int64_t rank) {
    if (rank == 2) {  // says something, and something else, and goes
      const std::string command =
          text("exec 2>/dev/null; for i in 1 2 3 4 5; do exec 3<>/dev/tcp/127.0.0.1/", port,
               " && echo GET / HTTP/1.0 >&3 && exit 0; sleep 0.05; done");
      return text(std::system(text("bash -c '", command, "'").c_str()));
    }
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return in_world(rank, 2, port, [](Transport& world) {
      world.barrier(world.world());
      return std::string();
    });
  });
  BOOST_TEST(found[0] == "");
  BOOST_TEST(found[1] == "");
}

namespace {

/// Variables of the environment for one case; null: not set.
class Environment {
 public:
  explicit Environment(std::map<std::string, const char*> variables)
      : variables_(std::move(variables)) {
    for (const auto& [name, value] : variables_)
      value == nullptr ? unsetenv(name.c_str()) : setenv(name.c_str(), value, 1);
  }
  ~Environment() {
    for (const auto& [name, value] : variables_) unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

 private:
  std::map<std::string, const char*> variables_;
};

std::string usage_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "none";
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_rank_is_what_the_launcher_says) {
  {
    const Environment none({{"RANK", nullptr}, {"WORLD_SIZE", nullptr}});
    BOOST_TEST(!process_rank().has_value());
  }
  {
    const Environment torchrun({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}});
    const auto found = process_rank();
    BOOST_TEST((found && found->launcher == ProcessRank::Launcher::torchrun && found->rank == 3 &&
                found->size == 4 && found->local_rank == 1));
  }
  const Environment mpirun({{"OMPI_COMM_WORLD_RANK", "0"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"RANK", "3"},
                            {"WORLD_SIZE", "4"}});
  const auto found = process_rank();
  BOOST_TEST((found && found->launcher == ProcessRank::Launcher::mpirun && found->size == 2));
}

BOOST_AUTO_TEST_CASE(variables_that_make_no_sense_are_named) {
  {
    const Environment half({{"RANK", "1"}, {"WORLD_SIZE", nullptr}});
    BOOST_TEST(usage_error([] { process_rank(); }) == "WORLD_SIZE: is not set, expected a number");
  }
  {
    const Environment past({{"RANK", "4"}, {"WORLD_SIZE", "4"}});
    BOOST_TEST(usage_error([] { process_rank(); }) ==
               "RANK: found \"4\", expected a number from 0 to 3");
  }
  {
    const Environment no_place({{"MASTER_ADDR", nullptr}});
    BOOST_TEST(usage_error([] { meeting_place(); }) ==
               "MASTER_ADDR: is not set, expected the machine of rank 0");
  }
  const Environment bad_port({{"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "http"}});
  BOOST_TEST(usage_error([] { meeting_place(); }) ==
             "MASTER_PORT: found \"http\", expected a number from 1 to 65534");
}

BOOST_AUTO_TEST_CASE(the_ranks_of_torchrun_meet_beside_its_own_store) {
  const Environment environment({{"MASTER_ADDR", "localhost"},
                                 {"MASTER_PORT", "29500"},
                                 {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  BOOST_TEST(meeting_place().port == 29501);
}

}  // namespace tokenview
