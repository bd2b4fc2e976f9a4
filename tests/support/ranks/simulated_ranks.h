// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>

#include "core/src/agree/messages.h"
#include "ronde/plugin/transport.h"
#include "ronde/topology.h"

namespace ronde::test {

/// What rank 0 has sent and received, once its start is over.
struct SimulatedTraffic {
  std::uint64_t sent = 0, sent_bytes = 0, received = 0, received_bytes = 0;
};

/// The transport of rank 0 where no other rank exists: for all of them it hands in what they would
/// say in each exchange of a start, and then what a test makes them say.
///
/// Thread-safety: as Transport.
class SimulatedRanks final : public Transport {
 public:
  struct Script {
    std::vector<int> host_of = {};            ///< of all ranks
    std::vector<std::string> exchanges = {};  ///< what each other rank brings, in this order
    std::vector<Incoming> afterwards = {};    ///< that comes once these are over
  };

  SimulatedRanks(Script script, std::shared_ptr<SimulatedTraffic> traffic)
      : script_(std::move(script)),
        topology_(make_topology(0, script_.host_of)),
        children_(topology_.children()),
        traffic_(std::move(traffic)) {
    begin_exchange();
  }

  std::string_view name() const noexcept override { return "simulated"; }
  const Topology& topology() const noexcept override { return topology_; }

  void send(int peer, std::string_view message) override {
    ++traffic_->sent;
    traffic_->sent_bytes += message.size();
    if (peer != children_.back()) return;
    if (std::holds_alternative<BootstrapMessage>(decode(message))) begin_exchange();
  }

  Incoming poll() override {
    const std::lock_guard lock(mutex_);
    if (arriving_.empty()) return {};
    Incoming incoming = std::move(arriving_.front());
    arriving_.pop_front();
    ++traffic_->received;
    traffic_->received_bytes += incoming.bytes.size();
    return incoming;
  }

  bool wait(Clock::time_point deadline, int) override {
    std::unique_lock lock(mutex_);
    if (!arriving_.empty()) return false;
    woken_.wait_until(lock, deadline, [this] { return is_woken_; });
    return std::exchange(is_woken_, false);
  }

  void wake() noexcept override {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
    woken_.notify_one();
  }

  void close(bool, Clock::time_point) override {}
  StatsGroup stats() const override { return {"simulated transport", {}}; }

 private:
  void begin_exchange() {
    const std::lock_guard lock(mutex_);
    if (next_ == script_.exchanges.size()) {
      arriving_.insert(arriving_.end(), script_.afterwards.begin(), script_.afterwards.end());
      return;
    }
    const std::string& blob = script_.exchanges[next_++];
    for (int rank = 1; rank < topology_.size; ++rank) {
      int child = rank;
      while (topology_.parent_of(child) > 0) child = topology_.parent_of(child);
      arriving_.push_back({Incoming::Kind::Message, child, encode(BootstrapMessage{rank, {blob}})});
    }
  }

  const Script script_;
  const Topology topology_;
  const std::vector<int> children_;
  const std::shared_ptr<SimulatedTraffic> traffic_;
  std::size_t next_ = 0;  ///< exchange

  std::mutex mutex_;
  std::condition_variable woken_;
  // Guarded by mutex_: one thread may be in wait() while another one is in poll() or send().
  std::deque<Incoming> arriving_;
  bool is_woken_ = false;
};

}  // namespace ronde::test
