// SPDX-License-Identifier: Apache-2.0
// A step ends where an operation repeats. Steps with equal signatures in a row make a plan: the
// order of the last one, cut where the program had waited for a result, and fused. After a plan
// that did not last, more equal steps are needed for the next one.
#include "core/src/agree/schedule_learner.h"

#include <algorithm>

namespace ronde {
namespace {

/// A plan that ran fewer rounds than this did not pay.
constexpr std::uint64_t kWorthwhileRounds = 4;
constexpr std::uint64_t kMostNeeded = 1000;
/// How long a bucket may stay incomplete: this many of the longest step seen, and a second.
constexpr int kPatienceSteps = 4;

/// Equal for equal steps: slots, and whether any rank contributed; sorted, except for those without
/// a name, which are matched by their order.
std::vector<std::uint32_t> signature(const std::vector<ScheduleLearner::Operation>& operations) {
  std::vector<std::uint32_t> named;
  std::vector<std::uint32_t> unnamed;
  for (const auto& operation : operations) {
    const std::uint32_t word = operation.slot * 2 + (operation.contributed ? 1 : 0);
    (operation.is_named ? named : unnamed).push_back(word);
  }
  std::ranges::sort(named);
  named.insert(named.end(), unnamed.begin(), unnamed.end());
  return named;
}

}  // namespace

ScheduleLearner::ScheduleLearner(std::uint64_t steps, std::uint64_t fusion_bytes,
                                 std::size_t most_buckets)
    : steps_(steps), fusion_bytes_(fusion_bytes), most_buckets_(most_buckets), needed_(steps) {}

std::optional<ScheduleMessage> ScheduleLearner::observe(const std::vector<Operation>& operations,
                                                        bool after_wait, TimePoint now) {
  if (steps_ == 0 || operations.empty()) return std::nullopt;
  bool starts_run = after_wait || !merges_;
  for (const Operation& operation : operations) {
    if (repeats(operation)) {
      std::vector<std::uint32_t> finished = signature(current_.operations);
      alike_ = finished == previous_ ? alike_ + 1 : 1;
      longest_ = alike_ == 1 ? now - current_.start : std::max(longest_, now - current_.start);
      previous_ = std::move(finished);
      current_ = {};
    }
    if (current_.operations.empty()) current_.start = now;
    if (starts_run) current_.runs.push_back(current_.operations.size());
    starts_run = false;
    current_.operations.push_back(operation);
    current_.slots.set(operation.slot);
    current_.has_named = current_.has_named || operation.is_named;
  }
  if (!is_complete()) return std::nullopt;
  ScheduleMessage schedule = plan();
  if (schedule.buckets.size() > most_buckets_) return std::nullopt;
  const auto patience = std::chrono::seconds(1) + kPatienceSteps * longest_;
  schedule.patience_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(patience).count());
  forget();
  return schedule;
}

bool ScheduleLearner::repeats(const Operation& operation) const {
  // Operations without a name may be alike within one step.
  return current_.slots.test(operation.slot) && (operation.is_named || !current_.has_named);
}

/// The step that makes enough has come to its end with this decision.
bool ScheduleLearner::is_complete() const {
  return alike_ + 1 >= needed_ && alike_ > 0 && current_.operations.size() == previous_.size() &&
         signature(current_.operations) == previous_;
}

ScheduleMessage ScheduleLearner::plan() const {
  ScheduleMessage schedule;
  std::vector<std::size_t> ends = current_.runs;
  ends.push_back(current_.operations.size());
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    std::vector<PlanItem> items;
    for (std::size_t i = begin; i < end; ++i) items.push_back(current_.operations[i].plan);
    for (const std::vector<std::size_t>& indexes : plan_fusion(items, fusion_bytes_)) {
      std::vector<ScheduledSlot>& bucket = schedule.buckets.emplace_back();
      for (const std::size_t index : indexes) {
        const Operation& operation = current_.operations[begin + index];
        bucket.push_back({operation.slot, operation.contributed});
      }
    }
    begin = end;
  }
  return schedule;
}

void ScheduleLearner::forget() {
  alike_ = 0;
  longest_ = {};
  current_ = {};
  previous_.clear();
}

void ScheduleLearner::restart(std::uint64_t steps, std::uint64_t fusion_bytes) {
  forget();
  steps_ = needed_ = steps;
  fusion_bytes_ = fusion_bytes;
  merges_ = true;
}

void ScheduleLearner::thawed(bool by_wait, std::uint64_t rounds) {
  forget();
  if (rounds >= kWorthwhileRounds) {
    needed_ = steps_;
    merges_ = true;
  } else {
    needed_ = std::min(2 * needed_, kMostNeeded);
    merges_ = merges_ && !by_wait;
  }
}

}  // namespace ronde
