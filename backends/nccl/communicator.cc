// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/communicator.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace ronde::nccl {
namespace {

/// The bound of an abort in the destructor.
constexpr std::chrono::seconds kLastBound{2};

/// How long an abort waits for a call that is about to return, and must not find freed memory. A
/// call that takes longer blocks in NCCL, which an abort ends.
constexpr std::chrono::milliseconds kGrace{10};

}  // namespace

struct BlockingCommunicator::State {
  std::mutex mutex;
  std::condition_variable left;
  // Guarded by mutex.
  Stage stage = Stage::Connecting;
  Communicator handle = nullptr;
  int uses = 0;
};

BlockingCommunicator::BlockingCommunicator(std::shared_ptr<const NcclApi> api, int size)
    : api_(std::move(api)), size_(size), state_(std::make_shared<State>()) {}

BlockingCommunicator::~BlockingCommunicator() {
  if (was_abort_begun_) return;  // its caller has waited for it
  begin_abort();
  static_cast<void>(has_aborted(Clock::now() + kLastBound));
}

void BlockingCommunicator::connect(const UniqueId& id, int rank) {
  const std::string doing = "connecting " + std::to_string(size_) + " ranks";
  CommunicatorConfig config;
  config.blocking = 1;
  Communicator made = nullptr;
  const Result result = api_->init_rank(&made, size_, id, rank, &config);
  {
    const std::lock_guard lock(state_->mutex);
    if (result == kSuccess && state_->stage == Stage::Connecting) {
      state_->handle = made;
      state_->stage = Stage::Open;
      return;
    }
    state_->stage = Stage::Aborted;
  }
  const NcclError error(*api_, api_->init_rank.symbol(), result, made, doing);
  if (made != nullptr) static_cast<void>(api_->abort(made));
  if (result != kSuccess) throw error;
  const std::lock_guard lock(state_->mutex);
  require_open(doing);
}

void BlockingCommunicator::require_open(const std::string& doing) const {
  if (state_->stage != Stage::Open) {
    throw Error("NCCL failed while " + doing + ": it was aborted");
  }
}

BlockingCommunicator::Use::Use(const BlockingCommunicator& communicator, const std::string& doing)
    : communicator_(communicator) {
  const std::lock_guard lock(communicator_.state_->mutex);
  communicator_.require_open(doing);
  ++communicator_.state_->uses;
}

BlockingCommunicator::Use::~Use() {
  const std::lock_guard lock(communicator_.state_->mutex);
  if (--communicator_.state_->uses == 0) communicator_.state_->left.notify_all();
}

Communicator BlockingCommunicator::Use::handle() const noexcept {
  return communicator_.state_->handle;  // constant while there is a use
}

void BlockingCommunicator::check(const char* symbol, Result result,
                                 const std::string& doing) const {
  if (result == kSuccess) return;
  const std::lock_guard lock(state_->mutex);  // the handle ends with the stage
  const Communicator asked = state_->stage == Stage::Open ? state_->handle : nullptr;
  throw NcclError(*api_, symbol, result, asked, doing);
}

void BlockingCommunicator::watch(const std::string& doing) const {
  Result result = kSuccess;
  Result issued = kSuccess;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->stage == Stage::Closed) return;
    require_open(doing);
    result = api_->async_error(state_->handle, &issued);
  }
  check(api_->async_error.symbol(), result, doing);
  if (issued != kInProgress) check(api_->async_error.symbol(), issued, doing);
}

void BlockingCommunicator::close() {
  const std::string doing = "closing a communicator";
  const Use use(*this, doing);
  call(doing, api_->finalize, use.handle());
  {
    const std::lock_guard lock(state_->mutex);
    require_open(doing);
    state_->stage = Stage::Closed;
  }
  call(doing, api_->destroy, use.handle());
}

void BlockingCommunicator::begin_abort() noexcept {
  {
    const std::lock_guard lock(state_->mutex);
    const bool is_open = state_->stage == Stage::Open;
    if (is_open || state_->stage == Stage::Connecting) state_->stage = Stage::Aborted;
    if (!is_open) return;
  }
  was_abort_begun_ = true;
  try {
    std::promise<void> promise;
    std::future<void> returned = promise.get_future();
    std::thread([api = api_, state = state_, done = std::move(promise)]() mutable {
      {
        std::unique_lock lock(state->mutex);
        state->left.wait_for(lock, kGrace, [&] { return state->uses == 0; });
      }
      // The result of aborting a failed communicator is of no use.
      static_cast<void>(api->abort(state->handle));
      done.set_value();
    }).detach();
    aborting_ = std::move(returned);
  } catch (const std::exception&) {
    // Without a thread the communicator stays as it is, and has_aborted() returns false.
  }
}

bool BlockingCommunicator::has_aborted(Clock::time_point deadline) noexcept {
  if (!was_abort_begun_) return true;
  return aborting_.valid() && aborting_.wait_until(deadline) == std::future_status::ready;
}

}  // namespace ronde::nccl
