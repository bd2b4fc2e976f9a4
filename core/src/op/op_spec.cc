// SPDX-License-Identifier: Apache-2.0
#include "core/src/op/op_spec.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <utility>

#include "ronde/division.h"

namespace ronde {
namespace {

SpecPool* pool_of_ranks = nullptr;

/// "to rank 2 (tag 5)" or "from any rank (tag 5)".
std::string counterpart(const OpSpec& spec) {
  std::string text = spec.kind == Collective::Send ? "to " : "from ";
  text += spec.peer == kAnyRank ? "any rank" : "rank " + std::to_string(spec.peer);
  return text + " (tag " + std::to_string(spec.tag) + ")";
}

/// "[*, 3]" where the rows are each rank's own.
std::string shape_text(const OpSpec& spec) {
  std::string text = to_string(spec.shape);
  if (spec.has_splits) text.replace(1, 1, "*");
  return text;
}

std::string set_text(const OpSpec& spec) {
  return spec.set == 0 ? "" : " in process set " + std::to_string(spec.set);
}

/// "number 3 without a name"
std::string number_text(const std::string& key) {
  // The NUL byte before a member's number; 0 for a key of no member.
  const std::size_t end = key.rfind('\0');
  std::string text = "number " + key.substr(end + 1) + " without a name";
  if (end == 0) return text;
  const std::string group = key.substr(1, end - 1);
  return text + " in the group " +
         (is_unnamed(group) ? number_text(group) : "with '" + group + "'");
}

}  // namespace

OpSpec spec_of(const Request& request) {
  OpSpec spec;
  spec.kind = request.kind;
  spec.device = request.device.kind;
  spec.set = request.set.id;
  if (!is_point_to_point(request.kind)) spec.name = request.name;
  spec.refusal = request.refusal;
  if (moves_no_data(request.kind)) return spec;
  spec.dtype = request.dtype;
  spec.shape = request.shape;
  if (has_root(request.kind)) spec.root = request.root;
  if (request.kind == Collective::Alltoall) spec.splits = request.splits;
  if (is_point_to_point(request.kind)) {
    spec.peer = request.peer;
    spec.tag = request.tag;
  }
  if (is_reduction(request.kind)) {
    spec.op = request.op;
    spec.prescale = request.prescale;
    spec.postscale = request.postscale;
    if (request.wire_dtype != request.dtype) spec.wire_dtype = request.wire_dtype;
  }
  return spec;
}

SpecPtr share(OpSpec spec) {
  std::size_t& hash = spec.hash.value;
  hash = std::hash<std::string_view>()(spec.name);
  const auto add = [&hash](std::uint64_t value) {
    hash = (hash ^ static_cast<std::size_t>(value)) * 0x9e3779b97f4a7c15;
  };
  add(spec.set);
  add(static_cast<std::uint64_t>(spec.kind));
  add(static_cast<std::uint64_t>(spec.dtype));
  add(std::hash<std::string_view>()(spec.refusal));
  for (const std::int64_t dimension : spec.shape) add(static_cast<std::uint64_t>(dimension));
  for (const OpSpec& member : spec.members) {
    add(std::hash<std::string_view>()(member.name));
    add(std::hash<std::string_view>()(member.refusal));
    for (const std::int64_t dimension : member.shape) add(static_cast<std::uint64_t>(dimension));
  }
  auto shared = std::make_shared<const OpSpec>(std::move(spec));
  return pool_of_ranks == nullptr ? shared : *pool_of_ranks->insert(std::move(shared)).first;
}

void share_among_ranks(SpecPool* pool) noexcept {
  pool_of_ranks = pool;
}

Problem shape_error(const std::vector<std::int64_t>& shape, DataType dtype) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;
  if (std::ranges::any_of(shape, [](std::int64_t dimension) { return dimension < 0; })) {
    return "shape " + to_string(shape) + " has a negative dimension";
  }
  if (std::ranges::find(shape, 0) != shape.end()) return std::nullopt;
  std::uint64_t bytes = size_of(dtype);
  for (const std::int64_t dimension : shape) {
    if (static_cast<std::uint64_t>(dimension) > kMostBytes / bytes) {
      return "shape " + to_string(shape) + " has more than 2^62 bytes";
    }
    bytes *= static_cast<std::uint64_t>(dimension);
  }
  return std::nullopt;
}

std::string to_string(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string to_string(const OpSpec& spec) {
  std::ostringstream text;
  if (spec.is_group()) {
    text << "a group of " << spec.members.size() << ':';
    for (const OpSpec& member : spec.members) {
      text << (&member == &spec.members.front() ? " " : "; ");
      if (!member.name.empty()) text << "'" << member.name << "' ";
      text << to_string(member);
    }
    return text.str();
  }
  text.precision(std::numeric_limits<double>::max_digits10);
  text << to_string(spec.kind);
  if (!moves_no_data(spec.kind)) {
    text << ' ' << to_string(spec.dtype) << ' ' << shape_text(spec);
  }
  if (spec.wire_dtype) text << " as " << to_string(*spec.wire_dtype);
  if (!spec.splits.empty()) text << " splits " << to_string(spec.splits);
  if (spec.has_splits) text << " with splits";
  if (is_reduction(spec.kind)) {
    text << ' ' << to_string(spec.op);
    if (spec.prescale != 1.0) text << " prescale " << spec.prescale;
    if (spec.postscale != 1.0) text << " postscale " << spec.postscale;
  }
  if (has_root(spec.kind)) text << " root " << spec.root;
  if (is_point_to_point(spec.kind)) text << ' ' << counterpart(spec);
  text << " on " << to_string(spec.device);
  if (spec.symmetric()) text << " at " << spec.symmetric_place - 1 << " of the symmetric heap";
  text << set_text(spec);
  if (!spec.refusal.empty()) text << ", refused: " << spec.refusal;
  return text.str();
}

std::string display_name(Collective kind, const std::string& key) {
  std::string text(to_string(kind));
  if (kind == Collective::Join) return text;
  if (key.empty()) return text + " without a name";
  if (is_message(key)) return text + " number " + key.substr(1);
  if (is_unnamed(key)) return text + ' ' + number_text(key);
  return text + " '" + key + "'";
}

std::string display_name(const OpSpec& spec, const std::string& key) {
  std::string text;
  if (spec.is_group()) {
    text = "the group of " + std::to_string(spec.members.size()) + " operations";
    text += is_unnamed(key) ? ", " + number_text(key) : " with '" + key + "'";
  } else if (is_point_to_point(spec.kind)) {
    text = std::string(to_string(spec.kind)) + ' ' + counterpart(spec);
  } else {
    text = display_name(spec.kind, key);
  }
  return text + set_text(spec);
}

std::string first_few(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  if (names.size() > kMost) text += " and " + std::to_string(names.size() - kMost) + " more";
  return text;
}

std::vector<std::int64_t> scattered_rows(std::int64_t rows, int size) {
  const auto counts = even_counts(static_cast<std::size_t>(rows), static_cast<std::size_t>(size));
  return {counts.begin(), counts.end()};
}

Problem splits_error(const OpSpec& spec, int size) {
  const std::int64_t rows = spec.shape.at(0);
  const std::vector<std::int64_t>& splits = spec.splits;
  if (splits.empty()) {
    if (rows % size == 0) return std::nullopt;
    return "the first dimension of " + to_string(spec.shape) + " cannot be divided evenly among " +
           std::to_string(size) + " ranks; give splits";
  }
  if (splits.size() != static_cast<std::size_t>(size)) {
    return std::to_string(splits.size()) + " splits were given for " + std::to_string(size) +
           " ranks; give one for each rank";
  }
  if (std::ranges::any_of(splits, [](std::int64_t split) { return split < 0; })) {
    return "splits " + to_string(splits) + " have a negative number";
  }
  if (total_rows(splits) != rows) {
    return "splits " + to_string(splits) + " do not add up to the first dimension of " +
           to_string(spec.shape);
  }
  return std::nullopt;
}

void leave_out_rows(OpSpec& spec, int size) {
  if (spec.splits.empty() || spec.shape.empty()) return;
  if (shape_error(spec.shape, spec.dtype) || splits_error(spec, size)) return;
  spec.has_splits = true;
  spec.splits.clear();
  spec.shape[0] = 0;
}

bool RankRows::empty() const {
  return first_dims.empty() && std::ranges::all_of(members, &RankRows::empty);
}

SharedRows::SharedRows(RankRows rows)
    : rows_(rows.empty() ? nullptr : std::make_shared<const RankRows>(std::move(rows))) {}

SharedRows SharedRows::member(std::size_t index) const {
  SharedRows of_member;
  if (rows_) of_member.rows_ = {rows_, &rows_->members.at(index)};
  return of_member;
}

std::int64_t total_rows(const std::vector<std::int64_t>& rows) noexcept {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  std::int64_t total = 0;
  for (const std::int64_t more : rows) total = more > kMost - total ? kMost : total + more;
  return total;
}

}  // namespace ronde
