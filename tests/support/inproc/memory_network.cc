// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc/memory_network.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/src/base/counter.h"
#include "ronde/error.h"

namespace ronde::inproc {

class MemoryNetwork::RankFabric final : public Fabric {
 public:
  RankFabric(std::shared_ptr<MemoryNetwork> network, int rank)
      : network_(std::move(network)), rank_(rank) {}

  std::string_view name() const noexcept override { return "memory"; }
  FabricTraits traits() const noexcept override { return {}; }
  std::uint32_t channels() const override { return 1U << 20; }
  std::unique_ptr<MessageBatch> make_batch(std::shared_ptr<void> memory) override;
  std::shared_ptr<void> register_memory(void* begin, std::size_t bytes) override {
    auto* const first = static_cast<std::byte*>(begin);
    registered_[first] = bytes;
    return {begin, [this, first](void*) { registered_.erase(first); }};
  }
  bool progress() override { return false; }
  void abort() noexcept override { network_->forget(rank_); }
  void close() override {}
  StatsGroup stats() const override {
    return {"memory network",
            {{"messages", messages_.get()},
             {"sent_bytes", sent_bytes_.get()},
             {"unregistered_bytes", unregistered_bytes_.get()}}};
  }

  int rank() const noexcept { return rank_; }
  void count(const void* from, std::size_t bytes) noexcept {
    messages_.add();
    sent_bytes_.add(bytes);
    const auto* const first = static_cast<const std::byte*>(from);
    const auto after = registered_.upper_bound(first);
    const bool is_registered = after != registered_.begin() &&
                               first + bytes <= std::prev(after)->first + std::prev(after)->second;
    if (!is_registered) unregistered_bytes_.add(bytes);
  }

 private:
  const std::shared_ptr<MemoryNetwork> network_;
  const int rank_;
  Counter messages_, sent_bytes_, unregistered_bytes_;
  std::map<const std::byte*, std::size_t, std::less<>> registered_;
};

class MemoryNetwork::Batch final : public MessageBatch {
 public:
  Batch(std::shared_ptr<MemoryNetwork> network, RankFabric& fabric, std::shared_ptr<void> memory)
      : network_(std::move(network)), fabric_(fabric), memory_(std::move(memory)) {}
  ~Batch() override {
    if (posted_.empty()) return;
    const std::lock_guard lock(network_->mutex_);
    network_->kept_.push_back(std::move(memory_));
  }

  bool poll() override {
    const std::lock_guard lock(network_->mutex_);
    const auto ended = [this](const auto& posted) {
      return network_->has_ended(*posted.message, posted.peer);
    };
    ended_ += std::erase_if(posted_, ended);
    return posted_.empty();
  }

  std::uint64_t ended() const noexcept override { return ended_; }

 private:
  struct Posted {
    std::shared_ptr<Message> message;
    int peer;
  };

  void post_send(int peer, MessageTag tag, const void* from, std::size_t bytes) override {
    fabric_.count(from, bytes);
    const Way way = {fabric_.rank(), peer, tag.channel, tag.stream};
    posted_.push_back({network_->post(way, true, const_cast<void*>(from), bytes), peer});
  }
  void post_receive(int peer, MessageTag tag, void* to, std::size_t bytes) override {
    const Way way = {peer, fabric_.rank(), tag.channel, tag.stream};
    posted_.push_back({network_->post(way, false, to, bytes), peer});
  }

  const std::shared_ptr<MemoryNetwork> network_;
  RankFabric& fabric_;
  std::shared_ptr<void> memory_;
  std::vector<Posted> posted_;
  std::uint64_t ended_ = 0;
};

std::unique_ptr<MessageBatch> MemoryNetwork::RankFabric::make_batch(std::shared_ptr<void> memory) {
  return std::make_unique<Batch>(network_, *this, std::move(memory));
}

MemoryNetwork::MemoryNetwork(int ranks, Link link, std::function<Time()> clock)
    : link_(link),
      clock_(std::move(clock)),
      lost_(static_cast<std::size_t>(ranks), false),
      free_from_(static_cast<std::size_t>(ranks)) {}

std::unique_ptr<Fabric> MemoryNetwork::fabric(int rank) {
  return std::make_unique<RankFabric>(shared_from_this(), rank);
}

std::shared_ptr<MemoryNetwork::Message> MemoryNetwork::post(const Way& way, bool sends,
                                                            void* memory, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  auto& waiting = unmatched_[way];
  const auto end_of = [sends](Message& message) -> End& {
    return sends ? message.from : message.to;
  };
  const auto found = std::ranges::find_if(
      waiting, [&](const auto& message) { return !end_of(*message).is_posted; });
  const bool is_first = found == waiting.end();
  auto message = is_first ? std::make_shared<Message>() : *found;
  end_of(*message) = {static_cast<std::byte*>(memory), bytes, true};
  if (is_first) {
    waiting.push_back(message);
    return message;
  }
  waiting.erase(found);
  if (message->from.bytes == message->to.bytes) {
    std::memcpy(message->to.memory, message->from.memory, bytes);
  }
  Time& free_from = free_from_[static_cast<std::size_t>(std::get<0>(way))];
  free_from = std::max(free_from, clock_());
  if (link_.bytes_per_second > 0) {
    free_from += std::chrono::nanoseconds(
        static_cast<std::int64_t>(1e9 * static_cast<double>(bytes) / link_.bytes_per_second));
  }
  message->ends = free_from + link_.latency;
  while (!travelling_.empty() && travelling_.front().expired()) travelling_.pop_front();
  travelling_.push_back(message);
  return message;
}

bool MemoryNetwork::has_ended(const Message& message, int peer) const {
  const std::string name = "rank " + std::to_string(peer);
  if (message.ends && message.from.bytes != message.to.bytes) {
    throw GroupError(peer, "a message of " + std::to_string(message.from.bytes) +
                               " bytes was received as one of " + std::to_string(message.to.bytes) +
                               ", with " + name);
  }
  if (message.ends) return *message.ends <= clock_();
  if (lost_[static_cast<std::size_t>(peer)]) throw GroupError(peer, name + " is lost");
  return false;
}

void MemoryNetwork::lose(int rank) {
  forget(rank);
  const std::lock_guard lock(mutex_);
  lost_[static_cast<std::size_t>(rank)] = true;
}

/// Nobody touches the rank's memory any more.
void MemoryNetwork::forget(int rank) {
  const std::lock_guard lock(mutex_);
  for (auto& [way, messages] : unmatched_) {
    const bool sends = std::get<0>(way) == rank;
    if (!sends && std::get<1>(way) != rank) continue;
    std::erase_if(messages, [&](const auto& message) {
      return (sends ? message->from : message->to).is_posted;
    });
  }
}

std::vector<std::shared_ptr<void>> MemoryNetwork::take_kept() {
  const std::lock_guard lock(mutex_);
  return std::exchange(kept_, {});
}

std::optional<MemoryNetwork::Time> MemoryNetwork::next_end() const {
  const std::lock_guard lock(mutex_);
  std::optional<Time> next;
  for (const auto& weak : travelling_) {
    const auto message = weak.lock();
    if (!message || *message->ends <= clock_()) continue;
    if (!next || *message->ends < *next) next = message->ends;
  }
  return next;
}

}  // namespace ronde::inproc
