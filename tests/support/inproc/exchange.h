// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstring>
#include <deque>
#include <mutex>

#include "ronde/backend.h"

namespace ronde::inproc {

/// Where the ranks of a group meet to move data. The n-th collective of every rank belongs
/// together; the last rank to enter does the work for all, under the lock. A message has two ranks,
/// of which the second does the work.
///
/// Thread-safety: every member may be called from any thread.
class Exchange {
 public:
  /// What a rank brings to an operation.
  struct Part {
    const void* input = nullptr;
    void* output = nullptr;
    std::span<const std::size_t> send_counts = {};  ///< alltoall: elements to each rank
  };

  /// One collective operation.
  struct Round {
    std::vector<Part> parts;  ///< by rank
    int entered = 0;
    std::atomic<bool> done{false};
  };

  explicit Exchange(int size) : size_(size) {}

  /// `rank` enters its operation number `sequence`; `work` runs once, when the last rank enters.
  std::shared_ptr<Round> enter(int rank, std::uint64_t sequence, const Part& part,
                               const std::function<void(Round&)>& work) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Round>& round = rounds_[sequence];
    if (!round) {
      round = std::make_shared<Round>();
      round->parts.resize(static_cast<std::size_t>(size_));
    }
    round->parts[static_cast<std::size_t>(rank)] = part;
    const std::shared_ptr<Round> mine = round;
    if (++mine->entered < size_) return mine;
    rounds_.erase(sequence);
    if (aborted_) return mine;
    work(*mine);
    mine->done.store(true, std::memory_order_release);
    return mine;
  }

  /// One end of the message that goes from rank `from` to rank `to`: one brings the input, the
  /// other the output, of `bytes` each.
  std::shared_ptr<Round> pass(int from, int to, const Part& part, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::deque<std::shared_ptr<Round>>& waiting = messages_[{from, to}];
    const bool brings_input = part.input != nullptr;
    if (waiting.empty() || (waiting.front()->parts[0].input != nullptr) == brings_input) {
      waiting.push_back(std::make_shared<Round>());
      waiting.back()->parts = {part};
      return waiting.back();
    }
    const std::shared_ptr<Round> round = std::move(waiting.front());
    waiting.pop_front();
    if (aborted_) return round;
    const Part& first = round->parts[0];
    std::memcpy(brings_input ? first.output : part.output, brings_input ? part.input : first.input,
                bytes);
    round->done.store(true, std::memory_order_release);
    return round;
  }

  /// From now on nobody's buffers are touched any more.
  void abort() noexcept {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
  }

 private:
  const int size_;

  // Guarded by mutex_.
  std::mutex mutex_;
  bool aborted_ = false;
  std::map<std::uint64_t, std::shared_ptr<Round>> rounds_;
  /// One end is there: the same end of all, oldest first.
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Round>>> messages_;
};

}  // namespace ronde::inproc
