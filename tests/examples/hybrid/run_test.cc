// SPDX-License-Identifier: Apache-2.0
// The program as a user runs it, against the model that is not split, in one process without Ronde.
#include "tests/examples/digits/whole_batch.h"

namespace {

using Catch::Contains;
using namespace ronde::test;

constexpr int kHidden = 240;

/// The unsplit model.
struct Plain {
  torch::nn::Linear first{64, 64};
  torch::nn::Linear widen{64, kHidden};
  torch::nn::Linear narrow{kHidden, 64};
  torch::nn::Linear last{64, 10};

  std::vector<torch::nn::Linear> layers() const { return {first, widen, narrow, last}; }

  torch::Tensor loss(const torch::Tensor& images, const torch::Tensor& digits) {
    const torch::Tensor x = torch::relu(first(images.flatten(1)));
    const torch::Tensor scores = last(torch::relu(x + narrow(torch::relu(widen(x)))));
    return torch::cross_entropy_loss(scores, digits);
  }
};

}  // namespace

TEST_CASE("on every grid of one to four ranks each step's loss is the unsplit model's") {
  const TemporaryFolder folder;
  const std::string file = folder / "losses.csv";
  torch::manual_seed(1);
  Plain plain;
  const std::vector<double> expected = digits_test::whole_batch_losses(plain, 2, 48);
  REQUIRE(expected.size() == 60);
  CHECK(expected.back() < expected.front() / 2);
  struct Layout {
    int ranks;
    int split;
  };
  for (const auto& [ranks, parts] : {Layout{1, 1}, Layout{2, 1}, Layout{2, 2}, Layout{3, 1},
                                     Layout{3, 3}, Layout{4, 2}, Layout{4, 4}}) {
    const std::string groups = std::to_string(ranks / parts);
    const std::string split = std::to_string(parts);
    INFO("grid " << groups << " x " << split);
    const std::string text =
        launch_well(ranks, {"--split", split, "--epochs", "2", "--losses", file});
    check_near(read_numbers(file), expected);
    // 64 x 240 + 240 + 240 x 64 parameters are split, 64 x 64 + 64 + 64 + 64 x 10 + 10 are not.
    CHECK_THAT(text, Contains("grid " + groups + " x " + split + ":") &&
                         Contains("a rank holds " + std::to_string(30960 / parts + 4874) +
                                  " of 35834 parameters") &&
                         Contains("all copies of a parameter are equal to the last bit"));
  }
}

TEST_CASE("what cannot be divided among the ranks is refused with the reason, once") {
  check_refused_once(2, {"--split", "3"},
                     "hybrid: --split: the 2 ranks cannot be divided into groups of 3");
  check_refused_once(2, {"--split", "2", "--hidden", "7"},
                     "hybrid: --hidden: 7 is not divisible by 2");
  check_refused_once(2, {"--split", "1", "--batch", "47"},
                     "hybrid: --batch: 47 is not divisible by 2");
  check_refused_once(2, {"--split", "0"}, "hybrid: --split");
  check_refused_once(7, {"--batch", "49"},
                     "hybrid: the number of images: 1440 is not divisible by 7");
}
