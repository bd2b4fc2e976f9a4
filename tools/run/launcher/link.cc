// SPDX-License-Identifier: Apache-2.0
#include "tools/run/launcher/link.h"

#include <poll.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>
#include <utility>

namespace ronde::tool::launch {
namespace {

constexpr std::size_t kLongestErrorLine = std::size_t{1} << 16;

std::string printable(std::string text) {
  if (text.ends_with('\r')) text.pop_back();
  text.resize(std::min<std::size_t>(text.size(), 200));
  std::ranges::replace_if(
      text, [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

}  // namespace

std::vector<std::string> agent_command(const Host& host, const Options& options) {
  const std::string own = std::filesystem::read_symlink("/proc/self/exe");
  if (is_this_host(host.name)) return {own, "run", "--agent"};
  std::vector<std::string> words;
  if (options.rsh.empty()) {
    const int seconds = static_cast<int>(std::ceil(options.connect_s));
    words = {"ssh",
             "-o",
             "BatchMode=yes",
             "-o",
             "ConnectTimeout=" + std::to_string(seconds),
             "-o",
             "ServerAliveInterval=10",
             "-o",
             "ServerAliveCountMax=3"};
  }
  std::istringstream given(options.rsh);
  for (std::string word; given >> word;) words.push_back(word);
  words.push_back(host.name);
  words.push_back("exec " + quoted(options.ronde.empty() ? own : options.ronde) + " run --agent");
  return words;
}

Link::Link(Poll& poll, Host host, const std::vector<std::string>& words, OnEvent on_event,
           OnLost on_lost, OnError on_error)
    : poll_(poll),
      host_(std::move(host)),
      on_event_(std::move(on_event)),
      on_lost_(std::move(on_lost)),
      on_error_(std::move(on_error)) {
  Command command;
  command.words = words;
  process_ = spawn(command);
  orders_.emplace(poll_, process_.in.get());
  poll_.add(process_.out.get(), POLLIN, [this] { on_output(); });
  poll_.add(process_.err.get(), POLLIN, [this] { on_errors(); });
}

Link::~Link() {
  orders_.reset();
  for (const Fd* const fd : {&process_.out, &process_.err}) {
    if (*fd) poll_.remove(fd->get());
  }
  if (process_.pid > 0) kill_and_reap(process_.pid);
}

void Link::send(const Json& order) {
  if (state_ != State::Lost) orders_->send(to_bytes(order));
}

void Link::pause(bool paused) {
  poll_.pause(process_.out.get(), paused);
}

void Link::lose(const std::string& problem) {
  if (std::exchange(state_, State::Lost) == State::Lost) return;
  problem_ = problem;
  orders_.reset();
  process_.in.reset();
  on_lost_(*this);
}

void Link::set_prepared(const Json& answer) {
  findings = answer.get<Findings>();
  state_ = State::Prepared;
}

void Link::on_output() {
  const auto [goes_on, text] = read_some(process_.out.get());
  events_.take(text);
  try {
    for (auto frame = events_.next(); frame && state_ != State::Lost; frame = events_.next()) {
      take(*frame);
    }
  } catch (const Json::exception& error) {
    lose("host " + host_.name + ": what should be an agent sends nonsense: " + error.what());
  }
  if (goes_on && state_ != State::Lost) return;
  on_errors();
  poll_.remove(process_.out.get());
  process_.out.reset();
  const bool answered = state_ != State::Connecting;
  lose("host " + host_.name +
       (answered ? ": the connection to its agent has ended" : " has started no agent") +
       (last_words_.empty() ? "" : ": " + last_words_));
}

void Link::take(const Frame& frame) {
  if (state_ != State::Connecting) {
    if (frame.json.is_object()) on_event_(*this, frame);
    return;
  }
  // A shell may greet before.
  if (frame.json.is_null()) last_words_ = printable(frame.bytes);
  if (!frame.json.is_object() || frame.json.value("event", "") != "hello") return;
  const std::string version = frame.json.value("version", "unknown");
  if (version != agent_version()) {
    return lose("host " + host_.name + " has Ronde " + version + ", but this is " +
                agent_version() + ": install the same on all hosts, or say where it is by --ronde");
  }
  last_words_.clear();
  state_ = State::Ready;
}

void Link::on_errors() {
  if (!process_.err) return;
  const auto [goes_on, text] = read_some(process_.err.get());
  errors_ += text;
  const bool has_end = !goes_on && !errors_.empty();
  if (has_end || errors_.size() > kLongestErrorLine) errors_ += '\n';
  for (std::size_t end = 0; (end = errors_.find('\n')) != std::string::npos;) {
    last_words_ = printable(errors_.substr(0, end));
    on_error_(errors_.substr(0, end));
    errors_.erase(0, end + 1);
  }
  if (goes_on) return;
  poll_.remove(process_.err.get());
  process_.err.reset();
}

}  // namespace ronde::tool::launch
