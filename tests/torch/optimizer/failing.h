// SPDX-License-Identifier: Apache-2.0
#pragma once

// Failures of one rank, and checks that the others notice them.
#include <stdexcept>

#include "tests/torch/toy.h"

namespace ronde_test {

/// Sends the gradient as two parts in one round, and again in a second one; throws where it is told
/// to: while it is made, or in its rounds. Complex parameters come as the real numbers they are of.
class Fragile final : public Compression {
 public:
  enum class Fails { Never, Making, First, Between, Last };

  std::string description() const override { return "fragile"; }
  std::unique_ptr<ronde::CompressedGradient> make(const std::string& name,
                                                  const at::Tensor& parameter) override {
    TORCH_CHECK(!parameter.is_complex());
    throw_if(Fails::Making, name);
    if (name == "d") return nullptr;  // is sent as it is
    return std::make_unique<State>(*this, name);
  }
  /// By default on rank 1 alone.
  void fail(Fails when, std::string name, bool here = ronde::rank() == 1) {
    if (!here) return;
    when_ = when;
    name_ = std::move(name);
  }

 private:
  class State final : public ronde::CompressedGradient {
   public:
    State(const Fragile& owner, std::string name) : owner_(owner), name_(std::move(name)) {}

    std::vector<ronde::CompressedPart> compress(const at::Tensor& gradient,
                                                const ronde::GradientReduction&) override {
      TORCH_CHECK(!gradient.is_complex());
      round_ = 0;
      owner_.throw_if(Fails::First, name_);
      own_ = gradient.reshape({-1}).clone();
      return parts_of(own_ / 2);
    }
    std::vector<ronde::CompressedPart> decompress(const Tensors& results,
                                                  const at::Tensor& gradient) override {
      const at::Tensor mean = at::cat(results);
      owner_.throw_if(round_ == 0 ? Fails::Between : Fails::Last, name_);
      if (round_++ == 0) return parts_of(own_);
      gradient.copy_(mean.view_as(gradient));
      return {};
    }

   private:
    static std::vector<ronde::CompressedPart> parts_of(const at::Tensor& flat) {
      return {{.tensor = flat.slice(0, 0, 1).clone()}, {.tensor = flat.slice(0, 1).clone()}};
    }
    const Fragile& owner_;
    const std::string name_;
    at::Tensor own_;
    int round_ = 0;
  };

  void throw_if(Fails when, const std::string& name) const {
    if (when_ == when && name_ == name) throw std::runtime_error("no room for a mask");
  }

  Fails when_ = Fails::Never;
  std::string name_;
};

/// `text` is what the call of each rank threw because of what rank 1 says.
inline void check_told(const std::string& text, const std::string& part) {
  check_contains(text, {part});
  CAPTURE(text);
  CHECK(contains(text, "not all ranks could do their part") == (ronde::rank() != 1));
  CHECK((contains(text, "rank 1: ") || ronde::rank() == 1));
  CHECK_FALSE((ronde::rank() != 1 && contains(text, "Exception raised from")));
}

/// Steps whose gradients differ from step to step: one that met another rank's other step shows.
inline void check_next_steps(const Toy& toy, DistributedOptimizer& optimizer) {
  for (const double step : {3.0, 5.0}) {
    optimizer.zero_grad();
    toy.backward(step * (ronde::rank() + 1));
    optimizer.synchronize();
    toy.check_gradients(step * (mean_rank() + 1));
    optimizer.step();
  }
}

}  // namespace ronde_test
