// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, against the mixture in one process without Ronde that computes
// every expert for every image.
#include "tests/examples/digits/whole_batch.h"

namespace {

using Catch::Contains;
using namespace ronde::test;

constexpr int kExperts = 4;
constexpr int kHidden = 120;

struct Expert {
  torch::nn::Linear widen{64, kHidden};
  torch::nn::Linear narrow{torch::nn::LinearOptions(kHidden, 64).bias(false)};
};

/// The dense mixture: no image travels, and what an image has not chosen is multiplied by zero.
struct Dense {
  torch::nn::Linear first{64, 64};
  torch::nn::Linear router{64, kExperts};
  std::vector<Expert> experts = std::vector<Expert>(kExperts);
  torch::nn::Linear last{64, 10};
  torch::Tensor choices = torch::zeros({kExperts}, torch::kInt64);  ///< of each expert so far

  std::vector<torch::nn::Linear> layers() const {
    std::vector<torch::nn::Linear> all = {first, router, last};
    for (const Expert& expert : experts) all.insert(all.end(), {expert.widen, expert.narrow});
    return all;
  }

  torch::Tensor loss(const torch::Tensor& images, const torch::Tensor& digits) {
    const torch::Tensor x = torch::relu(first(images.flatten(1)));
    const torch::Tensor probability = torch::softmax(router(x), 1);
    const torch::Tensor chosen = torch::one_hot(probability.argmax(1), kExperts);
    choices += chosen.sum(0);
    const torch::Tensor imbalance =
        4.0 * (chosen.to(torch::kFloat64).mean(0) * probability.mean(0)).sum();
    torch::Tensor y = x;
    for (std::int64_t i = 0; i < kExperts; ++i) {
      Expert& expert = experts[static_cast<std::size_t>(i)];
      const torch::Tensor factor = (probability * chosen).select(1, i).unsqueeze(1);
      y = y + factor * expert.narrow(torch::relu(expert.widen(x)));
    }
    return torch::cross_entropy_loss(last(torch::relu(y)), digits) + 0.1 * imbalance;
  }
};

}  // namespace

TEST_CASE("on every grid each step's loss is the dense mixture's") {
  const TemporaryFolder folder;
  const std::string file = folder / "losses.csv";
  torch::manual_seed(1);
  Dense dense;
  const std::vector<double> expected = digits_test::whole_batch_losses(dense, 1, 60);
  REQUIRE(expected.size() == 24);
  CHECK(expected.back() < 0.8 * expected.front());
  CAPTURE(dense.choices);  // images travel to all ranks, unevenly
  CHECK(dense.choices.min().item<std::int64_t>() > 50);
  CHECK(dense.choices.max().item<std::int64_t>() > 400);
  struct Layout {
    int data, expert, tensor;
  };
  // On eight ranks the two of a tensor axis divide 15 images.
  for (const auto& [data, expert, tensor] : {Layout{1, 4, 1}, Layout{1, 1, 3}, Layout{2, 2, 2}}) {
    const auto text = [](int number) { return std::to_string(number); };
    const std::string grid = text(data) + " x " + text(expert) + " x " + text(tensor);
    INFO("grid " << grid);
    const std::string printed = launch_well(
        data * expert * tensor, {"--expert-ranks", text(expert), "--tensor-ranks", text(tensor),
                                 "--batch", "60", "--epochs", "1", "--losses", file});
    check_near(read_numbers(file), expected);
    // An expert has 64 x 120 + 120 + 120 x 64 parameters; 64 x 64 + 64, 64 x 4 + 4 and 64 x 10 + 10
    // are not divided. Of each of 1440 images travel 64 doubles four times, and an integer.
    const int bytes = 1440 * (4 * 64 * 8 + 8);
    CHECK_THAT(printed, Contains("grid " + grid + ":") &&
                            Contains("a rank holds " + text(4 * 15480 / expert / tensor + 5070) +
                                     " of 66990 parameters") &&
                            Contains(text(bytes) + " bytes counted, " + text(bytes) +
                                     " by formula, " + text(tensor * bytes) + " with duplicates"));
  }
}

TEST_CASE("what cannot be divided among the ranks is refused with the reason, once") {
  check_refused_once(2, {"--tensor-ranks", "3"},
                     "experts: --tensor-ranks: the 2 ranks cannot be divided into groups of 3");
  check_refused_once(2, {"--expert-count", "3"},
                     "experts: --expert-count: 3 is not divisible by 2");
  check_refused_once(2, {"--batch", "47"}, "experts: --batch: 47 is not divisible by 2");
  // An int does not hold the product.
  check_refused_once(2, {"--expert-ranks", "2147483647", "--tensor-ranks", "2"},
                     "experts: --expert-ranks: the 2 ranks cannot be divided");
}
