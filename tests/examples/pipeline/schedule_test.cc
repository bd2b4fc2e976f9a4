// SPDX-License-Identifier: Apache-2.0
// Schedules and their Gantt charts against formulas of the studies.
#include "examples/pipeline/schedule.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

namespace {

using namespace pipeline;

double idle(const Shape& shape, int slow = 1) {
  return draw_chart(shape, fixed_orders(shape), slow).idle;
}

}  // namespace

TEST_CASE("1F1B leaves (stages - 1) / (micro-batches + stages - 1) of the time idle") {
  for (const int stages : {1, 2, 3, 4, 7}) {
    for (const int micro_batches : {1, 2, 3, 8, 20}) {
      INFO(stages << " stages, " << micro_batches << " micro-batches");
      CHECK(idle({stages, 1, micro_batches}) ==
            Approx(double(stages - 1) / (micro_batches + stages - 1)));
    }
  }
}

TEST_CASE("1F1B runs passes forward and backward in turn") {
  const Chart chart = draw_chart({3, 1, 4}, fixed_orders({3, 1, 4}), 1);
  std::string text;
  for (const Pass& pass : chart.passes[0]) {
    text += (pass.backward ? " B" : " F") + std::to_string(pass.micro_batch);
  }
  CHECK(text == " F0 F1 F2 B0 F3 B1 B2 B3");
}

TEST_CASE("1F1B holds at most as many micro-batches as stages follow, and this one") {
  const Shape shape{5, 1, 9};
  const Chart chart = draw_chart(shape, fixed_orders(shape), 1);
  for (int stage = 0; stage < 5; ++stage) {
    int held = 0;
    int most = 0;
    for (const Pass& pass : chart.passes[std::size_t(stage)]) {
      held += pass.backward ? -1 : 1;
      most = std::max(most, held);
    }
    CHECK(most == 5 - stage);
  }
}

TEST_CASE("two copies in opposite directions leave two stages no idle time, and more stages less") {
  for (const int micro_batches : {1, 2, 5, 8}) {
    INFO(micro_batches << " micro-batches");
    CHECK(idle({2, 2, micro_batches}) == 0);
    CHECK(idle({3, 2, micro_batches}) < idle({3, 1, micro_batches}));
    CHECK(idle({4, 2, micro_batches}) < idle({4, 1, micro_batches}));
  }
  // Four stages, a micro-batch each: a copy takes 4 + 8 units, a rank works 2 x 3 of them.
  CHECK(idle({4, 2, 1}) == Approx(0.5));
}

TEST_CASE("no orders make ranks wait in a ring") {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
      for (const Shape& shape :
           {Shape{stages, 1, micro_batches}, Shape{stages, 2, micro_batches}}) {
        CHECK_NOTHROW(draw_chart(shape, fixed_orders(shape), 5));
        CHECK_NOTHROW(draw_chart(shape, message_driven_orders(shape), 5));
      }
    }
  }
}

TEST_CASE("message-driven passes overtake one that has not come, within the limit") {
  Order order({{false, 0, 0}, {true, 0, 0}, {false, 0, 1}, {false, 0, 2}}, {2});
  const auto forward = [](const Pass& pass) { return !pass.backward; };
  CHECK(order.take(forward)->micro_batch == 0);
  CHECK(order.take(forward)->micro_batch == 1);  // before the gradient of 0
  CHECK(!order.take(forward));                   // two are held
  CHECK(order.take([](const Pass&) { return true; })->backward);
  CHECK(order.take(forward)->micro_batch == 2);
  CHECK(order.empty());

  Order fixed(std::vector<Pass>{{true, 0, 0}, {false, 0, 1}});
  CHECK(!fixed.take(forward));
}

TEST_CASE("behind a slow stage what has come runs sooner than in a fixed order") {
  const Shape shape{2, 1, 8};
  CHECK(draw_chart(shape, message_driven_orders(shape), 3).idle < 0.8 * idle(shape, 3));
}
