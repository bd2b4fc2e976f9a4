// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "backends/socket/socket_tree.h"
#include "ronde/plugin/transport.h"

namespace ronde::net {

/// A Transport whose messages travel over a SocketTree. Those that derive from it say how the ranks
/// find each other: they lend connect() an exchange, in their constructor.
class TreeTransport : public Transport {
 public:
  std::string_view name() const noexcept final { return name_; }
  const Topology& topology() const noexcept final { return tree_->topology(); }
  Clock::time_point start_deadline() const noexcept final { return tree_->start_deadline(); }
  void send(int peer, std::string_view message) final { tree_->send(peer, message); }
  Incoming poll() final { return tree_->poll(); }
  bool wait(Clock::time_point deadline) final { return tree_->wait(deadline); }
  void wake() noexcept final { tree_->wake(); }
  int wake_fd() const noexcept final { return tree_->wake_fd(); }
  void close(bool /*graceful*/, Clock::time_point deadline) override { tree_->close(deadline); }
  StatsGroup stats() const final { return tree_->stats(name_ + " transport"); }

 protected:
  explicit TreeTransport(std::string name) : name_(std::move(name)) {}

  void connect(const TreeOptions& options, const Exchange& exchange) {
    tree_.emplace(options, exchange);
  }

 private:
  std::string name_;
  std::optional<SocketTree> tree_;
};

}  // namespace ronde::net
