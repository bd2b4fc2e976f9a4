// SPDX-License-Identifier: Apache-2.0
#include "evaluation/report.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "common/checksum.h"
#include "evaluation/comparison.h"
#include "evaluation/label.h"
#include "tests/examples/edsr/support.h"

namespace edsr {
namespace {

using Catch::Contains;
using example::parameter_checksum;

Report make_report() {
  Report report;
  report.ranks = 2;
  report.steps = 30;
  report.images_per_s_per_rank = 10.5;
  report.images_per_s_total = 21;
  report.loss_first = 0.25;
  report.loss_last = 0.125;
  report.parameters_identical = true;
  report.evaluation = {{{"folder/a.png", 30, 31.5}}, 30, 31.5};
  return report;
}

}  // namespace

TEST_CASE("the JSON table has exactly its nine keys and the figures as they are") {
  const nlohmann::json json = nlohmann::json::parse(to_json(make_report()));
  const nlohmann::json expected{{"ranks", 2},
                                {"images_per_s_per_rank", 10.5},
                                {"images_per_s_total", 21.0},
                                {"steps", 30},
                                {"loss_first", 0.25},
                                {"loss_last", 0.125},
                                {"psnr_bicubic", 30.0},
                                {"psnr_network", 31.5},
                                {"parameters_identical", true}};
  CHECK(json == expected);
}

TEST_CASE("the table names the photographs, the gain and whether the ranks agree") {
  Report report = make_report();
  CHECK_THAT(to_table(report), Contains("folder/a.png") && Contains("+1.50"));
  CHECK_THAT(to_table(report), Contains("parameters identical on all ranks     yes"));
  report.parameters_identical = false;
  CHECK_THAT(to_table(report), Contains("parameters identical on all ranks     NO"));
  report.evaluation.photographs[0].name = std::string(200, 'x') + "/the_end.png";
  CHECK_THAT(to_table(report), Contains("...x") && Contains("x/the_end.png  "));
}

TEST_CASE("the checksum tells every bit, the order, and lengths that padding would hide") {
  torch::nn::Linear layer(3, 5);
  const std::uint64_t before = parameter_checksum(*layer);
  CHECK(parameter_checksum(*layer) == before);
  auto* words = reinterpret_cast<std::uint32_t*>(layer->weight.data_ptr<float>());
  for (int bit = 0; bit < 32; ++bit) {
    words[14] ^= 1U << bit;
    CHECK(parameter_checksum(*layer) != before);
    words[14] ^= 1U << bit;
  }
  std::swap(words[0], words[1]);
  CHECK(parameter_checksum(*layer) != before);

  std::set<std::uint64_t> seen;
  for (std::size_t length = 0; length <= 16; ++length) {
    example::Checksum checksum;
    checksum.add(std::string(length, '\0'));
    seen.insert(checksum.value());
  }
  CHECK(seen.size() == 17);
}

TEST_CASE("a label is drawn where it is put and cut at the edge") {
  torch::Tensor image = torch::zeros({3, 40, 60}, torch::kUInt8);
  draw_label(image, "L", 10, 20);
  // An L: a full left stroke and a full foot, at twice 5 x 7 pixels.
  CHECK(image.slice(1, 10, 24).slice(2, 20, 22).min().item<int>() == 255);
  CHECK(image.slice(1, 22, 24).slice(2, 20, 30).min().item<int>() == 255);
  CHECK(image.slice(1, 10, 22).slice(2, 22, 60).max().item<int>() == 0);
  CHECK(image.to(torch::kInt64).sum().item<std::int64_t>() == 3 * 255 * 4 * (6 + 5));
  draw_label(image, "EDSR 31.25 DB AND MUCH MORE", 35, 0);
}

TEST_CASE("the side-by-side picture shows the parts it says") {
  torch::manual_seed(1);
  Edsr network(EdsrOptions{.blocks = 1, .features = 4, .scale = 2});
  const torch::Tensor low = testing::make_image(0, 64, 64);
  const torch::Tensor high = testing::make_image(1, 128, 128);
  Evaluation evaluation{{{"a", 30, 31}, {"b", 32, 33}}, 31, 32};
  const torch::Tensor picture =
      compare_side_by_side(network, {{"a", high, low}, {"b", high, low}}, evaluation);
  constexpr std::int64_t kPanel = 384;
  constexpr std::int64_t kPitch = kPanel + 6;
  REQUIRE(picture.sizes() == torch::IntArrayRef({3, 2 * (kPitch + 20) + 6, 4 * kPitch + 6}));
  const auto panel = [&](std::int64_t row, std::int64_t column) {
    const std::int64_t top = 26 + row * (kPitch + 20);
    const std::int64_t left = 6 + column * kPitch;
    return picture.slice(1, top, top + kPanel).slice(2, left, left + kPanel);
  };
  for (std::int64_t row = 0; row < 2; ++row) {
    CHECK(torch::equal(panel(row, 0), low.repeat_interleave(6, 1).repeat_interleave(6, 2)));
    CHECK(torch::equal(panel(row, 3), high.repeat_interleave(3, 1).repeat_interleave(3, 2)));
    const torch::Tensor network_output = enlarge(network, low);
    CHECK(torch::equal(panel(row, 2),
                       network_output.repeat_interleave(3, 1).repeat_interleave(3, 2)));
  }
}

}  // namespace edsr
