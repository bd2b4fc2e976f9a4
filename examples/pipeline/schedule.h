// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

/// The order in which the ranks of a pipeline run the passes of its micro-batches.
namespace pipeline {

/// A micro-batch's way through one stage, forward or backward.
struct Pass {
  bool backward = false;
  int copy = 0;  ///< of the model: 0, or with two copies 1
  int micro_batch = 0;

  auto operator<=>(const Pass&) const = default;
};

/// The ranks of a pipeline hold one copy of the model, or two in opposite directions: rank i then
/// holds stage i of the first and stage `stages - 1 - i` of the second (A. Jain et al., "GEMS:
/// GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN Training", SC 2020).
struct Shape {
  int stages = 1;
  int copies = 1;
  int micro_batches = 1;  ///< of each copy

  /// Returns the stage of a copy that a rank holds, which is also the rank that holds a stage.
  int stage_of(int rank, int copy) const { return copy == 0 ? rank : stages - 1 - rank; }
};

/// The passes that a rank has still to run.
class Order {
 public:
  using Ready = std::function<bool(const Pass&)>;

  /// They run in this order.
  explicit Order(std::vector<Pass> passes) : passes_(std::move(passes)) {}
  /// The first of them that is ready runs next; a forward pass only while fewer than
  /// `limits[copy]` micro-batches of its copy have run forward and not yet backward.
  Order(std::vector<Pass> passes, std::vector<int> limits)
      : passes_(std::move(passes)), limits_(std::move(limits)), in_flight_(limits_.size()) {}

  bool empty() const { return passes_.empty(); }

  /// Removes and returns the pass to run now; nothing if that one, or none, is ready.
  std::optional<Pass> take(const Ready& ready);

 private:
  bool is_fixed() const { return limits_.empty(); }

  std::vector<Pass> passes_;
  std::vector<int> limits_;     ///< by copy; empty: the order is fixed
  std::vector<int> in_flight_;  ///< by copy
};

/// Returns how many times as long as others a forward pass takes: on the first stage `slow` times
/// for each fourth one, as behind a slow reader of data.
int slowdown(int stage, const Pass& forward, int slow);

/// The Gantt chart of a pipeline whose messages take no time, and whose passes backward take twice
/// the time of forward.
struct Chart {
  double idle = 0;                        ///< share of the ranks' time, from 0 to 1
  std::vector<std::vector<Pass>> passes;  ///< by rank, in the order in which they ran
};

/// Draws the chart; `orders` are by rank.
Chart draw_chart(const Shape& shape, std::vector<Order> orders, int slow);

/// The orders of the chart in which stage s holds at most `stages - s` micro-batches of a copy:
/// with one copy that is "1F1B" (D. Narayanan et al., "PipeDream", SOSP 2019).
std::vector<Order> fixed_orders(const Shape& shape);

/// What has come runs next (S. Singh and A. Bhatele, "AxoNN", IPDPS 2022). Each rank holds up to
/// twice as many micro-batches as there are stages.
std::vector<Order> message_driven_orders(const Shape& shape);

}  // namespace pipeline
