// SPDX-License-Identifier: Apache-2.0
#include "backends/inproc/shared_board.h"

#include <utility>

namespace ronde::inproc {
namespace {

constexpr std::size_t kWords = 256;

class InprocBoard final : public Board {
 public:
  InprocBoard(std::shared_ptr<SharedBoard> shared, int rank)
      : shared_(std::move(shared)), rank_(rank) {}

  std::span<Word> words() noexcept override { return shared_->words(); }
  void set_asleep(bool asleep) noexcept override { shared_->set_asleep(rank_, asleep); }
  void ring() noexcept override { shared_->ring_others(rank_); }

 private:
  const std::shared_ptr<SharedBoard> shared_;
  const int rank_;
};

}  // namespace

SharedBoard::SharedBoard(std::shared_ptr<Hub> hub)
    : hub_(std::move(hub)), words_(kWords), asleep_(static_cast<std::size_t>(hub_->size())) {}

// An exchange rather than a store and a fence: sequentially consistent read-modify-writes on both
// sides order "asleep, then look" against "change, then ring", and ThreadSanitizer knows them.
void SharedBoard::set_asleep(int rank, bool asleep) noexcept {
  asleep_[static_cast<std::size_t>(rank)].value.exchange(asleep ? 1 : 0);
}

void SharedBoard::ring_others(int rank) noexcept {
  for (int other = 0; other < hub_->size(); ++other) {
    if (other == rank) continue;
    if (asleep_[static_cast<std::size_t>(other)].value.exchange(0) != 0) hub_->wake(other);
  }
}

std::unique_ptr<Board> make_board(std::shared_ptr<SharedBoard> shared, int rank) {
  return std::make_unique<InprocBoard>(std::move(shared), rank);
}

}  // namespace ronde::inproc
