// SPDX-License-Identifier: Apache-2.0
#pragma once

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

/// Returns the name of an operation for texts: "allreduce 'x'".
std::string name_of(const Request& request) noexcept;

/// The operations of a group until ronde_group_end().
///
/// Thread-safety: used by the thread that began it; drop() may be called from any.
class OpenGroup {
 public:
  explicit OpenGroup(ProcessSet set) : set_(set) {}

  ProcessSet set() const noexcept { return set_; }

  /// Throws if the group was dropped, as end().
  void add(Request request, std::shared_ptr<WorkRecord> record);
  /// Starts all operations as the work `whole`, or fails all and throws why.
  void end(WorkRecord& whole);

  /// Whether a call reports the drop; else works that were freed log their error.
  enum class Reported { No, Yes };
  /// Fails all operations with RONDE_E_USAGE and `text`. Returns false if the group was over.
  bool drop(const char* text, Reported reported) noexcept;

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

/// Hides the open group of this thread while a callback runs on it: a callback has a group of its
/// own, or none. The destructor drops a group that the callback left open.
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
/// Returns the group that this thread has open for `set`, or null.
std::shared_ptr<OpenGroup> open_group(ProcessSet set);
/// Removes the group of this thread and returns it. Throws if there is none.
std::shared_ptr<OpenGroup> take_group();
/// Runs `shut_down` for `function`. Drops the open groups of the world on all threads before, and
/// throws RONDE_E_USAGE with their number afterwards.
void end_of_world(const char* function, ProcessSet world, const std::function<void()>& shut_down);

}  // namespace ronde::c
