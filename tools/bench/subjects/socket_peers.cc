// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "backends/compose.h"
#include "ronde/error.h"
#include "ronde/ronde.h"
#include "tools/bench/subjects/peers.h"

namespace ronde::tool {
namespace {

using Clock = Transport::Clock;

constexpr std::chrono::seconds kClosing{10};
/// How often a rank that sleeps checks whether another one is lost.
constexpr std::chrono::milliseconds kLook{50};
/// From rank 0's word to the call: longer than the word takes to come to all ranks of its host.
constexpr std::chrono::microseconds kHeadStart{50};

std::unique_ptr<Transport> connect() {
  Config config = load_config_from_environment().config;
  config.log_level = "error";  // Ronde's own start has warned
  return compose_built_in(config).make_transport();
}

/// The ranks as Topology's tree. A barrier gathers up the tree to rank 0, which then releases all.
class SocketPeers final : public Peers {
 public:
  explicit SocketPeers(bool oversubscribed) : oversubscribed_(oversubscribed) {}
  ~SocketPeers() override { transport_->close(false, Clock::now() + kClosing); }

  void barrier() override {
    for (std::size_t heard = 0; heard < children_.size(); ++heard) next();
    Clock::duration start = Clock::now().time_since_epoch() + kHeadStart;
    if (parent_ >= 0) {
      transport_->send(parent_, {});
      std::memcpy(&start, next().data(), sizeof start);
    }
    send_down({reinterpret_cast<const char*>(&start), sizeof start});
    // One clock is of one host. More than the head start would be of another clock.
    const auto left = [&] { return start - Clock::now().time_since_epoch(); };
    while (topology_.hosts() == 1 && left() > Clock::duration::zero() && left() <= kHeadStart) {
      if (oversubscribed_) std::this_thread::yield();
    }
  }

  void maximum(std::vector<double>& values) override {
    const std::string own(reinterpret_cast<const char*>(values.data()),
                          values.size() * sizeof(double));
    for (const std::string& bytes : all_of(own)) {
      std::vector<double> others(values.size());
      std::memcpy(others.data(), bytes.data(), own.size());
      std::ranges::transform(values, others, values.begin(),
                             [](double a, double b) { return std::max(a, b); });
    }
  }

  /// Rank 0 gathers "rank:text" from all, and sends the texts by rank; those between forward.
  std::vector<std::string> all_of(const std::string& text) override {
    std::vector<std::string> all(static_cast<std::size_t>(topology_.size));
    all[static_cast<std::size_t>(topology_.rank)] = text;
    if (parent_ >= 0) transport_->send(parent_, std::to_string(topology_.rank) + ":" + text);
    for (int other = topology_.rank + 1; other < topology_.size; ++other) {
      if (!topology_.is_at_or_below(other, topology_.rank)) continue;
      const std::string message = next();  // of one of those below
      if (parent_ >= 0) {
        transport_->send(parent_, message);
      } else {
        const std::size_t colon = message.find(':');
        all.at(std::stoul(message.substr(0, colon))) = message.substr(colon + 1);
      }
    }
    for (std::string& one : all) {
      if (parent_ >= 0) one = next();
      send_down(one);
    }
    return all;
  }

 private:
  std::string next() {
    for (;;) {
      Incoming incoming =
          transport_->receive(oversubscribed_ ? Clock::now() + kLook : Clock::time_point::min());
      if (incoming.kind == Incoming::Kind::Message) return std::move(incoming.bytes);
      end_if_one_is_lost();
      if (incoming.kind == Incoming::Kind::Nothing) continue;
      throw GroupError(incoming.peer,
                       "rank " + std::to_string(incoming.peer) + " was lost: " + incoming.bytes);
    }
  }

  void send_down(std::string_view bytes) {
    for (const int child : children_) transport_->send(child, bytes);
  }

  const bool oversubscribed_;
  const std::unique_ptr<Transport> transport_ = connect();
  const Topology& topology_ = transport_->topology();
  const int parent_ = topology_.parent();
  const std::vector<int> children_ = topology_.children();
};

}  // namespace

std::unique_ptr<Peers> make_socket_peers(bool oversubscribed) {
  return std::make_unique<SocketPeers>(oversubscribed);
}

void end_if_one_is_lost() {
  if (!is_initialized()) return;  // --raw
  if (const std::exception_ptr failure = default_runtime().failure()) {
    std::rethrow_exception(failure);
  }
}

}  // namespace ronde::tool
