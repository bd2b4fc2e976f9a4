// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "tests/support/inproc/exchange.h"

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

}  // namespace ronde::inproc
