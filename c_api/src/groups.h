// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "c_api/src/work_record.h"
#include "ronde/process_set.h"
#include "ronde/request.h"

namespace ronde::c {

/// The name of an operation in texts: "allreduce 'x'".
std::string name_of(const Request& request) noexcept;

/// Operations that wait for ronde_group_end().
///
/// Thread-safety: used by the thread that began it; drop() may be called from any.
class OpenGroup {
 public:
  explicit OpenGroup(ProcessSet set) : set_(set) {}

  ProcessSet set() const noexcept { return set_; }

  /// These two throw if it was dropped.
  void add(Request request, std::shared_ptr<WorkRecord> record);
  /// Starts all, for which `whole` stands then; or fails all, and throws why.
  void end(WorkRecord& whole);

  /// Whether the program hears of it in another way than by the works.
  enum class Told { No, Yes };
  /// Fails all of them with RONDE_E_USAGE and `text`. False if it was over before.
  bool drop(const char* text, Told told) noexcept;

 private:
  struct Member {
    Request request;
    std::shared_ptr<WorkRecord> record;
  };

  const ProcessSet set_;

  std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Member> members_;
  bool ended_ = false;
  std::exception_ptr dropped_;
};

/// While it lives, the group that this thread has open is out of reach: a callback may run on any
/// thread, and has a group of its own, or none. What it leaves open is dropped.
class GroupOfCallback {
 public:
  GroupOfCallback() noexcept;
  ~GroupOfCallback();
  GroupOfCallback(const GroupOfCallback&) = delete;
  GroupOfCallback& operator=(const GroupOfCallback&) = delete;

 private:
  std::shared_ptr<OpenGroup> of_thread_;
};

/// Opens a group on this thread. Throws if it has one open.
void begin_group(ProcessSet set);
/// The group that this thread has open for `set`, or null.
std::shared_ptr<OpenGroup> open_group(ProcessSet set);
/// Takes this thread's group away from it. Throws if there is none.
std::shared_ptr<OpenGroup> take_group();
/// What `function` does with `shut_down`, for a world: groups of it that are open on any thread are
/// dropped before, and RONDE_E_USAGE after it says how many there were.
void end_of_world(const char* function, ProcessSet world, const std::function<void()>& shut_down);

}  // namespace ronde::c
