// SPDX-License-Identifier: Apache-2.0
#include "tools/run/launcher/hosts.h"

#include <poll.h>
#include <sys/wait.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <numeric>
#include <sstream>

#include "observe/base/system_sampler.h"
#include "ronde/error.h"
#include "tools/run/base/process.h"

namespace ronde::tool::launch {
namespace {

constexpr std::string_view kSpaces = " \t\r";
constexpr std::size_t kMostOutput = std::size_t{1} << 20;

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = std::min(text.find_first_not_of(kSpaces), text.size());
  text.remove_prefix(begin);
  return text.substr(0, text.find_last_not_of(kSpaces) + 1);
}

/// A name or an address, and no option of ssh.
bool is_name(std::string_view text) {
  const auto is_fine = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-:%@").find(c) != std::string_view::npos;
  };
  return !text.empty() && text.front() != '-' && std::ranges::all_of(text, is_fine);
}

/// 0 if it is no number of slots.
int slots_in(std::string_view text) {
  int slots = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), slots);
  return code == std::errc() && end == text.data() + text.size() ? std::max(slots, 0) : 0;
}

/// "a", "a:2", "a slots=2", "[::1]:2".
Host parse_host(std::string_view text, const std::string& source) {
  constexpr std::string_view kSlots = "slots=";
  std::string_view name = text, slots = "1";
  const std::size_t space = text.find_first_of(kSpaces);
  const std::size_t colon = text.rfind(':');
  const std::size_t bracket = text.find(']');
  if (space != std::string_view::npos) {
    name = text.substr(0, space);
    slots = trimmed(text.substr(space));
    slots = slots.starts_with(kSlots) ? slots.substr(kSlots.size()) : "";
  } else if (colon != std::string_view::npos &&
             (bracket == std::string_view::npos || colon > bracket)) {
    name = text.substr(0, colon);
    slots = text.substr(colon + 1);
  }
  const bool in_brackets = name.starts_with('[') && name.ends_with(']');
  if (in_brackets) name = name.substr(1, name.size() - 2);
  const bool is_clear = in_brackets || name.find(':') == std::string_view::npos;
  const int count = slots_in(slots);
  if (is_name(name) && is_clear && count > 0) return {std::string(name), count};
  throw UsageError(source + ": \"" + std::string(text.substr(0, 80)) +
                   "\" is no host: write name, name:slots or name slots=N, with at least 1 slot, "
                   "and an IPv6 address in brackets");
}

std::string discover(const std::string& text, double seconds, Poll& poll,
                     const std::function<bool()>& stops) {
  Command command;
  command.words = {"/bin/sh", "-c", text};
  Process process = spawn(command);
  process.in.reset();
  std::string out, err;
  int open = 2;
  const auto watch = [&](const Fd& fd, std::string& into) {
    poll.add(fd.get(), POLLIN, [&] {
      const auto [goes_on, bytes] = read_some(fd.get());
      into += bytes;
      if (goes_on) return;
      --open;
      poll.remove(fd.get());
    });
  };
  watch(process.out, out);
  watch(process.err, err);
  const auto deadline = Clock::now() + seconds_of(seconds);
  const auto is_too_much = [&] { return out.size() + err.size() > kMostOutput; };
  while (open > 0 && Clock::now() < deadline && !stops() && !is_too_much()) poll.wait(deadline);
  poll.remove(process.out.get());
  poll.remove(process.err.get());
  const std::string name = "--discover " + quoted(text);
  // Once its outputs are closed, the command is about to end.
  while (open == 0 && Clock::now() < deadline && !has_ended(process.pid)) {
    poll.wait(Clock::now() + std::chrono::milliseconds(5));
  }
  const bool hangs = open > 0 || !has_ended(process.pid);
  const int status = kill_and_reap(process.pid);
  if (is_too_much()) throw Error(name + " has written more than 1 MiB");
  if (hangs && stops()) throw Error(name + " was interrupted");
  if (hangs) throw Error(name + " has not ended within " + text_of(seconds) + " s");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return out;
  const bool exits = WIFEXITED(status);
  throw Error(name + " failed: " +
              status_text(exits ? WEXITSTATUS(status) : 0, exits ? 0 : WTERMSIG(status)) +
              (err.empty() ? "" : ": " + err.substr(0, err.find('\n'))));
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (file.peek() != std::ifstream::traits_type::eof()) text << file.rdbuf();
  if (file.bad() || !file.is_open()) throw Error("the hostfile " + path + " cannot be read");
  return text.str();
}

}  // namespace

Hosts parse_hosts(std::string_view text, const std::string& source) {
  Hosts hosts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find_first_of(",\n"), text.size());
    std::string_view entry = text.substr(0, end);
    entry = trimmed(entry.substr(0, entry.find('#')));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (entry.empty()) continue;
    hosts.push_back(parse_host(entry, source));
    const std::string& name = hosts.back().name;
    const auto is_it = [&](const Host& host) {
      return host.name == name || (is_this_host(name) && is_this_host(host.name));
    };
    if (std::ranges::count_if(hosts, is_it) > 1) {
      throw UsageError(source + ": host " + name + " is there twice: give it all its slots once");
    }
  }
  if (hosts.empty()) throw UsageError(source + " names no host");
  return hosts;
}

int slots_of(const Hosts& hosts) {
  return std::accumulate(hosts.begin(), hosts.end(), 0,
                         [](int sum, const Host& host) { return sum + host.slots; });
}

bool is_this_host(const std::string& name) {
  const std::string whole = host_name();
  return name == "localhost" || name == "127.0.0.1" || name == whole ||
         name == whole.substr(0, whole.find('.'));
}

Hosts read_hosts(const Options& options, Poll& poll, const std::function<bool()>& stops) {
  if (!options.hosts.empty()) return parse_hosts(options.hosts, "--hosts");
  if (!options.hostfile.empty()) {
    return parse_hosts(read_file(options.hostfile), "the hostfile " + options.hostfile);
  }
  if (!options.discover.empty()) {
    return parse_hosts(discover(options.discover, options.connect_s, poll, stops),
                       "what --discover has written");
  }
  return {{"localhost", options.ranks}};
}

}  // namespace ronde::tool::launch
