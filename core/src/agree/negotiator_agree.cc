// SPDX-License-Identifier: Apache-2.0
// Decides whether the requests of all ranks can be one operation, and what is agreed then. If a
// rank refuses its part, nothing else is compared. The requests must be equal, except for the first
// dimension of allgathers and alltoalls. A group is compared member by member, so that an error
// names the member that differs. An agreed operation gets a slot of the response cache: from then
// on a bit announces it.
#include <algorithm>
#include <limits>
#include <map>

#include "core/src/agree/negotiator.h"

namespace ronde {
namespace {

/// Returns whether the two requests can be one operation.
bool compatible(const OpSpec& first, const OpSpec& other) {
  if (first.is_group() || other.is_group()) {
    return std::ranges::equal(first.members, other.members, [](const OpSpec& a, const OpSpec& b) {
      return a.name == b.name && compatible(a, b);
    });
  }
  const bool may_differ = has_own_rows(first.kind) && first.kind == other.kind;
  if (!may_differ || first.shape.empty() || other.shape.empty()) return first == other;
  OpSpec same_rows = other;
  same_rows.shape[0] = first.shape[0];
  same_rows.has_splits = first.has_splits;
  same_rows.splits = first.splits;
  return first == same_rows;
}

/// Returns the member's name, or its key by its number among the members without one, for texts.
std::string key_of_member(const OpSpec& group, std::size_t member) {
  const std::string& name = group.members.at(member).name;
  return name.empty() ? unnamed_key(number_without_name(group, member)) : name;
}

}  // namespace

Response Negotiator::agree(const std::string& key, const Pending& pending) {
  Response response;
  response.key = key;
  if (Problem error = disagreement(key, pending)) {
    response.error = *std::move(error);
    counters_.refused.add();
    record_refusal_of_group(key, pending, response.error);
    return response;
  }
  set_agreed(response, pending.parts[0].spec, pending);
  response.slot = choose_slot(key);
  if (response.slot >= 0) {
    const auto slot = static_cast<std::uint32_t>(response.slot);
    last_used_[slot] = decisions_ + 1;
    slots_.assign(slot, response.spec->name, decisions_ + 1);
    cache_.put(slot, {response.spec, SharedRows(response.rows)});
  }
  return response;
}

void Negotiator::set_agreed(Response& response, SpecPtr spec, const Pending& pending) {
  response.spec = std::move(spec);
  response.rows = rows_of(pending);
  response.contributed = contributed(pending);
  response.digest = digest_of(pending);
  counters_.agreed_in_full.add();
}

Negotiator::Pending Negotiator::member_of(const Pending& group, std::size_t member) {
  Pending pending;
  for (const Part& part : group.parts) {
    Part& its_part = pending.parts.emplace_back();
    its_part.stands_in = part.stands_in;
    its_part.spec = ronde::member_of(part.spec, member);
  }
  return pending;
}

RankRows Negotiator::rows_of(const Pending& pending) {
  RankRows rows;
  const OpSpec& first = *pending.parts[0].spec;
  for (std::size_t i = 0; i < first.members.size(); ++i) {
    rows.members.push_back(rows_of(member_of(pending, i)));
  }
  if (!has_own_rows(first.kind)) return rows;
  for (const Part& part : pending.parts) {
    rows.first_dims.push_back(part.spec->has_splits ? kHasSplits : part.spec->shape[0]);
  }
  return rows;
}

Problem Negotiator::disagreement(const std::string& key, const Pending& pending) const {
  Problem text = refusal(key, pending);
  if (!text) text = mismatch(key, pending);
  return text ? text : impossibility(key, pending);
}

/// Returns the text for an operation, or members of a group, that some ranks refuse. Groups need
/// not be alike, as a rank that cannot do its part may not know the others' parts.
Problem Negotiator::refusal(const std::string& key, const Pending& pending) const {
  std::map<std::string, std::vector<int>> ranks_of;
  for (int rank = 0; rank < size_; ++rank) {
    const Part& part = pending.parts[index(rank)];
    if (part.stands_in) continue;
    if (!part.spec->refusal.empty()) ranks_of[part.spec->refusal].push_back(rank);
    for (std::size_t i = 0; i < part.spec->members.size(); ++i) {
      const OpSpec& member = part.spec->members[i];
      if (member.refusal.empty()) continue;
      const std::string name = display_name(member.kind, key_of_member(*part.spec, i));
      ranks_of[name + ": " + member.refusal].push_back(rank);
    }
  }
  if (ranks_of.empty()) return std::nullopt;
  // A rank that refuses may not know the kind of the operation.
  const auto knows = [](const Part& part) { return part.spec->refusal.empty(); };
  const auto shown = std::ranges::find_if(pending.parts, knows);
  const Part& part = shown != pending.parts.end() ? *shown : pending.parts.front();
  return display_name(*part.spec, key) + " was refused:" + listed(ranks_of);
}

/// Returns why an operation on which the ranks agree is impossible, with the ranks concerned.
Problem Negotiator::impossibility(const std::string& key, const Pending& pending) const {
  const OpSpec& first = *pending.parts[0].spec;
  const std::string name = display_name(first, key);
  for (std::size_t i = 0; i < first.members.size(); ++i) {
    const Problem error = impossibility(key_of_member(first, i), member_of(pending, i));
    if (error) return name + ": " + *error;
  }
  if (first.is_group()) return std::nullopt;
  const std::string error_of_first = validate_(first).value_or("");
  const auto error_of = [&](const Part& part) {
    return *part.spec == first ? error_of_first : validate_(*part.spec).value_or("");
  };
  const auto is_alike = [&](const Part& part) { return error_of(part) == error_of_first; };
  if (!std::ranges::all_of(pending.parts, is_alike)) {
    return name + " is impossible:" + listed(pending, error_of);
  }
  if (!error_of_first.empty()) return name + ": " + error_of_first;
  Problem error = error_of_all_rows(pending);
  if (error) error->insert(0, name + ": ");
  return error;
}

/// Checks the total of the rows of all ranks, if they are known.
Problem Negotiator::error_of_all_rows(const Pending& pending) const {
  const OpSpec& first = *pending.parts[0].spec;
  if (!has_own_rows(first.kind)) return std::nullopt;
  const RankRows rows = rows_of(pending);
  if (rows.has_splits()) return std::nullopt;
  std::vector<std::int64_t> together = first.shape;
  together[0] = total_rows(rows.first_dims);
  const bool overflows = together[0] == std::numeric_limits<std::int64_t>::max();
  const Problem error =
      overflows ? "too many, 2^63 - 1 or more" : shape_error(together, first.dtype);
  if (!error) return std::nullopt;
  return "the rows of all ranks together: " + *error +
         listed(pending, [](const Part& part) { return to_string(part.spec->shape); });
}

Problem Negotiator::mismatch(const std::string& key, const Pending& pending) const {
  const OpSpec& first = *pending.parts[0].spec;
  const auto fits = [&](const Part& part) { return compatible(first, *part.spec); };
  if (std::ranges::all_of(pending.parts, fits)) return std::nullopt;
  const auto has_same_names = [&](const Part& part) {
    return std::ranges::equal(first.members, part.spec->members, {}, &OpSpec::name, &OpSpec::name);
  };
  if (first.is_group() && std::ranges::all_of(pending.parts, has_same_names)) {
    for (std::size_t i = 0; i < first.members.size(); ++i) {
      const Problem text = mismatch(key_of_member(first, i), member_of(pending, i));
      if (text) return display_name(first, key) + ": " + *text;
    }
  }
  std::string text = display_name(first, key) + " differs between ranks:";
  text += listed(pending, [](const Part& part) { return to_string(*part.spec); });
  text += "\nEvery rank must submit the same operation";
  text +=
      is_unnamed(key) ? "; give it a name if ranks call in different orders" : " under this name";
  return text;
}

}  // namespace ronde
