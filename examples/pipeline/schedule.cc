// SPDX-License-Identifier: Apache-2.0
#include "schedule.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <stdexcept>
#include <utility>

namespace pipeline {
namespace {

/// When each pass of a pipeline ends.
class Ends {
 public:
  explicit Ends(const Shape& shape)
      : shape_(shape),
        times_(static_cast<std::size_t>(2 * shape.copies * shape.micro_batches * shape.stages),
               std::numeric_limits<int>::max()) {}

  int& at(const Pass& pass, int stage) {
    const int row = (pass.micro_batch * shape_.copies + pass.copy) * 2 + (pass.backward ? 1 : 0);
    return times_[static_cast<std::size_t>(row * shape_.stages + stage)];
  }

  /// Returns whether at `time` all is there that the pass needs.
  bool ready(const Pass& pass, int stage, int time) {
    const Pass forward{false, pass.copy, pass.micro_batch};
    if (!pass.backward) return stage == 0 || at(forward, stage - 1) <= time;
    return at(forward, stage) <= time &&
           (stage == shape_.stages - 1 || at(pass, stage + 1) <= time);
  }

 private:
  const Shape shape_;
  std::vector<int> times_;
};

std::vector<Pass> one_forward_one_backward(const Shape& shape, int copy, int stage) {
  const int ahead = std::min(shape.stages - 1 - stage, shape.micro_batches);
  std::vector<Pass> passes;
  for (int i = 0; i < shape.micro_batches + ahead; ++i) {
    if (i < shape.micro_batches) passes.push_back({false, copy, i});
    if (i >= ahead) passes.push_back({true, copy, i - ahead});
  }
  return passes;
}

/// Merges the passes of a rank's copies, one of each in turn.
std::vector<Pass> passes_in_turn(const Shape& shape, int rank) {
  std::vector<Pass> passes = one_forward_one_backward(shape, 0, rank);
  if (shape.copies == 1) return passes;
  const auto second = one_forward_one_backward(shape, 1, shape.stage_of(rank, 1));
  std::vector<Pass> merged;
  for (std::size_t i = 0; i < passes.size(); ++i)
    merged.insert(merged.end(), {passes[i], second[i]});
  return merged;
}

}  // namespace

int slowdown(int stage, const Pass& pass, int slow) {
  return stage == 0 && !pass.backward && pass.micro_batch % 4 == 3 ? slow : 1;
}

int duration(int stage, const Pass& pass, int slow) {
  return pass.backward ? 2 : slowdown(stage, pass, slow);
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
  Ends ends(shape);
  int busy = 0;
  const auto remain = [&] {
    return std::any_of(orders.begin(), orders.end(), [](const Order& o) { return !o.empty(); });
  };
  for (int time = 0; remain();) {
    for (std::size_t rank = 0; rank < orders.size(); ++rank) {
      if (free_from[rank] > time) continue;
      const auto stage = [&](const Pass& pass) {
        return shape.stage_of(static_cast<int>(rank), pass.copy);
      };
      const auto pass =
          orders[rank].take([&](const Pass& next) { return ends.ready(next, stage(next), time); });
      if (!pass) continue;
      const int length = duration(stage(*pass), *pass, slow);
      busy += length;
      free_from[rank] = ends.at(*pass, stage(*pass)) = time + length;
      chart.passes[rank].push_back(*pass);
    }
    // The next event is the end of a pass that runs now.
    int next = std::numeric_limits<int>::max();
    for (const int end : free_from) {
      if (end > time) next = std::min(next, end);
    }
    if (next == std::numeric_limits<int>::max()) throw std::logic_error("the ranks wait in a ring");
    time = next;
  }
  const int end = *std::max_element(free_from.begin(), free_from.end());
  chart.idle = 1 - double(busy) / (double(end) * double(orders.size()));
  return chart;
}

std::vector<Order> fixed_orders(const Shape& shape) {
  // 1F1B is the chart in which each rank runs what is ready, with so many micro-batches held.
  std::vector<Order> greedy;
  for (int rank = 0; rank < shape.stages; ++rank) {
    std::vector<int> limits;
    for (int copy = 0; copy < shape.copies; ++copy) {
      limits.push_back(shape.stages - shape.stage_of(rank, copy));
    }
    greedy.emplace_back(passes_in_turn(shape, rank), limits);
  }
  std::vector<Order> orders;
  for (std::vector<Pass>& passes : draw_chart(shape, std::move(greedy), 1).passes) {
    orders.emplace_back(std::move(passes));
  }
  return orders;
}

std::vector<Order> message_driven_orders(const Shape& shape) {
  const std::vector<int> limits(static_cast<std::size_t>(shape.copies), 2 * shape.stages);
  std::vector<Order> orders;
  for (int rank = 0; rank < shape.stages; ++rank) {
    orders.emplace_back(passes_in_turn(shape, rank), limits);
  }
  return orders;
}

}  // namespace pipeline
