// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/run/base/frames.h"
#include "tools/run/base/process.h"
#include "tools/run/launcher/hosts.h"

namespace ronde::tool::launch {

/// Returns the command that starts an agent on `host`.
std::vector<std::string> agent_command(const Host& host, const Options& options);

/// The agent on a host, as the launcher sees it. Destruction ends the connection.
///
/// Thread-safety: none.
class Link {
 public:
  enum class State { Connecting, Ready, Prepared, Lost };
  using OnEvent = std::function<void(Link&, const Frame&)>;
  using OnLost = std::function<void(Link&)>;
  using OnError = std::function<void(const std::string& line)>;

  /// `on_event`: for every message after the agent's first one. `on_error`: what ssh and the agent
  /// write to standard error. Throws Error if there is no ssh.
  Link(Poll& poll, Host host, const std::vector<std::string>& words, OnEvent on_event,
       OnLost on_lost, OnError on_error);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  const Host& host() const noexcept { return host_; }
  State state() const noexcept { return state_; }
  /// The reason if it is lost.
  const std::string& problem() const noexcept { return problem_; }

  void send(const Json& order);
  void lose(const std::string& problem);
  /// Stops reading from the agent, or resumes.
  void pause(bool paused);

  /// The job's ranks on this host, and what the agent found there before the start.
  std::vector<int> ranks;
  Findings findings;
  /// Throws Json::exception if it makes no sense.
  void set_prepared(const Json& answer);

 private:
  void on_output();
  void on_errors();
  void take(const Frame& frame);

  Poll& poll_;
  const Host host_;
  const OnEvent on_event_;
  const OnLost on_lost_;
  const OnError on_error_;
  Process process_;
  std::optional<Outbox> orders_;
  FrameReader events_;
  State state_ = State::Connecting;
  std::string problem_, last_words_, errors_;
};

}  // namespace ronde::tool::launch
