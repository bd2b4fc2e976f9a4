// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <thread>

#include "tests/support/ranks/ranks.h"
#include "tests/support/ranks/requests.h"

namespace ronde::test {

inline std::uint64_t schedule_counter(const Runtime& runtime, const std::string& name) {
  return counter_of(runtime, "schedule", name);
}

/// Waits for up to a minute, by asking alone.
inline void poll_until_done(const Work& work) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!work.done() && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  check(work.done(), "it came");
}

/// One rank of a program that repeats its steps: tensor i holds rank + i + step.
class RepeatedSteps {
 public:
  RepeatedSteps(Runtime& runtime, int count) : runtime_(runtime) {
    for (int i = 0; i < count; ++i) values_.emplace_back(static_cast<std::size_t>(1 + i % 7));
  }

  Request request(int i, int step) {
    auto& tensor = values_[static_cast<std::size_t>(i)];
    std::ranges::fill(tensor, static_cast<float>(runtime_.topology().rank + i + step));
    return sum_request(tensor, "t" + std::to_string(i));
  }

  void check_sum(int i, int step) const {
    const int ranks = runtime_.topology().size;
    const auto expected = static_cast<float>(ranks * (ranks - 1) / 2 + ranks * (i + step));
    const auto& tensor = values_[static_cast<std::size_t>(i)];
    check_equal(tensor, std::vector<float>(tensor.size(), expected),
                "tensor " + std::to_string(i) + " in step " + std::to_string(step));
  }

  /// Submits the tensors from `first` up to `end`.
  void submit(int first, int end, int step) {
    step_ = step;
    for (int i = first; i < end; ++i) pending[i] = runtime_.submit(request(i, step));
  }

  /// Waits for what was submitted, and checks it.
  void finish() {
    for (const auto& [i, work] : pending) work.wait();
    for (const auto& [i, work] : pending) check_sum(i, step_);
    pending.clear();
  }

  /// A whole step.
  void run(int step) {
    for (auto i = static_cast<int>(values_.size()); i-- > 0;) submit(i, i + 1, step);
    finish();
  }

  void freeze() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    const std::uint64_t before = schedule_counter(runtime_, "thaws");
    for (int step = 0; schedule_counter(runtime_, "freezes") == before; ++step) {
      check(std::chrono::steady_clock::now() < limit,
            "the ranks repeat themselves, so they freeze");
      run(step);
    }
  }

  std::map<int, Work> pending;  ///< by tensor

 private:
  Runtime& runtime_;
  std::vector<std::vector<float>> values_;
  int step_ = 0;
};

}  // namespace ronde::test
