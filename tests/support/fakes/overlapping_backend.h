// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "ronde/error.h"
#include "tests/support/fakes/wrapped_backend.h"
#include "tests/support/ranks/random_program.h"

namespace ronde::test {

/// A backend that takes several operations at once, each of which ends some polls after its inner
/// one: so they end in another order than they began.
class OverlappingBackend final : public WrappedBackend {
 public:
  static constexpr std::size_t kMost = 3;

  /// `overtakings`: counts the ends of operations that others had begun before and have not ended.
  OverlappingBackend(std::unique_ptr<Backend> inner, std::uint64_t seed,
                     std::shared_ptr<std::atomic<std::uint64_t>> overtakings)
      : WrappedBackend("overlapping", std::move(inner)),
        state_(std::make_shared<State>(seed, std::move(overtakings))) {}

  Capabilities capabilities() const override {
    Capabilities capabilities = WrappedBackend::capabilities();
    capabilities.operations_in_flight = kMost;
    return capabilities;
  }

 private:
  struct State {
    State(std::uint64_t seed, std::shared_ptr<std::atomic<std::uint64_t>> counter)
        : dice(seed), overtakings(std::move(counter)) {}
    Dice dice;
    const std::shared_ptr<std::atomic<std::uint64_t>> overtakings;
    std::uint64_t begun = 0;
    std::set<std::uint64_t> in_flight;  ///< numbers
  };

  class Delayed final : public Operation {
   public:
    Delayed(std::unique_ptr<Operation> inner, std::shared_ptr<State> state)
        : inner_(std::move(inner)),
          state_(std::move(state)),
          number_(state_->begun++),
          polls_(state_->dice.below(20)) {
      state_->in_flight.insert(number_);
      if (state_->in_flight.size() > kMost) throw Error("too many operations at once");
    }
    ~Delayed() override { state_->in_flight.erase(number_); }

    bool poll() override {
      ended_ = ended_ || inner_->poll();
      if (!ended_ || polls_ > 0) {
        if (ended_) --polls_;
        return false;
      }
      if (*state_->in_flight.begin() < number_) ++*state_->overtakings;
      return true;
    }
    std::uint64_t progress() const override { return inner_->progress() + (ended_ ? 1 : 0); }

   private:
    const std::unique_ptr<Operation> inner_;
    const std::shared_ptr<State> state_;
    const std::uint64_t number_;
    std::size_t polls_;  ///< after the inner one has ended
    bool ended_ = false;
  };

  std::unique_ptr<Operation> wrap(Start start, void* /*output*/) override {
    return std::make_unique<Delayed>(start(), state_);
  }

  const std::shared_ptr<State> state_;
};

/// A factory like `inner` whose backends overlap.
inline BackendFactory overlapping_factory(const BackendFactory& inner, std::uint64_t seed,
                                          std::shared_ptr<std::atomic<std::uint64_t>> overtakings =
                                              std::make_shared<std::atomic<std::uint64_t>>(0)) {
  BackendFactory factory = inner;
  factory.create = [create = inner.create, seed, overtakings](BackendContext& context) {
    return std::make_unique<OverlappingBackend>(create(context), seed, overtakings);
  };
  return factory;
}

}  // namespace ronde::test
