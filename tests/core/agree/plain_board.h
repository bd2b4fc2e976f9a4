// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ronde/plugin/board.h"

namespace ronde::test {

/// Words in plain memory. Counts the notifications, and reports each set_asleep().
class PlainBoard final : public Board {
 public:
  explicit PlainBoard(std::size_t words) : words_(words) {}
  std::span<Word> words() noexcept override { return words_; }
  void set_asleep(Sleep sleep) noexcept override {
    if (on_asleep) on_asleep(sleep);
  }
  bool has_sleepers(Whom) noexcept override { return peers_sleep; }
  void notify(Whom) noexcept override { ++notifications; }

  bool peers_sleep = false;
  int notifications = 0;
  std::function<void(Sleep)> on_asleep;

 private:
  std::vector<Word> words_;
};

}  // namespace ronde::test
