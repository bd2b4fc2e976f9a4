// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/communicator.h"

#include <thread>
#include <utility>

namespace ronde::nccl {
namespace {

/// Of an abort that nobody gave a bound.
constexpr std::chrono::seconds kLastBound{2};

/// Between two looks at what NCCL does. It tells nobody when it is done.
constexpr std::chrono::microseconds kPause{100};

}  // namespace

NonBlockingCommunicator::NonBlockingCommunicator(std::shared_ptr<const NcclApi> api,
                                                 const UniqueId& id, int size, int rank,
                                                 Clock::time_point deadline)
    : api_(std::move(api)), size_(size), deadline_(deadline) {
  CommunicatorConfig config;
  config.blocking = 0;
  const Result begun = api_->init_rank(&handle_, size, id, rank, &config);
  if (begun == kSuccess || begun == kInProgress) return;
  const NcclError error(*api_, api_->init_rank.symbol(), begun, handle_,
                        "connecting " + std::to_string(size) + " ranks");
  static_cast<void>(abort(kLastBound));
  throw error;
}

NonBlockingCommunicator::~NonBlockingCommunicator() {
  static_cast<void>(abort(kLastBound));
}

bool NonBlockingCommunicator::goes_on(const char* symbol, Result result,
                                      const std::string& doing) const {
  if (result == kInProgress) return true;
  if (result == kSuccess) return false;
  throw NcclError(*api_, symbol, result, handle_, doing);
}

void NonBlockingCommunicator::check(const char* symbol, Result result,
                                    const std::string& doing) const {
  static_cast<void>(goes_on(symbol, result, doing));
}

bool NonBlockingCommunicator::ends(const char* symbol, Result result, const std::string& doing,
                                   Clock::time_point deadline) const {
  if (!goes_on(symbol, result, doing)) return true;
  while (!is_issued(doing)) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

void NonBlockingCommunicator::finish(const char* symbol, Result result, const std::string& doing,
                                     Clock::time_point deadline) const {
  if (ends(symbol, result, doing, deadline)) return;
  throw Error("NCCL failed while " + doing + ": " + symbol + " has not ended in time");
}

bool NonBlockingCommunicator::is_connected() const {
  const std::string doing = "connecting " + std::to_string(size_) + " ranks";
  if (is_issued(doing)) return true;
  if (Clock::now() < deadline_) return false;
  throw Error("NCCL failed while " + doing + ": not all of the " + std::to_string(size_) +
              " ranks have come in time");
}

bool NonBlockingCommunicator::is_issued(const std::string& doing) const {
  const std::lock_guard lock(mutex_);
  if (state_ == State::Closed) return true;
  if (state_ == State::Aborted) throw Error("NCCL failed while " + doing + ": it was aborted");
  Result issued = kSuccess;
  const char* const symbol = api_->async_error.symbol();
  check(symbol, api_->async_error(handle_, &issued), doing);
  return !goes_on(symbol, issued, doing);
}

bool NonBlockingCommunicator::is_open() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::Open;
}

void NonBlockingCommunicator::close(Clock::time_point deadline) {
  const std::string doing = "closing a communicator";
  if (!ends(api_->finalize.symbol(), api_->finalize(handle_), doing, deadline)) {
    throw Error("NCCL failed while " + doing +
                ": what is in progress has not ended in time, or not all ranks close theirs");
  }
  {
    const std::lock_guard lock(mutex_);
    state_ = State::Closed;
  }
  check(api_->destroy.symbol(), api_->destroy(handle_), doing);
}

void NonBlockingCommunicator::begin_abort() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::Open || handle_ == nullptr) return;
    state_ = State::Aborted;
  }
  was_abort_begun_ = true;
  try {
    std::promise<void> promise;
    std::future<void> returned = promise.get_future();
    std::thread([api = api_, handle = handle_, done = std::move(promise)]() mutable {
      // Of one that has failed, the abort's own result says nothing more.
      static_cast<void>(api->abort(handle));
      done.set_value();
    }).detach();
    aborting_ = std::move(returned);
  } catch (const std::exception&) {
    // No thread, or no memory for one: the communicator stays as it is, and has_aborted() says so.
  }
}

bool NonBlockingCommunicator::has_aborted(Clock::time_point deadline) noexcept {
  if (!was_abort_begun_) return true;
  return aborting_.valid() && aborting_.wait_until(deadline) == std::future_status::ready;
}

bool NonBlockingCommunicator::abort(std::chrono::nanoseconds bound) noexcept {
  const bool was_begun = was_abort_begun_;
  begin_abort();
  return was_begun || has_aborted(Clock::now() + bound);
}

}  // namespace ronde::nccl
