// SPDX-License-Identifier: Apache-2.0
#include "tools/top/jobs.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <system_error>

#include "observe/live/top_socket.h"

namespace ronde::tool::top {
namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{1};
constexpr std::string_view kExtension = ".sock";

/// Returns 123 for "123.0.sock".
std::optional<int> pid_of(const std::string& name) {
  int pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  const bool is_pid = error == std::errc() && pid > 0 && end != name.data() + name.size();
  if (!is_pid || *end != '.' || !name.ends_with(kExtension)) return std::nullopt;
  return pid;
}

/// A connection to a rank and what it has sent so far.
struct Question {
  int pid = 0;
  int socket = -1;  ///< -1 once all has been read
  std::string text = {};
};

/// Returns -1 if nobody listens; removes a socket whose process has ended.
int connect_to(const fs::path& path, int pid) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string& name = path.native();
  if (name.size() >= sizeof address.sun_path) return -1;
  name.copy(address.sun_path, name.size());
  const int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    return client;
  }
  const bool is_gone = errno == ECONNREFUSED && kill(pid, 0) != 0 && errno == ESRCH;
  close(client);
  if (is_gone) unlink(name.c_str());
  return -1;
}

/// Reads without blocking; closes the socket at its end.
void read_some(Question& question) {
  std::array<char, 65536> buffer{};
  const ssize_t count = read(question.socket, buffer.data(), buffer.size());
  if (count > 0) {
    question.text.append(buffer.data(), static_cast<std::size_t>(count));
  } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
    close(std::exchange(question.socket, -1));
  }
}

void read_all(std::vector<Question>& questions) {
  const auto end = Clock::now() + kPatience;
  while (true) {
    std::vector<pollfd> open;
    std::vector<Question*> asked;
    for (Question& question : questions) {
      if (question.socket < 0) continue;
      open.push_back({question.socket, POLLIN, 0});
      asked.push_back(&question);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (open.empty() || left <= 0) break;
    if (poll(open.data(), open.size(), static_cast<int>(left)) < 0 && errno != EINTR) break;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].revents != 0) read_some(*asked[i]);
    }
  }
  for (const Question& question : questions) {
    if (question.socket >= 0) close(question.socket);
  }
}

}  // namespace

std::vector<Answer> ask_ranks(const std::string& folder) {
  if (!fs::exists(folder)) return {};
  check_top_folder(folder);
  std::vector<Question> questions;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::optional<int> pid = pid_of(entry.path().filename());
    if (!pid || !entry.is_socket()) continue;
    const int client = connect_to(entry.path(), *pid);
    if (client >= 0) questions.push_back({*pid, client});
  }
  read_all(questions);
  std::vector<Answer> answers;
  for (const Question& question : questions) {
    auto json = nlohmann::ordered_json::parse(question.text, nullptr, false);
    const bool is_understood = json.is_object() && json.value("ronde_top", 0) == 1;
    answers.push_back({question.pid, is_understood ? std::move(json) : nullptr});
  }
  return answers;
}

}  // namespace ronde::tool::top
