// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ronde/plugin/board.h"
#include "tests/support/inproc/hub.h"

namespace ronde::inproc {

/// What the boards of a group's ranks share. Thread-safety: every member may be called from any
/// thread.
class SharedBoard {
 public:
  explicit SharedBoard(std::shared_ptr<Hub> hub);

  std::span<Board::Word> words() noexcept { return words_; }
  int size() const noexcept { return hub_->size(); }
  void set_asleep(int rank, Board::Sleep sleep) noexcept;
  Board::Sleep sleep_of(int rank) noexcept;
  /// Unless it was woken meanwhile.
  void wake(int rank) noexcept;

 private:
  std::atomic<std::uint64_t>& word_of(int rank) noexcept {
    return asleep_[static_cast<std::size_t>(rank)].value;
  }

  const std::shared_ptr<Hub> hub_;
  std::vector<Board::Word> words_;
  std::vector<Board::Word> asleep_;  ///< by rank
};

std::unique_ptr<Board> make_board(std::shared_ptr<SharedBoard> shared, int rank);

}  // namespace ronde::inproc
