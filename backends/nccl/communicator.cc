// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/communicator.h"

#include <future>
#include <system_error>
#include <thread>
#include <utility>

namespace ronde::nccl {
namespace {

/// Between two looks at what NCCL's threads do, which tell nobody when they have done it.
constexpr std::chrono::microseconds kPause{50};

/// What a destructor gives an abort.
constexpr std::chrono::seconds kLastBound{5};

}  // namespace

NonBlockingCommunicator::NonBlockingCommunicator(std::shared_ptr<const NcclApi> api,
                                                 const UniqueId& id, int size, int rank,
                                                 Clock::time_point deadline, const Watch& watch)
    : api_(std::move(api)) {
  const std::string doing = "connecting " + std::to_string(size) + " ranks";
  CommunicatorConfig config;
  config.blocking = 0;
  const Result begun = api_->init_rank(&handle_, size, id, rank, &config);
  try {
    if (!goes_on(api_->init_rank.symbol(), begun, doing)) return;
    wait_until_issued(doing, "not all of the " + std::to_string(size) + " ranks have come in time",
                      deadline, watch);
  } catch (...) {
    if (handle_ != nullptr) static_cast<void>(abort(kLastBound));
    throw;
  }
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

bool NonBlockingCommunicator::is_issued(const std::string& doing) const {
  if (state_ != State::Open) throw Error("NCCL failed while " + doing + ": it was aborted");
  Result issued = kSuccess;
  const char* const symbol = api_->async_error.symbol();
  check(symbol, api_->async_error(handle_, &issued), doing);
  return !goes_on(symbol, issued, doing);
}

void NonBlockingCommunicator::wait_until_issued(const std::string& doing, const std::string& missed,
                                                Clock::time_point deadline, const Watch& watch) {
  while (!is_issued(doing)) {
    watch();
    if (Clock::now() >= deadline) throw Error("NCCL failed while " + doing + ": " + missed);
    std::this_thread::sleep_for(kPause);
  }
}

void NonBlockingCommunicator::close(Clock::time_point deadline, const Watch& watch) {
  const std::string doing = "closing a communicator";
  if (goes_on(api_->finalize.symbol(), api_->finalize(handle_), doing)) {
    wait_until_issued(doing, "what is in progress has not ended in time", deadline, watch);
  }
  state_ = State::Closed;
  check(api_->destroy.symbol(), api_->destroy(handle_), doing);
}

bool NonBlockingCommunicator::abort(std::chrono::nanoseconds bound) noexcept {
  if (state_ != State::Open || handle_ == nullptr) return true;
  state_ = State::Aborted;
  try {
    std::promise<void> promise;
    const std::future<void> returned = promise.get_future();
    std::thread([api = api_, handle = handle_, done = std::move(promise)]() mutable {
      // Of one that has failed, the abort's own result says nothing more.
      static_cast<void>(api->abort(handle));
      done.set_value();
    }).detach();
    return returned.wait_for(bound) == std::future_status::ready;
  } catch (const std::exception&) {
    return false;  // no thread, or no memory for one: the communicator stays as it is
  }
}

}  // namespace ronde::nccl
