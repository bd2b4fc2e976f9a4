// SPDX-License-Identifier: Apache-2.0
#include "core/src/submit/request_meta.h"

#include <limits>
#include <sstream>

namespace ronde {
namespace {

/// "to rank 2 (tag 5)" or "from any rank (tag 5)".
std::string counterpart(const RequestMeta& meta) {
  std::string text = meta.kind == Collective::Send ? "to " : "from ";
  text += meta.peer == kAnyRank ? "any rank" : "rank " + std::to_string(meta.peer);
  return text + " (tag " + std::to_string(meta.tag) + ")";
}

/// "[*, 3]" where the rows are each rank's own.
std::string shape_text(const RequestMeta& meta) {
  std::string text = to_string(meta.shape);
  if (meta.has_splits) text.replace(1, 1, "*");
  return text;
}

std::string set_text(const RequestMeta& meta) {
  return meta.set == 0 ? "" : " in process set " + std::to_string(meta.set);
}

/// The NUL byte in front of a member's number; that in front of another key is the first.
std::size_t end_of_group(const std::string& key) {
  return key.rfind('\0');
}

/// "number 3 without a name"
std::string number_text(const std::string& key) {
  const std::size_t end = end_of_group(key);
  std::string text = "number " + key.substr(end + 1) + " without a name";
  if (end == 0) return text;
  const std::string group = key.substr(1, end - 1);
  return text + " in the group " +
         (is_unnamed(group) ? number_text(group) : "with '" + group + "'");
}

}  // namespace

RequestMeta meta_of(const Request& request) {
  RequestMeta meta;
  meta.kind = request.kind;
  meta.device = request.device.kind;
  meta.set = request.set.id;
  if (moves_no_data(request.kind)) return meta;
  meta.dtype = request.dtype;
  meta.shape = request.shape;
  if (request.kind == Collective::Broadcast) meta.root = request.root;
  if (request.kind == Collective::Alltoall) meta.splits = request.splits;
  if (is_point_to_point(request.kind)) {
    meta.peer = request.peer;
    meta.tag = request.tag;
  }
  if (is_reduction(request.kind)) {
    meta.op = request.op;
    meta.prescale = request.prescale;
    meta.postscale = request.postscale;
    if (request.wire_dtype != request.dtype) meta.wire_dtype = request.wire_dtype;
  }
  return meta;
}

std::uint64_t element_count(const std::vector<std::int64_t>& shape) noexcept {
  std::uint64_t count = 1;
  for (const std::int64_t dimension : shape) count *= static_cast<std::uint64_t>(dimension);
  return count;
}

std::uint64_t row_elements(const std::vector<std::int64_t>& shape) noexcept {
  std::uint64_t count = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) count *= static_cast<std::uint64_t>(shape[i]);
  return count;
}

Problem shape_error(const std::vector<std::int64_t>& shape, DataType dtype) {
  constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 62;
  std::uint64_t bytes = size_of(dtype);
  bool empty = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return "shape " + to_string(shape) + " has a negative dimension";
    empty = empty || dimension == 0;
  }
  if (empty) return std::nullopt;
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

std::string to_string(const RequestMeta& meta) {
  std::ostringstream text;
  if (meta.is_group()) {
    text << "a group of " << meta.members.size() << ':';
    for (const RequestMeta& member : meta.members) {
      text << (&member == &meta.members.front() ? " " : "; ");
      if (!member.name.empty()) text << "'" << member.name << "' ";
      text << to_string(member);
    }
    return text.str();
  }
  text.precision(std::numeric_limits<double>::max_digits10);
  text << to_string(meta.kind);
  if (!moves_no_data(meta.kind)) {
    text << ' ' << to_string(meta.dtype) << ' ' << shape_text(meta);
  }
  if (meta.wire_dtype) text << " as " << to_string(*meta.wire_dtype);
  if (!meta.splits.empty()) text << " splits " << to_string(meta.splits);
  if (meta.has_splits) text << " with splits";
  if (is_reduction(meta.kind)) {
    text << ' ' << to_string(meta.op);
    if (meta.prescale != 1.0) text << " prescale " << meta.prescale;
    if (meta.postscale != 1.0) text << " postscale " << meta.postscale;
  }
  if (meta.kind == Collective::Broadcast) text << " root " << meta.root;
  if (is_point_to_point(meta.kind)) text << ' ' << counterpart(meta);
  text << " on " << to_string(meta.device);
  if (meta.symmetric()) text << " at " << meta.symmetric_place - 1 << " of the symmetric heap";
  text << set_text(meta);
  return text.str();
}

std::string unnamed_key(std::uint64_t sequence) {
  return std::string(1, '\0') + std::to_string(sequence);
}

bool is_unnamed(const std::string& key) noexcept {
  return !key.empty() && key[0] == '\0';
}

std::string member_key(const std::string& group, std::size_t number) {
  return std::string(1, '\0') + group + std::string(1, '\0') + std::to_string(number);
}

std::size_t number_without_name(const RequestMeta& group, std::size_t member) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < member; ++i) number += group.members.at(i).name.empty() ? 1 : 0;
  return number;
}

std::string message_key(std::uint64_t number) {
  return std::string(1, '\x01') + std::to_string(number);
}

bool is_message(const std::string& key) noexcept {
  return !key.empty() && key[0] == '\x01';
}

std::string join_key() {
  return std::string(1, '\x02');
}

bool is_join(const std::string& key) noexcept {
  return !key.empty() && key[0] == '\x02';
}

std::string display_name(Collective kind, const std::string& key) {
  std::string text(to_string(kind));
  if (kind == Collective::Join) return text;
  if (key.empty()) return text + " without a name";
  if (is_message(key)) return text + " number " + key.substr(1);
  if (is_unnamed(key)) return text + ' ' + number_text(key);
  return text + " '" + key + "'";
}

std::string display_name(const RequestMeta& meta, const std::string& key) {
  std::string text;
  if (meta.is_group()) {
    text = "the group of " + std::to_string(meta.members.size()) + " operations";
    text += is_unnamed(key) ? ", " + number_text(key) : " with '" + key + "'";
  } else if (is_point_to_point(meta.kind)) {
    text = std::string(to_string(meta.kind)) + ' ' + counterpart(meta);
  } else {
    text = display_name(meta.kind, key);
  }
  return text + set_text(meta);
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

}  // namespace ronde
