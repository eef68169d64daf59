// SPDX-License-Identifier: Apache-2.0
#include "verify/launcher.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <system_error>

#include "verify/interrupt.hpp"

extern char** environ;

namespace tokenview {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

/// Pointers as exec takes them, made before the fork: the child may not allocate.
std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& more) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string line = *entry;
    if (!more.contains(line.substr(0, line.find('=')))) all.push_back(line);
  }
  for (const auto& [name, value] : more) all.push_back(name + '=' + value);
  return all;
}

/// A running process, its streams, and in the end how it ended. It is the leader of a group of its
/// own, so that what it started ends with it.
class Running {
 public:
  Running(const std::vector<std::string>& command,
          const std::map<std::string, std::string>& environment) {
    const std::vector<std::string> variables = environment_with(environment);
    const std::vector<char*> argv = pointers(command), envp = pointers(variables);
    std::array<std::array<int, 2>, 2> pipes{};
    if (pipe2(pipes[0].data(), O_CLOEXEC) != 0) throw_errno("pipe");
    streams_[0] = pipes[0][0];
    const bool has_both = pipe2(pipes[1].data(), O_CLOEXEC) == 0;
    if (has_both) streams_[1] = pipes[1][0];
    const pid_t parent = getpid();
    child_ = has_both ? fork() : -1;
    if (child_ == 0) {
      setpgid(0, 0);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(127);
      const int null = open("/dev/null", O_RDONLY);
      if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(pipes[0][1], STDOUT_FILENO) < 0 ||
          dup2(pipes[1][1], STDERR_FILENO) < 0)
        _exit(127);
      for (const int signal : {SIGINT, SIGTERM, SIGCHLD}) std::signal(signal, SIG_DFL);
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    const int error = errno;
    close(pipes[0][1]);
    if (has_both) close(pipes[1][1]);
    if (child_ < 0) {
      close_streams();
      throw std::system_error(error, std::generic_category(), "fork");
    }
    setpgid(child_, child_);  // also here: whoever comes first
    for (const int stream : streams_) fcntl(stream, F_SETFL, O_NONBLOCK);
  }
  ~Running() {
    if (child_ > 0) {
      kill(-child_, SIGKILL);
      while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    close_streams();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  LaunchedEnd end;

  bool is_running() const { return child_ > 0; }
  const std::array<int, 2>& streams() const { return streams_; }

  /// Takes what is written and whether it has ended.
  void look() {
    siginfo_t info{};
    const int error = waitid(P_PID, id_t(child_), &info, WEXITED | WNOHANG | WNOWAIT);
    read(0, end.out);
    read(1, end.err);
    if (error == 0 && info.si_pid == 0) return;
    kill(-child_, SIGKILL);  // what it left behind; before its id is free for others
    int status = 0;
    if (waitpid(child_, &status, 0) == child_) {  // fails where nobody is told of children
      if (WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
      if (WIFSIGNALED(status)) end.signal = WTERMSIG(status);
    }
    child_ = 0;
    close_streams();
  }

  void stop() { kill(-child_, SIGKILL); }

 private:
  void read(std::size_t which, std::string& into) {
    std::array<char, 4096> block{};
    while (streams_[which] >= 0) {
      const ssize_t count = ::read(streams_[which], block.data(), block.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return;  // nothing for now
      if (count == 0) {
        close(streams_[which]);
        streams_[which] = -1;
        return;
      }
      into.append(block.data(), std::min(std::size_t(count), max_launched_output - into.size()));
    }
  }
  void close_streams() {
    for (int& stream : streams_) {
      if (stream >= 0) close(stream);
      stream = -1;
    }
  }

  pid_t child_ = 0;
  std::array<int, 2> streams_ = {-1, -1};
};

int free_port() {
  const int socket_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (socket_ < 0) throw_errno("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const bool is_bound = bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                        getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  close(socket_);
  if (!is_bound) throw_errno("a free port");
  return ntohs(address.sin_port);
}

}  // namespace

std::vector<LaunchedEnd> launch(const Launch& launch) {
  std::vector<std::unique_ptr<Running>> processes;
  for (const auto& environment : launch.environments)
    processes.push_back(std::make_unique<Running>(launch.command, environment));

  const auto seconds = [](double count) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(count));
  };
  const Clock::time_point end_of_time = Clock::now() + seconds(launch.timeout);
  std::optional<Clock::time_point> end_of_grace;
  bool any_runs = true;
  while (any_runs) {
    throw_if_interrupted();
    std::vector<pollfd> streams;
    for (const auto& process : processes)
      for (const int stream : process->streams())
        if (stream >= 0) streams.push_back({stream, POLLIN, 0});
    poll(streams.data(), nfds_t(streams.size()), 10);  // milliseconds: the end is no event of these

    any_runs = false;
    const Clock::time_point now = Clock::now();
    for (const auto& process : processes) {
      if (!process->is_running()) continue;
      process->look();
      if (!process->is_running()) {
        if (!process->end.succeeded() && !end_of_grace) end_of_grace = now + seconds(launch.grace);
        continue;
      }
      any_runs = true;
      const bool is_late = now >= end_of_time;
      if (!is_late && !(end_of_grace && now >= *end_of_grace)) continue;
      (is_late ? process->end.timed_out : process->end.ended_early) = true;
      process->stop();
    }
  }
  std::vector<LaunchedEnd> ends;
  for (const auto& process : processes) ends.push_back(std::move(process->end));
  return ends;
}

std::vector<std::map<std::string, std::string>> torchrun_environments(int world_size) {
  const std::string size = std::to_string(world_size), port = std::to_string(free_port());
  std::vector<std::map<std::string, std::string>> environments;
  for (int rank = 0; rank < world_size; ++rank)
    environments.push_back({{"RANK", std::to_string(rank)},
                            {"LOCAL_RANK", std::to_string(rank)},
                            {"WORLD_SIZE", size},
                            {"LOCAL_WORLD_SIZE", size},
                            {"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", port}});
  return environments;
}

std::string this_program() {
  std::array<char, 4096> path{};
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0 || std::size_t(size) == path.size()) throw_errno("/proc/self/exe");
  return {path.data(), std::size_t(size)};
}

}  // namespace tokenview
