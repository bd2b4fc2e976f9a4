// SPDX-License-Identifier: Apache-2.0
#include "core/src/sim/host_rounds.h"

#include <algorithm>
#include <utility>

namespace ronde {

SimulatedOperation::SimulatedOperation(SimulatedWorld& world, int rank,
                                       std::shared_ptr<std::size_t> unpolled)
    : world_(world), rank_(rank), unpolled_(std::move(unpolled)) {}

bool SimulatedOperation::poll() {
  if (has_ended_ && !std::exchange(was_polled_, true)) --*unpolled_;
  return has_ended_;
}

void SimulatedOperation::end() {
  has_ended_ = true;
  ++*unpolled_;
  world_.network.at(world_.network.time(rank_), rank_,
                    [wake = &world_.wake, rank = rank_] { (*wake)(rank); });
}

class RankRounds::Round final : public Progressing {
 public:
  Round(RankRounds& rank, RoundsOperation& operation, Steps steps)
      : rank_(rank), operation_(operation), steps_(std::move(steps)) {}

  void advance() override {
    if (has_ended_) return;
    const MessageExchange::Owner owner(rank_.world_.exchange, *this);
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

RoundsOperation::RoundsOperation(RankRounds& rank, std::shared_ptr<std::size_t> unpolled,
                                 std::uint64_t rounds, WorkOf work_of)
    : SimulatedOperation(rank.world_, rank.rank_, std::move(unpolled)),
      rank_(rank),
      work_of_(std::move(work_of)),
      first_(rank.reserved_),
      end_(first_ + rounds) {
  rank.reserved_ = end_;
  if (rounds == 0) {
    end();
  } else {
    rank.starting_.push_back(this);
    rank.advance();
  }
}

RoundsOperation::~RoundsOperation() {
  rank_.forget(*this);
}

RankRounds::RankRounds(SimulatedWorld& world, int rank, HostRounds& host)
    : world_(world), rank_(rank), host_(host) {
  host.members.push_back(this);
}

RankRounds::~RankRounds() = default;

void RankRounds::forget(RoundsOperation& operation) {
  std::erase(starting_, &operation);
  std::erase_if(rounds_, [&](const auto& round) { return &round->operation() == &operation; });
}

/// Advances the rounds in progress, the oldest first, and begins new ones.
void RankRounds::advance() {
  for (const auto& round : rounds_) round->advance();
  while (!rounds_.empty() && rounds_.front()->has_ended()) {
    RoundsOperation& operation = rounds_.front()->operation();
    rounds_.pop_front();
    if (operation.first_ + ++operation.ended_ == operation.end_) operation.end();
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
  const TimePoint free = world_.network.time(rank_);
  if (free <= world_.events.now()) return true;
  advance_at(free);
  return false;
}

void RankRounds::advance_at(TimePoint time) {
  if (time == next_advance_) return;
  next_advance_ = time;
  world_.network.at(time, rank_, [this] { advance(); });
}

void RankRounds::advance_now() {
  world_.network.at(world_.events.now(), rank_, [this] { advance(); });
}

/// Keeps the processor busy with bytes in the memory of the host.
Steps RankRounds::work(std::size_t bytes) {
  if (bytes == 0) co_return;
  co_await until([this] { return may_begin(); });
  const double seconds = static_cast<double>(bytes) * world_.options.host.bytes_shared;
  world_.network.charge(rank_, from_s(seconds));
  const TimePoint end = world_.network.time(rank_);
  advance_at(end);
  co_await until([this, end] { return world_.events.now() >= end; });
}

Steps RankRounds::run(std::uint64_t number, RoundWork bytes) {
  using Slot = HostRounds::Slot;
  const Slot& slot = host_.of(number);
  co_await work(bytes.staged);
  ++staged_;
  publish(number, &Slot::staged);
  co_await until([&] { return slot.staged == host_.ranks; });
  co_await work(bytes.reduced);
  if (bytes.exchange) co_await bytes.exchange();
  publish(number, &Slot::reduced);
  co_await until([&] { return slot.reduced == host_.ranks && consumed_ == number; });
  co_await work(bytes.consumed);
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
