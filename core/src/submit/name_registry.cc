// SPDX-License-Identifier: Apache-2.0
// The key of an operation is its name, or the number of its call among those without one: of all
// collectives of the set, or of all messages. A group has the first of its members' names, or one
// number for all of them.
#include "core/src/submit/name_registry.h"

#include <algorithm>

#include "core/src/submit/engine_scope.h"
#include "ronde/error.h"

namespace ronde {
namespace {

/// Sorts the members in the same order on every rank: by name, and those without one by their
/// calls.
void sort_members(Submission& group) {
  const auto comes_first = [](const Submission& a, const Submission& b) {
    if (is_unnamed(a.key) || is_unnamed(b.key)) return !is_unnamed(a.key) && is_unnamed(b.key);
    return a.key < b.key;
  };
  std::stable_sort(group.members.begin(), group.members.end(), comes_first);
  if (!is_unnamed(group.key)) group.request.name = group.key;
  for (Submission& member : group.members) {
    group.meta.members.push_back(member.meta);
    group.meta.members.back().name = member.request.name;
  }
}

std::string text_of(const Submission& submission) {
  const bool is_group = submission.is_group();
  const Submission& shown = is_group ? submission.members.front() : submission;
  return (is_group ? "the group with " : "") + display_name(shown.meta, shown.request.name);
}

thread_local bool this_thread_ends = false;  // needs no destructor, so that it can be asked there

struct LivingThread {
  const std::shared_ptr<const char> token = std::make_shared<const char>();
  ~LivingThread() { this_thread_ends = true; }
};

/// The calling thread is `owner`; it becomes the owner if there is none any more.
bool is_this_thread(std::weak_ptr<const void>& owner) {
  if (this_thread_ends) return owner.expired();
  thread_local const LivingThread thread;
  const bool is_owner = !owner.owner_before(thread.token) && !thread.token.owner_before(owner);
  if (is_owner || !owner.expired()) return is_owner;
  owner = thread.token;
  return true;
}

}  // namespace

/// Note [Who calls without a name].
void NameRegistry::expect_order(SetState& state, const Submission& submission) {
  const bool in_callback = EngineScope::is_inside();
  if (!in_callback && is_this_thread(state.caller_without_names)) return;
  throw UsageError(
      text_of(submission) + " is matched by the order of calls, " +
      (in_callback ? "in which callbacks have no certain place. Give those of callbacks a name"
                   : "which is that of another thread of this rank until it ends. Give those of "
                     "other threads a name"));
}

/// Takes the key of the operation, or those of all members of a group, and their names.
void NameRegistry::reserve(Submission& submission) {
  SetState* const state = state_of(submission.meta.set);
  if (state == nullptr || !state->is_open) {
    throw UsageError(text_of(submission) + ": the set is being removed");
  }
  if (state->has_joined) {
    throw UsageError(text_of(submission) +
                     ": this rank has joined, and can submit nothing more until all ranks have: "
                     "wait for the join first");
  }
  state->has_joined = submission.meta.kind == Collective::Join;
  if (state->has_joined) ++state->joins;
  submission.unnamed_before = state->unnamed;
  if (!submission.is_group()) {
    submission.key = next_key(*state, submission);
    return take_name(*state, submission);
  }
  take_keys(*state, submission);
  sort_members(submission);
}

/// A group without any name takes one number, however many operations are in it: where groups
/// differ between ranks, the numbers of what follows do not. Members without a name are told apart
/// on this rank alone.
void NameRegistry::take_keys(SetState& state, Submission& group) {
  std::string base;
  for (const Submission& member : group.members) {
    const std::string& name = member.request.name;
    if (!name.empty() && (base.empty() || name < base)) base = name;
  }
  if (base.empty()) expect_order(state, group);
  group.key = base.empty() ? unnamed_key(state.unnamed) : base;
  std::size_t taken = 0;
  std::size_t unnamed = 0;
  try {
    for (Submission& member : group.members) {
      const std::string& name = member.request.name;
      member.key = name.empty() ? member_key(group.key, unnamed++) : name;
      take_name(state, member);
      ++taken;
    }
  } catch (...) {
    for (std::size_t i = 0; i < taken; ++i) state.in_flight.erase(group.members[i].key);
    throw;
  }
  if (is_unnamed(group.key)) ++state.unnamed;
}

NameRegistry::SetState* NameRegistry::state_of(std::uint32_t set) {
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : &found->second;
}

void NameRegistry::take_name(SetState& state, const Submission& submission) {
  if (state.in_flight.emplace(submission.key, submission.meta.kind).second) return;
  throw UsageError(display_name(submission.meta, submission.key) +
                       " is still in flight: wait for it before using its name again, or give the "
                       "second operation another name",
                   UsageError::Kind::DuplicateName);
}

std::string NameRegistry::next_key(SetState& state, const Submission& submission) {
  const Request& request = submission.request;
  if (request.kind == Collective::Join) return join_key();
  if (is_point_to_point(request.kind)) return message_key(state.messages++);
  if (!request.name.empty()) return request.name;
  expect_order(state, submission);
  return unnamed_key(state.unnamed++);
}

void NameRegistry::release(std::uint32_t set, const std::string& key) {
  SetState* const state = state_of(set);
  if (state == nullptr) return;
  state->in_flight.erase(key);
  if (is_join(key)) state->has_joined = false;
}

std::uint64_t NameRegistry::joins(std::uint32_t set) const {
  const auto found = sets_.find(set);
  return found == sets_.end() ? 0 : found->second.joins;
}

std::vector<std::string> NameRegistry::close_set(std::uint32_t set) {
  std::vector<std::string> names;
  SetState* const state = state_of(set);
  if (state == nullptr || !state->is_open) {
    throw UsageError("process set " + std::to_string(set) +
                     " is being removed by another thread of this rank");
  }
  state->is_open = false;
  for (const auto& [key, kind] : state->in_flight) names.push_back(display_name(kind, key));
  std::ranges::sort(names);
  return names;
}

}  // namespace ronde
