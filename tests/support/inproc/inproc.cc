// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc/inproc.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "tests/support/inproc/exchange.h"
#include "tests/support/inproc/hub.h"

namespace ronde::inproc {

/// Where the ranks of each process set meet: made by the first of them, gone with the last.
///
/// Thread-safety: every member may be called from any thread.
class SetExchanges {
 public:
  std::shared_ptr<Exchange> of_set(std::uint32_t set, int size) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Exchange> exchange = exchanges_[set].lock();
    if (!exchange) {
      exchange = std::make_shared<Exchange>(size);
      exchanges_[set] = exchange;
    }
    return exchange;
  }

 private:
  std::mutex mutex_;
  std::map<std::uint32_t, std::weak_ptr<Exchange>> exchanges_;  ///< guarded by mutex_
};

/// The memory that the boards of a group's ranks share.
///
/// Thread-safety: every member may be called from any thread.
class SharedBoard {
 public:
  explicit SharedBoard(std::shared_ptr<Hub> hub)
      : hub_(std::move(hub)), words_(256), asleep_(static_cast<std::size_t>(hub_->size())) {}

  std::span<Board::Word> words() noexcept { return words_; }
  int size() const noexcept { return hub_->size(); }

  // Exchanges rather than stores and fences: sequentially consistent read-modify-writes on both
  // sides order "asleep, then look" against "change, then notify", and ThreadSanitizer knows them.
  void set_asleep(int rank, Board::Sleep sleep) noexcept {
    word_of(rank).exchange(static_cast<std::uint64_t>(sleep));
  }
  Board::Sleep sleep_of(int rank) noexcept {
    return static_cast<Board::Sleep>(word_of(rank).fetch_add(0));
  }
  /// Unless the rank was woken meanwhile.
  void wake(int rank) noexcept {
    if (word_of(rank).exchange(0) != 0) hub_->wake(rank);
  }

 private:
  std::atomic<std::uint64_t>& word_of(int rank) noexcept {
    return asleep_[static_cast<std::size_t>(rank)].value;
  }

  const std::shared_ptr<Hub> hub_;
  std::vector<Board::Word> words_;
  std::vector<Board::Word> asleep_;  ///< by rank
};

namespace {

class InprocBoard final : public Board {
 public:
  InprocBoard(std::shared_ptr<SharedBoard> shared, int rank)
      : shared_(std::move(shared)), rank_(rank) {}

  std::span<Word> words() noexcept override { return shared_->words(); }
  void set_asleep(Sleep sleep) noexcept override { shared_->set_asleep(rank_, sleep); }
  bool has_sleepers(Whom whom) noexcept override {
    for (int other = 0; other < shared_->size(); ++other) {
      if (other != rank_ && is_meant(shared_->sleep_of(other), whom)) return true;
    }
    return false;
  }
  void notify(Whom whom) noexcept override {
    for (int other = 0; other < shared_->size(); ++other) {
      if (other != rank_ && is_meant(shared_->sleep_of(other), whom)) shared_->wake(other);
    }
  }

 private:
  const std::shared_ptr<SharedBoard> shared_;
  const int rank_;
};

}  // namespace

Group::Group(int size) : Group(std::vector<int>(static_cast<std::size_t>(size), 0)) {}

Group::Group(const std::vector<int>& host_of)
    : hub_(std::make_shared<Hub>(host_of)),
      exchanges_(std::make_shared<SetExchanges>()),
      board_(std::make_shared<SharedBoard>(hub_)) {}

std::function<std::unique_ptr<Transport>()> Group::transport(int rank) const {
  return [hub = hub_, rank] { return make_transport(hub, rank); };
}

BackendFactory Group::backend_factory() const {
  BackendFactory factory;
  factory.serves_sets = true;
  factory.create = [exchanges = exchanges_](BackendContext& context) {
    const Topology& topology = *context.topology;
    return make_backend(exchanges->of_set(context.set, topology.size), topology.rank);
  };
  return factory;
}

MakeBoard Group::board() const {
  return [board = board_](BoardContext& context) {
    return std::make_unique<InprocBoard>(board, context.topology->rank);
  };
}

void Group::kill(int rank) {
  hub_->leave(rank, "it was killed");
}

}  // namespace ronde::inproc
