// SPDX-License-Identifier: Apache-2.0
#include "tools/run/base/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "ronde/error.h"

namespace ronde::tool::launch {
namespace {

rlimit own_file_limit{};  // rlim_max is 0: as it was

struct Pipe {
  Fd read, write;
};

Pipe make_pipe() {
  std::array<int, 2> fds{};
  if (pipe2(fds.data(), O_CLOEXEC) != 0) fail("a pipe cannot be made");
  return {Fd(fds[0]), Fd(fds[1])};
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

/// Runs in the child and allocates nothing; returns only if the program cannot be started.
void become(const Command& command, char** words, char** variables, pid_t parent,
            const std::array<int, 3>& streams) {
  setpgid(0, 0);
  if (command.dies_with_parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILURE);
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGPIPE, SIGHUP, SIGINT, SIGQUIT, SIGTERM}) signal(number, SIG_DFL);
  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (const int core : command.cores) CPU_SET(static_cast<std::size_t>(core), &cores);
  if (!command.cores.empty() && sched_setaffinity(0, sizeof cores, &cores) != 0) return;
  if (!command.folder.empty() && chdir(command.folder.c_str()) != 0) return;
  for (const int stream : {0, 1, 2}) dup2(streams[static_cast<std::size_t>(stream)], stream);
  if (command.inherited >= 0) fcntl(command.inherited, F_SETFD, 0);
  if (own_file_limit.rlim_max > 0) setrlimit(RLIMIT_NOFILE, &own_file_limit);
  environ = variables;
  execvp(words[0], words);
}

}  // namespace

Variables own_variables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t end = text.find('=');
    if (end != std::string_view::npos) variables.emplace(text.substr(0, end), text.substr(end + 1));
  }
  return variables;
}

void raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  const rlimit raised{limit.rlim_max, limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) own_file_limit = limit;
}

Process spawn(const Command& command) {
  Pipe in = make_pipe(), out = make_pipe(), err = make_pipe(), errors = make_pipe();
  std::vector<std::string> words = command.words;
  std::vector<std::string> variables;
  for (const auto& [name, value] : command.variables) variables.push_back(name + "=" + value);
  std::vector<char*> word_pointers = pointers(words), variable_pointers = pointers(variables);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) fail(words.front() + " cannot be started");
  if (child == 0) {
    become(command, word_pointers.data(), variable_pointers.data(), parent,
           {in.read.get(), out.write.get(), err.write.get()});
    const int error = errno;
    static_cast<void>(!write(errors.write.get(), &error, sizeof error));
    _exit(EXIT_FAILURE);
  }
  errors.write.reset();
  int error = 0;
  ssize_t count = 0;
  while ((count = read(errors.read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
  }
  if (count > 0) {
    waitpid(child, nullptr, 0);
    const std::string& program = words.front();
    const std::string path = program.front() == '/' ? program : command.folder + "/" + program;
    const bool is_there = program.find('/') != std::string::npos && access(path.c_str(), F_OK) == 0;
    errno = error;
    fail(program + " cannot be started" +
         (error == ENOENT && is_there ? ", or the interpreter or loader that it names" : ""));
  }
  for (const Fd* const fd : {&out.read, &err.read}) fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  return {child, std::move(in.write), std::move(out.read), std::move(err.read)};
}

void signal_group(pid_t leader, int number) noexcept {
  kill(-leader, number);
}

bool has_ended(pid_t child) noexcept {
  siginfo_t info{};
  return waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid != 0;
}

std::optional<bool> stop_change(pid_t child) noexcept {
  siginfo_t info{};
  constexpr int kWhat = WSTOPPED | WCONTINUED | WNOHANG;
  if (waitid(P_PID, static_cast<id_t>(child), &info, kWhat) != 0 || info.si_pid == 0) return {};
  return info.si_code == CLD_STOPPED;
}

int reap(pid_t child) noexcept {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

bool has_members(pid_t leader) noexcept {
  while (waitpid(-leader, nullptr, WNOHANG) > 0) {
  }
  return kill(-leader, 0) == 0;
}

int kill_and_reap(pid_t child) noexcept {
  signal_group(child, SIGKILL);
  return reap(child);
}

std::string status_text(int exit_code, int signal) {
  if (signal == 0) return "exit code " + std::to_string(exit_code);
  return "signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
}

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

}  // namespace ronde::tool::launch
