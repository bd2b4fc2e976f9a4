// SPDX-License-Identifier: Apache-2.0
#include "tests/support/processes/command.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>
#include <system_error>

namespace ronde::test {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// Output goes to files, as two pipes read one after the other can block the child.
File temporary_file() {
  File file(std::tmpfile(), &std::fclose);
  if (!file) throw std::system_error(errno, std::generic_category(), "tmpfile");
  return file;
}

std::string content(std::FILE* file) {
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::map<std::string, std::string>& added) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const bool is_ours = (text.starts_with("RONDE_") || text.starts_with("HOROVOD_")) &&
                         !text.starts_with("RONDE_TEST_ENDS_AT=");
    if (!is_ours && !added.contains(std::string(text.substr(0, text.find('='))))) {
      variables.emplace_back(text);
    }
  }
  for (const auto& [name, value] : added) variables.push_back(name + "=" + value);
  return variables;
}

}  // namespace

CommandResult run_program(std::vector<std::string> words,
                          const std::map<std::string, std::string>& environment) {
  std::vector<std::string> variables = environment_with(environment);
  const File out = temporary_file();
  const File err = temporary_file();

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, fileno(out.get()), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, fileno(err.get()), STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawn(&child, words[0].c_str(), &actions, nullptr, pointers(words).data(),
                                pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::system_error(error, std::generic_category(), words[0]);
  int status = 0;
  if (waitpid(child, &status, 0) != child) {
    throw std::system_error(errno, std::generic_category(), "waitpid");
  }
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, content(out.get()), content(err.get())};
}

}  // namespace ronde::test
