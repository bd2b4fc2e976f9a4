// SPDX-License-Identifier: Apache-2.0
#include "tests/support/inproc/shared_board.h"

#include <utility>

namespace ronde::inproc {
namespace {

constexpr std::size_t kWords = 256;

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

SharedBoard::SharedBoard(std::shared_ptr<Hub> hub)
    : hub_(std::move(hub)), words_(kWords), asleep_(static_cast<std::size_t>(hub_->size())) {}

// Exchanges rather than stores and fences: sequentially consistent read-modify-writes on both sides
// order "asleep, then look" against "change, then notify", and ThreadSanitizer knows them.
void SharedBoard::set_asleep(int rank, Board::Sleep sleep) noexcept {
  word_of(rank).exchange(static_cast<std::uint64_t>(sleep));
}

Board::Sleep SharedBoard::sleep_of(int rank) noexcept {
  return static_cast<Board::Sleep>(word_of(rank).fetch_add(0));
}

void SharedBoard::wake(int rank) noexcept {
  if (word_of(rank).exchange(0) != 0) hub_->wake(rank);
}

std::unique_ptr<Board> make_board(std::shared_ptr<SharedBoard> shared, int rank) {
  return std::make_unique<InprocBoard>(std::move(shared), rank);
}

}  // namespace ronde::inproc
