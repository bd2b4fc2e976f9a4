// SPDX-License-Identifier: Apache-2.0
#include "core/src/group/engine_life.h"

#include <utility>

#include "core/src/base/rank_list.h"

namespace ronde {

void EngineLife::mark_started(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    start_error_ = std::move(error);
  }
  reach(Stage::Started);
}

void EngineLife::set_failure(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  failure_ = std::move(failure);
}

void EngineLife::set_first_failure(std::exception_ptr failure) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(failure);
}

void EngineLife::reach(Stage stage) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  changed_.notify_all();
}

bool EngineLife::wait_started(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto has_started = [this] { return stage_ >= Stage::Started; };
  if (!changed_.wait_until(lock, deadline, has_started)) return false;
  if (start_error_) std::rethrow_exception(start_error_);
  return true;
}

bool EngineLife::wait_ended(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [this] { return stage_ == Stage::Ended; });
}

void EngineLife::wait_loop_ended(Clock::duration limit) {
  std::unique_lock lock(mutex_);
  const auto has_ended = [this] { return stage_ >= Stage::LoopEnded; };
  if (limit > Clock::duration::zero()) {
    changed_.wait_for(lock, limit, has_ended);
  } else {
    changed_.wait(lock, has_ended);
  }
}

bool EngineLife::has_started() const {
  const std::lock_guard lock(mutex_);
  return stage_ >= Stage::Started && !start_error_;
}

std::exception_ptr EngineLife::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void EngineLife::shut_down(std::string report, std::optional<Clock::time_point> deadline) {
  {
    const std::lock_guard lock(mutex_);
    report_ = std::move(report);
    shutdown_deadline_ = deadline;
  }
  shuts_down_.store(true);
}

std::optional<EngineLife::Clock::time_point> EngineLife::shutdown_deadline() const {
  if (!shuts_down()) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return shutdown_deadline_;
}

std::string EngineLife::report() const {
  const std::lock_guard lock(mutex_);
  return report_;
}

void EngineLife::leave(const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (leave_reason_.empty()) leave_reason_ = why;
  leaves_.store(true);
}

void EngineLife::abort(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!aborts_.load()) abort_text_ = text;
  aborts_.store(true);
}

FailureMessage EngineLife::departure_of(int rank, const std::string& pending) const {
  const std::string how = shuts_down() ? " left before its ronde::shutdown() was over"
                                       : " left without calling ronde::shutdown()";
  const std::lock_guard lock(mutex_);
  const std::string why = leave_reason_.empty() ? "" : ": " + leave_reason_;
  return {rank, rank_name(rank) + how + why + pending};
}

FailureMessage EngineLife::abortion_of(int rank) const {
  const std::lock_guard lock(mutex_);
  return {rank, rank_name(rank) + " aborted: " + abort_text_};
}

}  // namespace ronde
