// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ronde/board.h"

namespace ronde::test {

/// Words in plain memory, and nobody to wake.
class PlainBoard final : public Board {
 public:
  explicit PlainBoard(std::size_t words) : words_(words) {}
  std::span<Word> words() noexcept override { return words_; }
  void set_asleep(Sleep) noexcept override {}
  void ring(Whom) noexcept override {}

 private:
  std::vector<Word> words_;
};

}  // namespace ronde::test
