// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/host_rounds.h"

#include <algorithm>
#include <utility>

namespace ronde {

class RankRounds::Round final : public Progressing {
 public:
  Round(RankRounds& rank, RoundsOperation& operation, Steps steps)
      : rank_(rank), operation_(operation), steps_(std::move(steps)) {}

  void advance() override {
    if (has_ended_) return;
    rank_.exchange_.set_owner(*this);
    has_ended_ = steps_.poll();
    if (has_ended_) rank_.advance_now();
  }
  bool has_ended() const noexcept { return has_ended_; }
  RoundsOperation& operation() const noexcept { return operation_; }

 private:
  RankRounds& rank_;
  RoundsOperation& operation_;
  Steps steps_;
  bool has_ended_ = false;
};

RoundsOperation::RoundsOperation(RankRounds& rank, std::uint64_t rounds, WorkOf work_of)
    : rank_(rank), work_of_(std::move(work_of)), first_(rank.reserved_), end_(first_ + rounds) {
  rank.reserved_ = end_;
  rank.starting_.push_back(this);
  rank.advance();
}

RoundsOperation::~RoundsOperation() {
  poll();
  std::erase(rank_.starting_, this);
  std::erase_if(rank_.rounds_, [&](const auto& round) { return &round->operation() == this; });
}

bool RoundsOperation::poll() {
  if (has_ended_ && !std::exchange(was_polled_, true)) --rank_.unpolled_;
  return has_ended_;
}

RankRounds::RankRounds(EventQueue& events, SimulatedNetwork& network, MessageExchange& exchange,
                       HostRounds& host, int rank, EventQueue::Action wake)
    : events_(events),
      network_(network),
      exchange_(exchange),
      host_(host),
      rank_(rank),
      wake_(std::move(wake)) {
  host.members.push_back(this);
}

RankRounds::~RankRounds() = default;

/// Advances the rounds in progress, the oldest first, and begins new ones.
void RankRounds::advance() {
  for (const auto& round : rounds_) round->advance();
  while (!rounds_.empty() && rounds_.front()->has_ended()) {
    RoundsOperation& operation = rounds_.front()->operation();
    rounds_.pop_front();
    if (operation.first_ + ++operation.rounds_ended_ < operation.end_) continue;
    operation.has_ended_ = true;
    ++unpolled_;
    network_.at(network_.time(rank_), rank_, wake_);
  }
  while (!starting_.empty() && host_.of(begun_).round == begun_ && begun_ == staged_ &&
         may_begin()) {
    RoundsOperation& operation = *starting_.front();
    const std::uint64_t number = begun_++;
    if (begun_ == operation.end_) starting_.pop_front();
    RoundWork work = operation.work_of_(number - operation.first_, number);
    rounds_.push_back(std::make_unique<Round>(*this, operation, run(number, std::move(work))));
    rounds_.back()->advance();
  }
}

/// Returns whether the processor is free. Else advance() is called when it is.
bool RankRounds::may_begin() {
  const TimePoint free = network_.time(rank_);
  if (free <= events_.now()) return true;
  advance_at(free);
  return false;
}

void RankRounds::advance_at(TimePoint time) {
  if (time == next_advance_) return;
  next_advance_ = time;
  network_.at(time, rank_, [this] { advance(); });
}

void RankRounds::advance_now() {
  network_.at(events_.now(), rank_, [this] { advance(); });
}

/// Keeps the processor busy with bytes in the memory of the host.
Steps RankRounds::work(std::size_t bytes) {
  if (bytes == 0) co_return;
  co_await until([this] { return may_begin(); });
  network_.charge(rank_, from_s(static_cast<double>(bytes) * host_.seconds_per_byte));
  const TimePoint end = network_.time(rank_);
  advance_at(end);
  co_await until([this, end] { return events_.now() >= end; });
}

Steps RankRounds::run(std::uint64_t number, RoundWork round) {
  using Slot = HostRounds::Slot;
  const Slot& slot = host_.of(number);
  const std::size_t awaited = round.waits ? host_.ranks : 0;
  co_await work(round.staged);
  ++staged_;
  publish(number, &Slot::staged);
  co_await until([&] { return slot.staged >= awaited; });
  co_await work(round.reduced);
  if (round.exchange) co_await round.exchange();
  publish(number, &Slot::reduced);
  co_await until([&] { return slot.reduced >= awaited && consumed_ == number; });
  co_await work(round.consumed);
  ++consumed_;
  publish(number, &Slot::consumed);
}

/// Counts what this rank has done. The last one lets the others of the host go on.
void RankRounds::publish(std::uint64_t number, std::size_t HostRounds::Slot::*count) {
  HostRounds::Slot& slot = host_.of(number);
  if (++(slot.*count) < host_.ranks) return;
  if (count == &HostRounds::Slot::consumed) slot = {.round = number + host_.slots.size()};
  for (RankRounds* const member : host_.members) member->advance_now();
}

}  // namespace ronde
