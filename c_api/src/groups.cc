// SPDX-License-Identifier: Apache-2.0
#include "groups.h"

#include <utility>

#include "errors.h"
#include "ronde/ronde.h"
#include "work_table.h"

namespace ronde::c {

void OpenGroup::add(Request request, std::shared_ptr<WorkRecord> record) {
  const std::lock_guard lock(mutex_);
  if (dropped_) std::rethrow_exception(dropped_);
  requests_.reserve(requests_.size() + 1);
  records_.push_back(std::move(record));
  requests_.push_back(std::move(request));
}

void OpenGroup::end(WorkRecord& whole) {
  std::vector<Request> requests;
  std::vector<std::shared_ptr<WorkRecord>> records;
  {
    const std::lock_guard lock(mutex_);
    if (dropped_) std::rethrow_exception(dropped_);
    requests.swap(requests_);
    records.swap(records_);
  }
  std::vector<Work> works;
  try {
    if (!requests.empty()) works = ronde::submit_group(std::move(requests));
  } catch (...) {
    for (const auto& record : records) record->fail(std::current_exception());
    throw;
  }
  for (std::size_t i = 0; i < records.size(); ++i) records[i]->start({works[i]});
  whole.start(std::move(works));
}

void OpenGroup::drop(const std::string& text) {
  std::vector<std::shared_ptr<WorkRecord>> records;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (dropped_) return;
    dropped_ = error = std::make_exception_ptr(Failure(RONDE_E_USAGE, text));
    records.swap(records_);
    requests_.clear();
  }
  for (const auto& record : records) record->fail(error);
}

namespace {

/// The groups of all threads, to be dropped at the end. Never destroyed.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<OpenGroup>> groups;  ///< guarded by mutex; some are over
};

Registry& registry() {
  static auto* const instance = new Registry();
  return *instance;
}

struct GroupOfThread {
  std::shared_ptr<OpenGroup> group = {};

  ~GroupOfThread() {
    if (group) group->drop("the thread that began the group ended without ronde_group_end()");
  }
};

GroupOfThread& of_thread() {
  ronde_last_error();  // is made first, so that it outlives the group, which may fail works
  thread_local GroupOfThread group;
  return group;
}

}  // namespace

void begin_group(ProcessSet set) {
  if (of_thread().group) {
    throw Failure(RONDE_E_USAGE, "this thread has a group open, for process set " +
                                     std::to_string(of_thread().group->set().id) +
                                     ": call ronde_group_end() first");
  }
  auto group = std::make_shared<OpenGroup>(set);
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.groups, [](const auto& each) { return each.expired(); });
  all.groups.push_back(group);
  of_thread().group = std::move(group);
}

std::shared_ptr<OpenGroup> open_group(ProcessSet set) {
  const bool is_meant = of_thread().group && of_thread().group->set() == set;
  return is_meant ? of_thread().group : nullptr;
}

std::shared_ptr<OpenGroup> take_group() {
  if (!of_thread().group) {
    throw Failure(RONDE_E_USAGE, "this thread has no group open: call ronde_group_begin() first");
  }
  return std::exchange(of_thread().group, nullptr);
}

std::size_t drop_all_groups(const std::string& text) {
  Registry& all = registry();
  std::vector<std::weak_ptr<OpenGroup>> groups;
  {
    const std::lock_guard lock(all.mutex);
    groups.swap(all.groups);
  }
  std::size_t dropped = 0;
  for (const auto& each : groups) {
    if (const auto group = each.lock()) {
      group->drop(text);
      ++dropped;
    }
  }
  return dropped;
}

}  // namespace ronde::c

int ronde_group_begin(uint32_t set) {
  return ronde::c::guarded("ronde_group_begin", [&] {
    const ronde::ProcessSet wanted{set};
    ronde::ranks_of(wanted);  // throws where there is none
    ronde::c::begin_group(wanted);
  });
}

int ronde_group_end(ronde_work* work) {
  if (work != nullptr) *work = nullptr;
  return ronde::c::guarded("ronde_group_end", [&] {
    ronde::c::expect(work != nullptr, "work is NULL");
    const auto group = ronde::c::take_group();
    const auto whole = std::make_shared<ronde::c::WorkRecord>(std::nullopt, nullptr);
    *work = ronde::c::WorkTable::instance().insert_if(whole, [&] { group->end(*whole); });
  });
}
