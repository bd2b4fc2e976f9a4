// SPDX-License-Identifier: Apache-2.0
// What goes wrong on one rank alone, by whichever call it comes to light: no rank waits for it, and
// none goes on alone.
#include <string>

#include "failing.h"
#include "support.h"
#include "toy.h"

using namespace ronde_test;
using ronde::DistributedOptimizer;

TEST_CASE("a gradient that cannot be written fails the step on all ranks, also with views",
          "[n2][n3]") {
  use_ronde();
  for (const bool views : {false, true}) {
    CAPTURE(views);
    Three three;
    DistributedOptimizer optimizer(*three.sgd, three.names, {.gradient_views = views});
    {
      const auto guard = optimizer.no_sync();
      three.backward(1.0);
    }
    if (ronde::rank() == 1) {
      three.names["b"].mutable_grad() = at::ones({1}, at::kDouble).expand({4});
    }
    const std::string text = usage_error([&] { optimizer.step(); });
    CAPTURE(text);
    CHECK(contains(text, "share one memory location"));
    CHECK(near(flatten(three.names.values()), at::ones({12}, at::kDouble), 0));
    three.names["b"].mutable_grad().reset();  // which LibTorch does not clear either
    check_next_steps(three, optimizer);
  }
}
