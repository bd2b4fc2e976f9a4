// SPDX-License-Identifier: Apache-2.0
#include "tools/run/launcher/output.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "ronde/error.h"

namespace ronde::tool::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLastLines = 15;
constexpr std::size_t kLongestLine = std::size_t{1} << 16;
constexpr std::size_t kLongestLastLine = 300;
constexpr std::size_t kMostPending = std::size_t{1} << 20;
constexpr std::size_t kMostPendingAtEnd = 64 * kMostPending;

/// Whether `name` is the prefix, a number and the ending.
bool is_numbered(std::string_view name, std::string_view prefix, std::string_view ending) {
  if (name.size() <= prefix.size() + ending.size()) return false;
  if (!name.starts_with(prefix) || !name.ends_with(ending)) return false;
  name = name.substr(prefix.size(), name.size() - prefix.size() - ending.size());
  return name.find_first_not_of("0123456789") == std::string_view::npos;
}

std::vector<fs::path> numbered(const fs::path& folder, std::string_view prefix,
                               std::string_view ending) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, none)) {
    if (is_numbered(entry.path().filename().string(), prefix, ending)) found.push_back(entry);
  }
  return found;
}

/// Removes the logs of an earlier job, and no other files.
void remove_logs(const fs::path& folder) {
  std::error_code error;
  for (const fs::path& attempt : numbered(folder, "attempt-", "")) {
    if (!fs::is_directory(attempt)) continue;
    for (const fs::path& log : numbered(attempt, "rank-", ".log")) {
      fs::remove(log, error);
      if (error) throw Error("--log-dir " + log.string() + ": " + error.message());
    }
    if (fs::is_empty(attempt, error)) fs::remove(attempt, error);
  }
}

}  // namespace

Output::Output(Poll& poll, std::string folder, bool plain)
    : poll_(poll),
      folder_(std::move(folder)),
      plain_(plain),
      out_(poll, STDOUT_FILENO),
      err_(poll, STDERR_FILENO) {}

void Output::begin(int restart) {
  partial_.clear();
  last_lines_.clear();
  files_.clear();
  if (folder_.empty()) return;
  if (restart == 0) remove_logs(folder_);
  current_ = folder_ + "/attempt-" + std::to_string(restart);
  std::error_code error;
  fs::create_directories(current_, error);
  if (error) throw Error("--log-dir " + current_ + ": " + error.message());
}

void Output::take(int rank, int stream, std::string_view bytes) {
  if (plain_ && folder_.empty()) (stream == STDERR_FILENO ? err_ : out_).send(bytes);
  std::string& partial = partial_[{rank, stream}];
  partial += bytes;
  std::size_t begin = 0;
  for (std::size_t end = 0; (end = partial.find('\n', begin)) != std::string::npos;) {
    line(rank, stream, std::string_view(partial).substr(begin, end - begin));
    begin = end + 1;
  }
  partial.erase(0, begin);
  if (partial.size() < kLongestLine) return;
  line(rank, stream, partial);
  partial.clear();
}

void Output::end_lines() {
  for (const auto& [place, text] : partial_) {
    if (!text.empty()) line(place.first, place.second, text);
  }
  partial_.clear();
}

void Output::line(int rank, int stream, std::string_view text) {
  std::deque<std::string>& last = last_lines_[rank];
  last.emplace_back(text.substr(0, kLongestLastLine));
  if (last.size() > kLastLines) last.pop_front();
  if (!folder_.empty()) {
    const std::string path = current_ + "/rank-" + std::to_string(rank) + ".log";
    auto [entry, is_new] = files_.try_emplace(rank);
    std::ofstream& file = entry->second;
    const bool was_good = is_new || file.good();
    if (is_new) {
      file.open(path, std::ios::binary);
    } else if (!was_good) {  // there may be room again
      file.close();
      file.clear();
      file.open(path, std::ios::binary | std::ios::app);
    }
    file << text << '\n' << std::flush;
    if (was_good && !file) say(path + " cannot be written: what this rank says is lost");
    return;
  }
  if (plain_) return;  // it was sent as it came
  const std::string whole = "[" + std::to_string(rank) + "] " + std::string(text) + "\n";
  (stream == STDERR_FILENO ? err_ : out_).send(whole);
}

void Output::say(const std::string& text) {
  err_.send("ronde run: " + text + "\n");
}

bool Output::is_full(bool ends) const noexcept {
  return out_.pending() + err_.pending() > (ends ? kMostPendingAtEnd : kMostPending);
}

void Output::flush() {
  const auto send_all = [this] {
    while (out_.pending() + err_.pending() > 0) poll_.wait(Clock::now() + std::chrono::hours(1));
  };
  send_all();
  if (out_.error() == 0 || out_.error() == EPIPE) return;  // whoever closes a pipe has read enough
  say(std::string("standard output cannot be written (") + std::strerror(out_.error()) +
      "): what the ranks said since then is lost");
  send_all();
}

void Output::drop() {
  (out_.is_broken() ? err_ : out_).close();
}

}  // namespace ronde::tool::launch
