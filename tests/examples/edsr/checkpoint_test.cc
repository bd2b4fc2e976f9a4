// SPDX-License-Identifier: Apache-2.0
#include "training/checkpoint.h"

#include <catch2/catch.hpp>
#include <limits>
#include <map>

namespace edsr {
namespace {

RunConfig make_config() {
  return {.network = {.blocks = 1, .features = 4, .scale = 2, .residual_scale = 0.1},
          .batch = 8,
          .patch = 12,
          .samples = 64,
          .seed = std::numeric_limits<std::uint64_t>::max()};
}

}  // namespace

TEST_CASE("what differs between two runs is named") {
  const RunConfig saved = RunConfig::from_json(make_config().to_json());
  CHECK(differences(saved, make_config()).empty());
  const std::map<std::string, void (*)(RunConfig&)> changes = {
      {"batch 8 there, 16 here", [](RunConfig& c) { c.batch = 16; }},
      {"patch 12 there, 9 here", [](RunConfig& c) { c.patch = 9; }},
      {"seed 18446744073709551615 there, 6 here", [](RunConfig& c) { c.seed = 6; }},
      {"64 there, 72 here", [](RunConfig& c) { c.samples = 72; }},
      {"network: 1 blocks x 4 features", [](RunConfig& c) { c.network.blocks = 2; }},
      {"2 blocks x 4 features", [](RunConfig& c) { c.network.blocks = 2; }}};
  for (const auto& [difference, change] : changes) {
    RunConfig config = make_config();
    change(config);
    CHECK_THAT(differences(saved, config), Catch::Contains(difference));
  }
}

}  // namespace edsr
