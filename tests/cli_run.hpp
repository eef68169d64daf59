// SPDX-License-Identifier: Apache-2.0
// Runs the built program as a user does, and says how it ended and what it printed.
#pragma once
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/temporary_folder.hpp"

namespace tokenview {

/// The end of a process: its exit code, or 1000 + the signal that killed it.
struct Ended {
  int code;
  std::string out, err;

  /// Lines on standard error.
  std::ptrdiff_t error_lines() const { return std::count(err.begin(), err.end(), '\n'); }
};

/// What a process is started with beyond its arguments.
struct Surroundings {
  std::string folder = {};                            // its current folder; empty: as here
  std::map<std::string, std::string> variables = {};  // environment variables, set or replaced
  bool obey_permissions = false;                      // even the superuser
  rlim_t largest_file = RLIM_INFINITY;                // bytes
  std::string out = {};  // where standard output goes; empty: collected
};

/// A process that runs beside the test.
class Process {
 public:
  Process(const std::vector<std::string>& words, const Surroundings& with = {}) : with_(with) {
    std::vector<char*> argv;
    for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const std::string out = with.out.empty() ? files_.file("out") : with.out;
    const std::string err = files_.file("err");
    child_ = fork();
    if (child_ < 0) throw std::runtime_error("fork fails");
    if (child_ > 0) return;

    const auto redirect = [](const std::string& path, int flags, int descriptor) {
      const int file = open(path.c_str(), flags, 0600);
      if (file < 0 || dup2(file, descriptor) < 0) _exit(126);
    };
    redirect("/dev/null", O_RDONLY, STDIN_FILENO);
    redirect(out, O_WRONLY | O_CREAT, STDOUT_FILENO);
    redirect(err, O_WRONLY | O_CREAT, STDERR_FILENO);
    for (const auto& [name, value] : with.variables) setenv(name.c_str(), value.c_str(), 1);
    if (!with.folder.empty() && chdir(with.folder.c_str()) != 0) _exit(126);
    if (with.obey_permissions) {
      prctl(PR_CAPBSET_DROP, 1);  // CAP_DAC_OVERRIDE
      prctl(PR_CAPBSET_DROP, 2);  // CAP_DAC_READ_SEARCH
    }
    if (with.largest_file != RLIM_INFINITY) {
      const rlimit limit = {with.largest_file, with.largest_file};
      setrlimit(RLIMIT_FSIZE, &limit);
    }
    execvp(argv[0], argv.data());
    _exit(127);
  }
  ~Process() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void send(int signal) const { kill(child_, signal); }

  Ended end() {
    int status = 0;
    waitpid(child_, &status, 0);
    child_ = 0;
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status),
            with_.out.empty() ? read_bytes(files_.file("out")) : "",
            read_bytes(files_.file("err"))};
  }

 private:
  Surroundings with_;
  TemporaryFolder files_;
  pid_t child_ = 0;
};

inline std::vector<std::string> program_line(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TOKENVIEW_PROGRAM);
  return arguments;
}

/// `tokenview ARGUMENTS`, to its end.
inline Ended run(const std::vector<std::string>& arguments, const Surroundings& with = {}) {
  return Process(program_line(arguments), with).end();
}

inline bool contains(const std::string& all, const std::string& part) {
  return all.find(part) != std::string::npos;
}

}  // namespace tokenview
