// SPDX-License-Identifier: Apache-2.0
// A thread's open group holds requests back until ronde_group_end() submits them in one call. A
// registry knows the groups of all threads, so that ronde_shutdown() can drop them.
#include "c_api/src/groups.h"

#include <utility>

#include "c_api/src/arguments.h"
#include "c_api/src/handle_table.h"
#include "ronde/ronde.h"

namespace ronde::c {

namespace {

std::exception_ptr usage_error(const char* text) noexcept {
  try {
    return std::make_exception_ptr(Failure(RONDE_E_USAGE, text));
  } catch (...) {  // no memory, which is the error then
    return std::current_exception();
  }
}

}  // namespace

std::string name_of(const Request& request) noexcept {
  try {
    const std::string kind(to_string(request.kind));
    return request.name.empty() ? kind + " without a name" : kind + " '" + request.name + "'";
  } catch (...) {
    return "operation";  // needs no memory
  }
}

void OpenGroup::add(Request request, std::shared_ptr<WorkRecord> record) {
  const std::lock_guard lock(mutex_);
  if (dropped_) std::rethrow_exception(dropped_);
  members_.push_back({std::move(request), std::move(record)});
}

void OpenGroup::end(WorkRecord& whole) {
  std::vector<Member> members;
  {
    const std::lock_guard lock(mutex_);
    if (dropped_) std::rethrow_exception(dropped_);
    ended_ = true;
    members.swap(members_);
  }
  std::vector<Work> works;
  std::vector<std::vector<Work>> parts;
  try {
    std::vector<Request> requests;
    parts.resize(members.size());
    for (std::size_t i = 0; i < members.size(); ++i) {
      requests.push_back(std::move(members[i].request));
      parts[i].reserve(1);  // what comes after the start needs no memory
    }
    if (!requests.empty()) works = ronde::submit_group(std::move(requests));
  } catch (...) {
    for (const Member& member : members) member.record->fail(std::current_exception(), {});
    throw;
  }
  for (std::size_t i = 0; i < members.size(); ++i) {
    parts[i].push_back(works[i]);
    members[i].record->start(std::move(parts[i]));
  }
  whole.start(std::move(works));
}

bool OpenGroup::drop(const char* text, Reported reported) noexcept {
  std::vector<Member> members;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    if (ended_ || dropped_) return false;
    dropped_ = error = usage_error(text);
    members.swap(members_);
  }
  for (const Member& member : members) {
    member.record->fail(error, reported == Reported::Yes ? std::string() : name_of(member.request));
  }
  return true;
}

namespace {

/// The open groups of all threads, which a shutdown drops. Never destroyed.
struct Registry {
  std::mutex mutex;
  std::vector<std::weak_ptr<OpenGroup>> groups;  ///< guarded by mutex; some have expired
};

Registry& registry() {
  static auto* const instance = new Registry();
  return *instance;
}

struct GroupOfThread {
  std::shared_ptr<OpenGroup> group = {};

  ~GroupOfThread() {
    if (!group) return;
    group->drop("the thread that began the group ended without ronde_group_end()",
                OpenGroup::Reported::No);
  }
};

GroupOfThread& of_thread() {
  ronde_last_error();  // constructs it first: it has to outlive the group, which may fail works
  thread_local GroupOfThread group;
  return group;
}

}  // namespace

GroupOfCallback::GroupOfCallback() noexcept : of_thread_(std::move(of_thread().group)) {}

GroupOfCallback::~GroupOfCallback() {
  const auto left_open = std::exchange(of_thread().group, std::move(of_thread_));
  if (!left_open) return;
  left_open->drop("the callback that began the group returned without ronde_group_end()",
                  OpenGroup::Reported::No);
}

void begin_group(ProcessSet set) {
  if (of_thread().group) {
    throw Failure(RONDE_E_USAGE, "this thread has a group open, for process set " +
                                     std::to_string(number_of(of_thread().group->set())) +
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

void end_of_world(const char* function, ProcessSet world, const std::function<void()>& shut_down) {
  const std::string text =
      std::string("the group was left open when ") + function + "() was called";
  Registry& all = registry();
  std::vector<std::weak_ptr<OpenGroup>> groups;
  {
    const std::lock_guard lock(all.mutex);
    groups = all.groups;
  }
  std::size_t dropped = 0;
  for (const auto& each : groups) {
    const auto group = each.lock();
    const bool belongs = group && group->set().world == world.world;
    if (belongs && group->drop(text.c_str(), OpenGroup::Reported::Yes)) ++dropped;
  }
  shut_down();
  if (dropped == 0) return;
  throw Failure(RONDE_E_USAGE, std::to_string(dropped) +
                                   " group(s) were left open, and their works have failed; all "
                                   "else has ended well. Call ronde_group_end() before");
}

}  // namespace ronde::c

using namespace ronde::c;

int ronde_group_begin(uint32_t set) {
  return guarded("ronde_group_begin", [&] {
    const ronde::ProcessSet wanted = set_of(set);
    if (!ronde::rank_in(wanted)) {  // throws where there is no such set
      throw Failure(RONDE_E_NOT_A_MEMBER, "this rank is not in process set " + std::to_string(set));
    }
    begin_group(wanted);
  });
}

int ronde_group_end(ronde_work* work) {
  if (work != nullptr) *work = nullptr;
  return guarded("ronde_group_end", [&] {
    expect(work != nullptr, "work is NULL");
    const auto whole = std::make_shared<WorkRecord>(std::nullopt, nullptr);
    *work = works().insert_if(whole, [&] { take_group()->end(*whole); });
  });
}

int ronde_group_cancel(void) {
  return guarded("ronde_group_cancel", [] {
    take_group()->drop("its group was dropped by ronde_group_cancel()", OpenGroup::Reported::Yes);
  });
}
