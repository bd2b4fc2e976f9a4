// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/simulated_fabric.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/src/base/monotonic_clock.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Returns the first of the messages, or of the receives of them, that came from `from`.
auto find_counterpart(auto& among, int from, MessageTag tag) {
  return std::ranges::find_if(
      among, [&](const auto& other) { return other.from == from && other.tag == tag; });
}

void expect_same_size(std::size_t sent, std::size_t expected, int from) {
  if (sent == expected) return;
  throw Error("simulated rank " + std::to_string(from) + " sent " + std::to_string(sent) +
              " bytes to one that expects " + std::to_string(expected));
}

}  // namespace

class MessageExchange::Batch final : public MessageBatch {
 public:
  Batch(MessageExchange& exchange, int rank)
      : exchange_(exchange), rank_(rank), owner_(exchange.owner_) {}
  ~Batch() override {
    if (in_progress_ > 0) exchange_.forget(*this);
  }

  int rank() const noexcept { return rank_; }
  bool poll() override { return in_progress_ == 0; }
  std::uint64_t ended() const noexcept override { return ended_; }

  void end_one() {
    ++ended_;
    if (--in_progress_ == 0) owner_->advance();
  }

 private:
  void post_send(int peer, MessageTag tag, const void* /*from*/, std::size_t bytes) override {
    ++in_progress_;
    exchange_.send(rank_, peer, tag, bytes, *this);
  }
  void post_receive(int peer, MessageTag tag, void* /*to*/, std::size_t bytes) override {
    ++in_progress_;
    if (!exchange_.receive(rank_, {peer, tag, bytes, this})) return;
    --in_progress_;
    ++ended_;
  }

  MessageExchange& exchange_;
  const int rank_;
  Progressing* const owner_;
  std::size_t in_progress_ = 0;
  std::uint64_t ended_ = 0;
};

/// A rank's end of the exchange.
class MessageExchange::End final : public Fabric {
 public:
  End(MessageExchange& exchange, int rank) : exchange_(exchange), rank_(rank) {}

  std::string_view name() const noexcept override { return "simulated"; }
  FabricTraits traits() const noexcept override { return {}; }
  std::uint32_t channels() const override { return std::numeric_limits<std::uint32_t>::max(); }
  std::unique_ptr<MessageBatch> make_batch(std::shared_ptr<void> /*memory*/) override {
    return std::make_unique<Batch>(exchange_, rank_);
  }
  bool progress() override { return false; }
  void abort() noexcept override {}
  void close() override {}
  StatsGroup stats() const override { return {}; }

 private:
  MessageExchange& exchange_;
  const int rank_;
};

MessageExchange::MessageExchange(SimulatedNetwork& network, const SimulationOptions& options)
    : network_(network), options_(options), unmatched_(options.host_of.size()) {}

std::unique_ptr<Fabric> MessageExchange::make_fabric(int rank) {
  return std::make_unique<End>(*this, rank);
}

void MessageExchange::send(int from, int to, MessageTag tag, std::size_t bytes, Batch& batch) {
  const Index index = sent_.add({from, to, tag, bytes, &batch});
  charge(from, sent_[index]);
  network_.send(
      from, to, bytes, false, network_.time(from), [this, index] { leave(index); },
      [this, index] { arrive(index); });
}

/// Charges one of the two ranks of a message between hosts.
void MessageExchange::charge(int rank, const Sent& message) {
  const auto host = [this](int of) { return options_.host_of[static_cast<std::size_t>(of)]; };
  if (host(message.from) == host(message.to)) return;
  const NetworkCosts& costs = options_.network;
  network_.charge(
      rank, from_s(costs.overhead + costs.overhead_per_byte * static_cast<double>(message.bytes)));
}

void MessageExchange::leave(Index index) {
  Batch* const batch = std::exchange(sent_[index].batch, nullptr);
  sent_[index].has_left = true;
  take_if_over(index);
  if (batch != nullptr) batch->end_one();
}

/// A receiver may see a message before a sender that is stopped sees that it has left.
void MessageExchange::take_if_over(Index index) {
  if (sent_[index].has_left && sent_[index].has_arrived) sent_.take(index);
}

void MessageExchange::arrive(Index index) {
  const Sent message = sent_[index];
  charge(message.to, message);
  sent_[index].has_arrived = true;
  take_if_over(index);
  Unmatched& of = unmatched_[static_cast<std::size_t>(message.to)];
  const auto receive = find_counterpart(of.receives, message.from, message.tag);
  if (receive == of.receives.end()) {
    of.arrived.push_back({message.from, message.tag, message.bytes});
    return;
  }
  expect_same_size(message.bytes, receive->bytes, message.from);
  Batch* const batch = receive->batch;
  of.receives.erase(receive);
  batch->end_one();
}

bool MessageExchange::receive(int to, const Receive& receive) {
  Unmatched& of = unmatched_[static_cast<std::size_t>(to)];
  const auto arrived = find_counterpart(of.arrived, receive.from, receive.tag);
  if (arrived == of.arrived.end()) {
    of.receives.push_back(receive);
    return false;
  }
  expect_same_size(arrived->bytes, receive.bytes, receive.from);
  of.arrived.erase(arrived);
  return true;
}

void MessageExchange::forget(const Batch& batch) {
  for (Index index = 0; index < sent_.size(); ++index) {
    if (sent_[index].batch == &batch) sent_[index].batch = nullptr;
  }
  std::erase_if(unmatched_[static_cast<std::size_t>(batch.rank())].receives,
                [&](const Receive& receive) { return receive.batch == &batch; });
}

}  // namespace ronde
