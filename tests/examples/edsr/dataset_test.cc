// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "photographs.h"
#include "tests/examples/edsr/support.h"

namespace edsr {
namespace {

constexpr PatchOptions kOptions{.patch = 8, .scale = 2, .samples = 48, .seed = 7};

/// Each low-resolution pixel holds its own row, column and photograph, and so do the pixels of the
/// high resolution that it covers.
std::shared_ptr<const std::vector<Photograph>> make_coordinates(std::int64_t scale) {
  auto photographs = std::make_shared<std::vector<Photograph>>();
  for (std::int64_t i = 0; i < 3; ++i) {
    const torch::Tensor rows = torch::arange(30).view({30, 1}).expand({30, 40});
    const torch::Tensor columns = torch::arange(40).view({1, 40}).expand({30, 40});
    const torch::Tensor low =
        torch::stack({rows, columns, torch::full({30, 40}, i, torch::kInt64)}).to(torch::kUInt8);
    const torch::Tensor high = low.repeat_interleave(scale, 1).repeat_interleave(scale, 2);
    photographs->push_back({"", high, low});
  }
  return photographs;
}

bool same(const torch::data::Example<>& a, const torch::data::Example<>& b) {
  return torch::equal(a.data, b.data) && torch::equal(a.target, b.target);
}

}  // namespace

TEST_CASE("high and low patches show the same place, from everywhere, in every orientation") {
  const auto scale = GENERATE(as<std::int64_t>{}, 2, 3, 4);
  PatchOptions options = kOptions;
  options.scale = scale;
  options.samples = 6000;
  PhotoDataset dataset(make_coordinates(scale), options);
  std::set<std::int64_t> tops;
  std::set<std::int64_t> lefts;
  std::map<std::array<bool, 3>, int> orientations;
  for (std::size_t i = 0; i < 6000; ++i) {
    const auto sample = dataset.get(i);
    REQUIRE(sample.data.sizes() == torch::IntArrayRef({3, 8, 8}));
    REQUIRE(torch::equal(sample.data.repeat_interleave(scale, 1).repeat_interleave(scale, 2),
                         sample.target));
    const torch::Tensor patch = sample.data.mul(255).round().to(torch::kInt64);
    const auto values = patch.accessor<std::int64_t, 3>();
    REQUIRE(values[2][0][0] == static_cast<std::int64_t>(i % 3));
    tops.insert(patch[0].min().item<std::int64_t>());
    lefts.insert(patch[1].min().item<std::int64_t>());
    const bool transposed = values[0][0][0] == values[0][1][0];
    ++orientations[{transposed, values[0][0][0] > values[0][7][7],
                    values[1][0][0] > values[1][7][7]}];
  }
  CHECK(tops.size() == 23);
  CHECK(*tops.rbegin() == 22);
  CHECK(lefts.size() == 33);
  CHECK(*lefts.rbegin() == 32);
  REQUIRE(orientations.size() == 8);
  for (const auto& [orientation, count] : orientations) CHECK(std::abs(count - 750) < 150);
}

TEST_CASE("a sample is a function of seed, epoch and index alone, in copies as well") {
  PhotoDataset dataset(make_coordinates(2), kOptions);
  PhotoDataset copy = dataset;
  const auto third = dataset.get(3);
  for (std::size_t i = 10; i > 0; --i) copy.get(i);
  CHECK(same(copy.get(3), third));
  PatchOptions other_seed = kOptions;
  other_seed.seed = 8;
  CHECK_FALSE(same(PhotoDataset(make_coordinates(2), other_seed).get(3), third));
  CHECK_FALSE(same(dataset.get(9), third));
  dataset.set_epoch(1);
  CHECK_FALSE(same(copy.get(3), third));
  dataset.set_epoch(0);
  CHECK(same(copy.get(3), third));
}

}  // namespace edsr
