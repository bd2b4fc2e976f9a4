// SPDX-License-Identifier: Apache-2.0
// The key of an operation is its name, or the number of its call among those without one: of all
// collectives of the set, or of all messages. A group has the first of its members' names, or one
// number for all of them.
#include "core/src/op/in_flight.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/src/base/caller.h"
#include "ronde/error.h"

namespace ronde {
namespace {

std::string text_of(const Submission& submission) {
  const bool is_group = submission.is_group();
  const OpSpec& shown = is_group ? submission.members.front().spec() : submission.spec();
  return (is_group ? "the group with " : "") + display_name(shown, shown.name);
}

/// Idle ranges are forgotten once more than this, plus twice those in flight, are known: some MiB.
constexpr std::size_t kMostIdle = 16384;

std::string name_of(const OpKey& key) {
  return display_name(key.spec->kind, key.text());
}

}  // namespace

/// Note [Who calls without a name].
void NameRegistry::expect_order(SetState& state, const Submission& submission) {
  if (submission.caller_orders) return;
  const bool in_callback = EngineScope::is_inside();
  if (!in_callback && is_this_thread(state.caller_without_names)) return;
  throw UsageError(
      text_of(submission) + " is matched by the order of calls, " +
      (in_callback ? "in which callbacks have no certain place. Give those of callbacks a name"
                   : "which is that of another thread of this rank until it ends. Give those of "
                     "other threads a name, or set caller_orders if the program itself orders "
                     "the calls of its threads"));
}

/// Returns the state of an open set. `operation` returns the text of the operation for the error.
template <typename TextOf>
NameRegistry::SetState& NameRegistry::open_state(std::uint32_t set, const TextOf& operation) {
  SetState* const state = state_of(set);
  if (state == nullptr) {
    throw UsageError(operation() + ": the set was removed", UsageError::Kind::UnknownProcessSet);
  }
  if (!state->is_open) throw UsageError(operation() + ": the set is being removed");
  return *state;
}

void NameRegistry::reserve(Submission& submission) {
  SetState& state = open_state(submission.spec().set, [&] { return text_of(submission); });
  if (state.has_joined) {
    throw UsageError(text_of(submission) +
                     ": this rank has joined, and can submit nothing more until all ranks have: "
                     "wait for the join first");
  }
  state.has_joined = submission.spec().kind == Collective::Join;
  if (state.has_joined) ++state.joins;
  submission.unnamed_before = state.unnamed;
  if (submission.is_group()) return reserve_keys(state, submission);
  submission.key.number = next_number(state, submission);
  reserve_name(state, submission);
}

/// A group without any name takes one number, however many operations are in it: where groups
/// differ between ranks, the numbers of what follows do not. Members without a name are told apart
/// on this rank alone.
void NameRegistry::reserve_keys(SetState& state, Submission& group) {
  if (group.spec().name.empty()) {
    expect_order(state, group);
    group.key.number = unnamed_key(state.unnamed++);
  }
  std::size_t unnamed = 0;
  for (Submission& member : group.members) {
    if (member.spec().name.empty()) {
      member.key.number = member_key(group.key.text(), unnamed++);
    }
    reserve_name(state, member);
  }
}

void NameRegistry::cancel(Submission& submission) {
  SetState* const state = state_of(submission.spec().set);
  if (state == nullptr) return;
  for_each_operation(submission, [&](Submission& operation) { release_name(*state, operation); });
  if (is_unnamed(submission.key.number)) --state->unnamed;
  if (is_message(submission.key.number)) --state->messages;
}

NameRegistry::SetState* NameRegistry::state_of(std::uint32_t set) {
  const auto found = sets_.find(set);
  return found == sets_.end() ? nullptr : &found->second;
}

void NameRegistry::reserve_name(SetState& state, Submission& submission) {
  NameUse& use =
      submission.name_use != nullptr ? *submission.name_use : state.names[submission.key];
  submission.holds_name = !std::exchange(use.is_in_flight, true);
  if (submission.holds_name) {
    use.kind = submission.spec().kind;
    return;
  }
  throw UsageError(display_name(submission.key) +
                       " is still in flight: wait for it before using its name again, or give the "
                       "second operation another name",
                   UsageError::Kind::DuplicateName);
}

void NameRegistry::release_name(SetState& state, Submission& submission) {
  if (!std::exchange(submission.holds_name, false)) return;
  if (submission.name_use != nullptr && submission.name_use->prepared > 0) {
    submission.name_use->is_in_flight = false;
    return;
  }
  const auto found = state.names.find(std::string_view(submission.key.text()));
  if (found == state.names.end()) return;
  found->second.is_in_flight = false;
  if (found->second.prepared == 0) state.names.erase(found);
}

NameUse* NameRegistry::prepare(const SpecPtr& spec) {
  SetState& state = open_state(spec->set, [&] { return display_name(*spec, spec->name); });
  if (spec->name.empty()) return nullptr;
  NameUse& use = state.names[OpKey{spec, {}}];
  ++use.prepared;
  return &use;
}

void NameRegistry::unprepare(const SpecPtr& spec) {
  SetState* const state = state_of(spec->set);
  if (state == nullptr || spec->name.empty()) return;
  const auto found = state->names.find(std::string_view(spec->name));
  if (--found->second.prepared == 0 && !found->second.is_in_flight) state->names.erase(found);
}

/// Returns the OpKey::number of the operation.
std::string NameRegistry::next_number(SetState& state, const Submission& submission) {
  const OpSpec& spec = submission.spec();
  if (spec.kind == Collective::Join) return join_key();
  if (is_point_to_point(spec.kind)) return message_key(state.messages++);
  if (!spec.name.empty()) return {};
  expect_order(state, submission);
  return unnamed_key(state.unnamed++);
}

void NameRegistry::release(Submission& submission) {
  SetState* const state = state_of(submission.spec().set);
  if (state == nullptr) return;
  release_name(*state, submission);
  if (submission.spec().kind == Collective::Join) state->has_joined = false;
}

std::vector<std::string> NameRegistry::close_set(std::uint32_t set) {
  std::vector<std::string> names;
  SetState* const state = state_of(set);
  if (state == nullptr || !state->is_open) {
    throw UsageError("process set " + std::to_string(set) +
                     " is being removed by another thread of this rank");
  }
  state->is_open = false;
  for (const auto& [key, use] : state->names) {
    if (use.is_in_flight) names.push_back(display_name(use.kind, key.text()));
  }
  std::ranges::sort(names);
  return names;
}

void MemoryInFlight::enter(Submission& submission) try {
  for (Submission& member : submission.members) enter_one(member);
  if (!submission.is_group()) enter_one(submission);
} catch (...) {
  for (Submission& member : submission.members) leave(member);
  leave(submission);
  throw;
}

void MemoryInFlight::enter_one(Submission& submission) {
  const Start& start = submission.start;
  auto* use = submission.memory.begin();
  const auto enter = [&](const MemoryRange& range) {
    if (range.begin < range.end) *use++ = enter_range(submission, range);
  };
  const auto whole = [](const void* memory, std::size_t bytes, bool is_written) {
    const auto begin = reinterpret_cast<std::uintptr_t>(memory);
    return begin == 0 ? MemoryRange{} : MemoryRange{begin, begin + bytes, is_written};
  };
  const MemoryRange output = whole(start.output, submission.output_bytes, true);
  enter(output);
  enter(whole(start.written.data(), start.written.size(), true));
  if (!start.contributes) return;
  // The input before the output, and behind it.
  const MemoryRange input = whole(start.input, submission.input_bytes, false);
  enter({input.begin, std::min(input.end, output.begin)});
  enter({std::max(input.begin, output.end), input.end});
}

MemoryUse* MemoryInFlight::enter_range(const Submission& submission, const MemoryRange& range) {
  MemoryUse* use = last_ != nullptr ? last_->next : nullptr;
  const bool is_next =
      use != nullptr && !use->is_in_flight && use->begin == range.begin && use->end == range.end;
  if (!is_next) use = find(submission, range);
  for (const MemoryUse& other : apart_) compare(submission, range, other);
  if (use == nullptr) {
    use = &apart_.emplace_back();
    use->is_apart = true;
  } else {
    ++in_flight_;
    if (last_ != nullptr) last_->next = use;
    last_ = use;
  }
  static_cast<MemoryRange&>(*use) = range;
  use->is_in_flight = true;
  use->key = submission.key;
  return use;
}

/// Returns the range among those that are known; null if it is to be kept apart.
MemoryUse* MemoryInFlight::find(const Submission& submission, const MemoryRange& range) {
  auto position = known_.upper_bound(range.begin);
  if (position != known_.begin() && std::prev(position)->end > range.begin) --position;
  MemoryUse* idle = nullptr;
  bool is_read = false;
  while (position != known_.end() && position->begin < range.end) {
    if (position->is_in_flight) {
      compare(submission, range, *position);
      is_read = true;
      ++position;
    } else if (idle == nullptr) {
      idle = &at(position++);
    } else {
      position = forget(position);
    }
  }
  if (is_read) return nullptr;
  if (idle == nullptr) return insert(position, range);
  // Neither the idle range nor this one overlaps another, so the order of the set stays.
  static_cast<MemoryRange&>(*idle) = range;
  return idle;
}

/// Throws if the ranges overlap and one of them is written.
void MemoryInFlight::compare(const Submission& submission, const MemoryRange& range,
                             const MemoryUse& other) {
  const bool overlap = other.is_in_flight && range.begin < other.end && other.begin < range.end;
  if (!overlap || !(range.is_written || other.is_written)) return;
  throw UsageError(name_of(submission.key) +
                   (range.is_written ? " writes its result to" : " reads") + " memory that " +
                   name_of(other.key) + (other.is_written ? " writes its result to" : " reads") +
                   " and that is still in flight: wait for that operation first, or give each "
                   "memory of its own (list a tensor once in a group)");
}

MemoryUse* MemoryInFlight::insert(Known::iterator before, const MemoryRange& range) {
  if (known_.size() >= 2 * in_flight_ + kMostIdle) {
    for (auto position = known_.begin(); position != known_.end();) {
      position = position->is_in_flight ? std::next(position) : forget(position);
    }
    before = known_.upper_bound(range.begin);
  }
  if (forgotten_.empty()) return &at(known_.insert(before, MemoryUse{range}));
  Known::node_type node = std::move(forgotten_.back());
  forgotten_.pop_back();
  static_cast<MemoryRange&>(node.value()) = range;
  return &at(known_.insert(before, std::move(node)));
}

MemoryInFlight::Known::iterator MemoryInFlight::forget(Known::iterator position) {
  const auto next = std::next(position);
  at(position).begin = at(position).end = 0;
  forgotten_.push_back(known_.extract(position));
  return next;
}

void MemoryInFlight::leave(Submission& submission) noexcept {
  for (MemoryUse*& place : submission.memory) {
    MemoryUse* const use = std::exchange(place, nullptr);
    if (use == nullptr) continue;
    if (use->is_apart) {
      apart_.remove_if([use](const MemoryUse& each) { return &each == use; });
    } else {
      use->is_in_flight = false;
      --in_flight_;
    }
  }
}

}  // namespace ronde
