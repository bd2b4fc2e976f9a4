// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

namespace pipeline {
namespace {

/// When passes end, by stage.
using Ends = std::map<std::pair<int, Pass>, int>;

/// Returns whether at `time` all is there that a pass needs.
bool is_ready(const Pass& pass, int stage, int stages, const Ends& ends, int time) {
  const auto has_ended = [&](int of_stage, const Pass& needed) {
    const auto end = ends.find({of_stage, needed});
    return end != ends.end() && end->second <= time;
  };
  const Pass forward{false, pass.copy, pass.micro_batch};
  if (!pass.backward) return stage == 0 || has_ended(stage - 1, forward);
  return has_ended(stage, forward) && (stage == stages - 1 || has_ended(stage + 1, pass));
}

/// Returns orders in which each rank runs the ready pass that 1F1B would run first, its copies in
/// turn. A stage holds at most `limit_of(stage)` micro-batches of a copy.
template <typename LimitOf>
std::vector<Order> greedy_orders(const Shape& shape, const LimitOf& limit_of) {
  std::vector<Order> orders;
  for (int rank = 0; rank < shape.stages; ++rank) {
    std::vector<Pass> passes(static_cast<std::size_t>(2 * shape.copies * shape.micro_batches));
    std::vector<int> limits;
    for (int copy = 0; copy < shape.copies; ++copy) {
      const int stage = shape.stage_of(rank, copy);
      limits.push_back(limit_of(stage));
      auto place = static_cast<std::size_t>(copy);
      const auto add = [&](bool backward, int micro_batch) {
        passes[place] = {backward, copy, micro_batch};
        place += static_cast<std::size_t>(shape.copies);
      };
      const int ahead = std::min(shape.stages - 1 - stage, shape.micro_batches);
      for (int i = 0; i < shape.micro_batches + ahead; ++i) {
        if (i < shape.micro_batches) add(false, i);
        if (i >= ahead) add(true, i - ahead);
      }
    }
    orders.emplace_back(std::move(passes), std::move(limits));
  }
  return orders;
}

}  // namespace

int slowdown(int stage, const Pass& forward, int slow) {
  return stage == 0 && forward.micro_batch % 4 == 3 ? slow : 1;
}

std::optional<Pass> Order::take(const Ready& ready) {
  for (auto place = passes_.begin(); place != passes_.end(); ++place) {
    const Pass pass = *place;
    const auto copy = static_cast<std::size_t>(pass.copy);
    const bool may_run = is_fixed() || pass.backward || in_flight_[copy] < limits_[copy];
    if (may_run && ready(pass)) {
      if (!is_fixed()) in_flight_[copy] += pass.backward ? -1 : 1;
      passes_.erase(place);
      return pass;
    }
    if (is_fixed()) break;
  }
  return {};
}

Chart draw_chart(const Shape& shape, std::vector<Order> orders, int slow) {
  Chart chart{0, std::vector<std::vector<Pass>>(orders.size())};
  std::vector<int> free_from(orders.size(), 0);
  Ends ends;
  int busy = 0;
  const auto run = [&](std::size_t rank, int time) {
    const auto stage = [&](const Pass& pass) {
      return shape.stage_of(static_cast<int>(rank), pass.copy);
    };
    const auto pass = orders[rank].take(
        [&](const Pass& next) { return is_ready(next, stage(next), shape.stages, ends, time); });
    if (!pass) return;
    const int duration = pass->backward ? 2 : slowdown(stage(*pass), *pass, slow);
    busy += duration;
    free_from[rank] = ends[{stage(*pass), *pass}] = time + duration;
    chart.passes[rank].push_back(*pass);
  };
  // From the end of a pass to the next one.
  constexpr int kNever = std::numeric_limits<int>::max();
  for (int time = 0, next = 0; next != kNever; time = next) {
    next = kNever;
    for (std::size_t rank = 0; rank < orders.size(); ++rank) {
      if (free_from[rank] <= time) run(rank, time);
      if (free_from[rank] > time) next = std::min(next, free_from[rank]);
    }
  }
  if (std::any_of(orders.begin(), orders.end(), [](const Order& o) { return !o.empty(); })) {
    throw std::logic_error("the ranks wait in a ring");
  }
  const int end = *std::max_element(free_from.begin(), free_from.end());
  chart.idle = 1 - double(busy) / (double(end) * double(orders.size()));
  return chart;
}

std::vector<Order> fixed_orders(const Shape& shape) {
  // 1F1B is the chart in which each rank runs what is ready, with so many micro-batches held.
  std::vector<Order> held = greedy_orders(shape, [&](int stage) { return shape.stages - stage; });
  std::vector<Order> orders;
  for (std::vector<Pass>& passes : draw_chart(shape, std::move(held), 1).passes) {
    orders.emplace_back(std::move(passes));
  }
  return orders;
}

std::vector<Order> message_driven_orders(const Shape& shape) {
  return greedy_orders(shape, [&](int) { return 2 * shape.stages; });
}

}  // namespace pipeline
