// SPDX-License-Identifier: Apache-2.0
#include "c_api/src/work_record.h"

#include <algorithm>
#include <utility>

#include "c_api/src/errors.h"
#include "c_api/src/groups.h"

namespace ronde::c {

void* Result::allocate(const std::vector<std::int64_t>& of_shape) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t extent : of_shape) bytes *= static_cast<std::size_t>(extent);
  if (bytes == 0) return nullptr;
  owned_.reset(::operator new(bytes, kAlignment));
  return owned_.get();
}

WorkRecord::~WorkRecord() {
  if (!name_.empty() && !error_read_) log_unheard(name_, error_);
}

void WorkRecord::set_result(std::vector<Work> works, std::exception_ptr error,
                            std::string name) noexcept {
  std::vector<Callback> callbacks;
  {
    const std::lock_guard lock(mutex_);
    works_ = std::move(works);
    error_ = std::move(error);
    name_ = std::move(name);
    has_result_.store(true, std::memory_order_release);
    callbacks.swap(callbacks_);
  }
  for (const Callback& callback : callbacks) {
    try {
      watch(callback);
    } catch (...) {  // no memory
      log_thrown("a callback of a work cannot be called", std::current_exception());
    }
  }
}

void WorkRecord::expect_result() const {
  if (has_result_.load(std::memory_order_acquire)) return;
  throw Failure(RONDE_E_USAGE,
                "the work belongs to a group that is open, and is not started: call "
                "ronde_group_end() first");
}

bool WorkRecord::all_done() const {
  // All are polled, as polling starts what was put off.
  return std::count_if(works_.begin(), works_.end(),
                       [](const Work& work) { return !work.done(); }) == 0;
}

bool WorkRecord::done() const {
  expect_result();
  return all_done();
}

void WorkRecord::rethrow_first_error() const {
  if (error_) {
    error_read_ = true;
    std::rethrow_exception(error_);
  }
  std::exception_ptr first;
  for (const Work& work : works_) {
    const std::exception_ptr error = work.error();  // all of them are read now
    if (!first) first = error;
  }
  if (first) std::rethrow_exception(first);
}

bool WorkRecord::wait(const std::optional<TimePoint>& deadline) const {
  expect_result();
  if (CallbackScope::is_open() && !all_done()) expect_no_callback();
  for (const Work& work : works_) {
    try {
      if (!deadline) {
        work.wait();
      } else if (!work.wait_for(*deadline - std::chrono::steady_clock::now())) {
        return false;
      }
    } catch (...) {
      // The other members of a group are waited for as well.
    }
  }
  rethrow_first_error();
  return true;
}

void WorkRecord::wait_on(void* stream) const {
  expect_result();
  if (CallbackScope::is_open() && !all_done()) expect_no_callback();
  std::exception_ptr first = error_;
  error_read_ = error_read_ || error_ != nullptr;
  for (const Work& work : works_) {
    try {
      work.wait_on(stream);
    } catch (...) {
      if (!first) first = std::current_exception();  // of a group, the others are ordered as well
    }
  }
  if (first) std::rethrow_exception(first);
}

void WorkRecord::on_done(Callback callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!has_result_.load(std::memory_order_relaxed)) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  watch(callback);
}

void WorkRecord::watch(const Callback& callback) const {
  if (works_.empty()) return callback(*this);
  const auto left = std::make_shared<std::atomic<std::size_t>>(works_.size());
  for (const Work& work : works_) {
    work.on_done([self = shared_from_this(), left, callback] {
      if (left->fetch_sub(1) == 1) callback(*self);
    });
  }
}

void WorkRecord::invoke(ronde_done_fn fn, void* context) const noexcept {
  const int status = guarded(nullptr, [this] { rethrow_first_error(); });
  const CallbackScope scope;
  const GroupOfCallback own_group;
  try {
    fn(context, status);
  } catch (...) {
    log_thrown("a callback of a work threw, which it must not", std::current_exception());
  }
}

void WorkRecord::expect_done() const {
  expect_result();
  if (all_done()) return;
  throw Failure(RONDE_E_PENDING, "the work is not done: call ronde_work_wait() first");
}

void WorkRecord::expect_success() const {
  expect_done();
  rethrow_first_error();
}

std::vector<int> WorkRecord::missing_ranks() const {
  expect_done();
  try {
    rethrow_first_error();
  } catch (const TimeoutError& error) {
    return error.missing_ranks();
  } catch (...) {
    // It failed for another reason.
  }
  return {};
}

const Work& WorkRecord::finished(Collective kind) const {
  if (kind_ != kind) {
    throw Failure(RONDE_E_INVALID_ARGUMENT, "the work is no " + std::string(to_string(kind)));
  }
  expect_success();
  return works_.front();
}

const Result& WorkRecord::result() const {
  expect(result_ != nullptr, "an operation of this kind has no result");
  expect_success();
  return *result_;
}

}  // namespace ronde::c
