// SPDX-License-Identifier: Apache-2.0
// What `ronde run` is told: lists of hosts, and what should be agents send.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "ronde/error.h"
#include "tests/sweeps/fuzz/decoders/fuzz_target.h"
#include "tools/run/launcher/job.h"
#include "tools/run/launcher/launcher.h"

namespace ronde::fuzz {
namespace {

using namespace tool::launch;

// An input is a byte, which says what the rest is.
constexpr char kHosts = 'h', kFrames = 'f', kAgent = 'a';

bool take_hosts(std::string_view text) {
  try {
    std::string again;
    std::set<std::string> names;
    const Hosts hosts = parse_hosts(text, "the list");
    for (const Host& host : hosts) {
      require(host.slots > 0 && names.insert(host.name).second, "a host has slots, and comes once");
      again += host.name + " slots=" + std::to_string(host.slots) + "\n";
    }
    // With a colon in its name, a host is to be in brackets.
    if (again.find(':') == std::string::npos) {
      require(slots_of(parse_hosts(again, "")) == slots_of(hosts), "hosts, written and read again");
    }
    return !hosts.empty();
  } catch (const UsageError&) {
    return false;
  }
}

/// However the stream is cut.
bool take_frames(std::string_view stream) {
  FrameReader whole, single;
  whole.take(stream);
  std::size_t frames = 0;
  for (const char byte : stream) {
    single.take({&byte, 1});
    while (const auto frame = single.next()) {
      const auto same = whole.next();
      require(same && same->json == frame->json && same->bytes == frame->bytes,
              "the same frames, however the stream is cut");
      if (frame->json.is_object()) ++frames;
    }
  }
  require(!whole.next(), "no more frames");
  return frames > 0;
}

/// In the place of an agent: says a line after each order, and all that is left in the end.
class FakeAgent {
 public:
  explicit FakeAgent(std::string_view stream) : left_(stream) {}

  Process start() {
    Process process;
    Fd errors;
    connect(orders_, process.in);
    connect(process.out, events_);
    connect(process.err, errors);
    poll().add(orders_.get(), POLLIN, [this] {
      if (read_some(orders_.get()).second.empty()) return poll().remove(orders_.get());
      rounds_ = 0;
      say_line();
    });
    // Always ready: the launcher has had its time, and waits for more than there is.
    poll().add(idle_.get(), POLLIN, [this] {
      if (++rounds_ == 4) say(left_);
      if (rounds_ == 8) events_.reset();
    });
    say_line();
    return process;
  }
  ~FakeAgent() {
    poll().remove(orders_.get());
    poll().remove(idle_.get());
  }

  static Poll& poll() {
    static Poll poll;
    return poll;
  }

 private:
  static void connect(Fd& from, Fd& to) {
    int fds[2] = {-1, -1};
    require(::pipe2(fds, O_CLOEXEC | O_NONBLOCK) == 0, "a pipe");
    from = Fd(fds[0]);
    to = Fd(fds[1]);
  }

  void say_line() { say(left_.substr(0, std::min(left_.find('\n'), left_.size() - 1) + 1)); }

  /// It fits the pipe, unless nobody reads it any more.
  void say(std::string_view text) {
    if (::write(events_.get(), text.data(), text.size()) > 0) left_.remove_prefix(text.size());
  }

  std::string_view left_;
  int rounds_ = 0;
  Fd orders_, events_;
  const Fd idle_ = Fd(::eventfd(1, EFD_CLOEXEC));
};

FakeAgent* agent = nullptr;

/// A job on a host whose agent says this behind its first words.
bool take_agent(std::string_view stream) {
  const std::string said =
      to_bytes({{"event", "hello"}, {"version", agent_version()}}) + std::string(stream);
  FakeAgent fake(said);
  agent = &fake;
  static Signals signals(FakeAgent::poll());
  Output output(FakeAgent::poll(), "", false);
  Options options;
  options.command = {"program"};
  Job job(FakeAgent::poll(), signals, output, options, {}, 0);
  const JobEnd end = job.run({{"localhost", 2}}, 2, 1);
  require(end.problems.empty() == (end.ranks.size() == 2), "all ranks end, or none has begun");
  failure_screen(end, output);
  return end.problems.empty();
}

std::string an_agent() {
  const auto line = [](const char* json, const char* bytes = "") {
    return to_bytes(Json::parse(json), bytes);
  };
  return line(R"({"event": "prepared", "problems": [], "warnings": ["little memory"],
                  "program": "0123", "port": 4000})") +
         line(R"({"event": "output", "rank": 1, "stream": 1})", "step 1\n") +
         line(R"({"event": "ended", "rank": 0, "problem": "", "exit_code": 0, "signal": 9,
                  "state": 1, "steps": 5, "checkpoint": 3, "failed_rank": 1})") +
         line(R"({"event": "ended", "rank": 1, "problem": "no program", "exit_code": 0,
                  "signal": 0, "state": 0, "steps": 0, "checkpoint": -1, "failed_rank": -1})");
}

}  // namespace
}  // namespace ronde::fuzz

/// In the place of process.cc's.
ronde::tool::launch::Process ronde::tool::launch::spawn(const Command&) {
  return fuzz::agent->start();
}

namespace ronde::fuzz {

std::vector<std::string> valid_inputs() {
  return {kHosts + std::string("a:2,b.c,[::1]:3,user@d"),
          kHosts + std::string("a slots=2\n# comment\n b\n"), kFrames + an_agent(),
          kAgent + an_agent()};
}

bool take(std::string_view bytes) {
  if (bytes.starts_with(kHosts)) return take_hosts(bytes.substr(1));
  if (bytes.starts_with(kFrames)) return take_frames(bytes.substr(1));
  return bytes.starts_with(kAgent) && take_agent(bytes.substr(1));
}

}  // namespace ronde::fuzz
