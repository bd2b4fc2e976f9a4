// SPDX-License-Identifier: Apache-2.0
// Rounds of parts with equal signatures in a row make a plan: the order of the last one, cut where
// a part ended or the program had waited for a result, and fused. After a plan that did not last,
// more equal rounds are needed for the next one.
#include "core/src/agree/schedule_learner.h"

#include <algorithm>
#include <utility>

namespace ronde {
namespace {

/// A plan that ran fewer rounds than this did not pay.
constexpr std::uint64_t kWorthwhileRounds = 4;
constexpr std::uint64_t kMostNeeded = 1000;
/// How long a bucket may stay incomplete: this many rounds of the longest part seen, and a second.
constexpr int kPatienceRounds = 4;

/// Returns a signature that equal parts share: slots, and whether any rank contributed; sorted but
/// for operations without a name, which are matched by their order.
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
    // Operations without a name may be alike within one part.
    const bool is_repeated =
        current_.slots.test(operation.slot) && (operation.is_named || !current_.has_named);
    if (is_repeated) end_part(now);
    if (current_.operations.empty()) current_.start = now;
    if (starts_run) current_.runs.push_back(current_.operations.size());
    starts_run = false;
    current_.operations.push_back(operation);
    current_.slots.set(operation.slot);
    current_.has_named = current_.has_named || operation.is_named;
  }
  for (std::size_t parts = 1; parts <= ended_.size(); ++parts) {
    if (!is_complete(parts)) continue;
    ScheduleMessage schedule = plan(parts);
    if (schedule.buckets.size() > most_buckets_) return std::nullopt;
    forget();
    return schedule;
  }
  return std::nullopt;
}

void ScheduleLearner::end_part(TimePoint now) {
  current_.signature = signature(current_.operations);
  current_.duration = now - current_.start;
  for (std::size_t i = 0; i < kMostParts; ++i) {
    const bool is_alike =
        i < ended_.size() && ended_[ended_.size() - 1 - i].signature == current_.signature;
    alike_[i] = is_alike ? alike_[i] + 1 : 0;
  }
  ended_.push_back(std::exchange(current_, {}));
  if (ended_.size() > kMostParts) ended_.pop_front();
}

/// Returns whether this decision completes the last round of a pattern of `parts`.
bool ScheduleLearner::is_complete(std::size_t parts) const {
  const std::uint64_t alike_rounds = std::max<std::uint64_t>(needed_, 2) - 1;
  if (alike_[parts - 1] + 1 < alike_rounds * parts) return false;
  const std::vector<std::uint32_t>& expected = ended_[ended_.size() - parts].signature;
  if (current_.operations.size() != expected.size()) return false;
  if (signature(current_.operations) != expected) return false;
  // A rank's plan has one contribution flag per slot, which must hold in all parts.
  return parts == 1 ||
         std::all_of(ended_.end() - static_cast<std::ptrdiff_t>(parts), ended_.end(),
                     [](const Part& part) {
                       return std::ranges::all_of(part.operations, &Operation::contributed);
                     });
}

ScheduleMessage ScheduleLearner::plan(std::size_t parts) const {
  ScheduleMessage schedule;
  for (std::size_t i = parts - 1; i > 0; --i) add_buckets(ended_[ended_.size() - i], schedule);
  add_buckets(current_, schedule);
  // Parts before these do not belong to the rounds.
  const auto alike = static_cast<std::ptrdiff_t>(
      std::min<std::uint64_t>(ended_.size(), alike_[parts - 1] + parts));
  const auto longest =
      std::max_element(ended_.end() - alike, ended_.end(), [](const Part& a, const Part& b) {
        return a.duration < b.duration;
      })->duration;
  const auto patience =
      std::chrono::seconds(1) + kPatienceRounds * static_cast<int>(parts) * longest;
  schedule.patience_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(patience).count());
  return schedule;
}

void ScheduleLearner::add_buckets(const Part& part, ScheduleMessage& schedule) const {
  std::vector<std::size_t> ends = part.runs;
  ends.push_back(part.operations.size());
  std::size_t begin = 0;
  for (const std::size_t end : ends) {
    std::vector<PlanItem> items;
    for (std::size_t i = begin; i < end; ++i) items.push_back(part.operations[i].plan);
    for (const std::vector<std::size_t>& indexes : plan_fusion(items, fusion_bytes_)) {
      std::vector<ScheduledSlot>& bucket = schedule.buckets.emplace_back();
      for (const std::size_t index : indexes) {
        const Operation& operation = part.operations[begin + index];
        bucket.push_back({operation.slot, operation.contributed});
      }
    }
    begin = end;
  }
}

void ScheduleLearner::forget() {
  current_ = {};
  ended_.clear();
  alike_ = {};
}

void ScheduleLearner::restart(std::uint64_t steps, std::uint64_t fusion_bytes) {
  forget();
  steps_ = needed_ = steps;
  fusion_bytes_ = fusion_bytes;
  merges_ = true;
}

void ScheduleLearner::on_thaw(bool by_wait, std::uint64_t rounds) {
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
