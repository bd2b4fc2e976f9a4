// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/simulated_fabric.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/src/base/monotonic_clock.h"

namespace ronde {

class MessageExchange::Batch final : public MessageBatch {
 public:
  Batch(MessageExchange& exchange, int rank)
      : exchange_(exchange), rank_(rank), index_(exchange.batches_.add({exchange.owner_})) {}
  ~Batch() override {
    progress().owner = nullptr;
    if (poll()) exchange_.batches_.take(index_);
  }

  bool poll() override { return progress().in_progress == 0; }
  std::uint64_t ended() const noexcept override { return progress().ended; }

 private:
  void post_send(int peer, MessageTag tag, const void* /*from*/, std::size_t bytes) override {
    ++progress().in_progress;
    exchange_.send({rank_, peer, tag, bytes}, index_);
  }
  void post_receive(int peer, MessageTag tag, void* /*to*/, std::size_t /*bytes*/) override {
    exchange_.receive(rank_, {peer, tag, index_});
  }
  Progress& progress() const noexcept { return exchange_.batches_[index_]; }

  MessageExchange& exchange_;
  const int rank_;
  const Pool<Progress>::Index index_;
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
    : network_(network), options_(options), ranks_(options.host_of.size()) {}

std::unique_ptr<Fabric> MessageExchange::make_fabric(int rank) {
  return std::make_unique<End>(*this, rank);
}

void MessageExchange::send(const Sent& message, Pool<Progress>::Index batch) {
  charge(message.from, message);
  network_.send(
      message.from, message.to, message.bytes, false, network_.time(message.from),
      [this, batch] { end_one(batch); },
      [this, index = sent_.add(message)] { arrive(sent_.take(index)); });
}

/// Charges one of the two ranks of a message between hosts.
void MessageExchange::charge(int rank, const Sent& message) {
  const auto host = [this](int of) { return options_.host_of[static_cast<std::size_t>(of)]; };
  if (host(message.from) == host(message.to)) return;
  const NetworkCosts& costs = options_.network;
  network_.charge(
      rank, from_s(costs.overhead + costs.overhead_per_byte * static_cast<double>(message.bytes)));
}

void MessageExchange::end_one(Pool<Progress>::Index batch) {
  Progress& progress = batches_[batch];
  ++progress.ended;
  if (--progress.in_progress > 0) return;
  progress.owner != nullptr ? progress.owner->advance() : void(batches_.take(batch));
}

/// Removes the first one of a message between these ranks; nullopt if there is none.
std::optional<MessageExchange::Unmatched> MessageExchange::take_match(std::vector<Unmatched>& among,
                                                                      const Unmatched& other) {
  const auto found = std::ranges::find_if(among, [&](const Unmatched& each) {
    return each.from == other.from && each.tag == other.tag;
  });
  if (found == among.end()) return std::nullopt;
  const Unmatched match = *found;
  among.erase(found);
  return match;
}

void MessageExchange::arrive(const Sent& message) {
  charge(message.to, message);
  Rank& to = ranks_[static_cast<std::size_t>(message.to)];
  const Unmatched arrived = {message.from, message.tag, 0};
  if (const auto receive = take_match(to.receives, arrived)) return end_one(receive->batch);
  to.messages.push_back(arrived);
}

void MessageExchange::receive(int rank, const Unmatched& receive) {
  Rank& to = ranks_[static_cast<std::size_t>(rank)];
  if (take_match(to.messages, receive)) return;
  ++batches_[receive.batch].in_progress;
  to.receives.push_back(receive);
}

}  // namespace ronde
