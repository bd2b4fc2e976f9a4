// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/src/base/problem.h"
#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/request.h"

namespace ronde {

/// The part of a Request that the ranks compare.
struct RequestMeta {
  Collective kind = Collective::Allreduce;
  DataType dtype = DataType::F32;
  ReduceOp op = ReduceOp::Sum;
  DeviceKind device = DeviceKind::Cpu;
  std::uint32_t set = 0;
  std::int32_t root = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::int64_t> shape;
  /// Alltoall: the rows are each rank's own and go with the data (Note [Rows of an alltoall]), so
  /// that shape[0] is 0.
  bool has_splits = false;
  std::vector<std::int64_t> splits;  ///< as given, only where they are wrong: for the refusal
  /// The place of a symmetric buffer in the symmetric heap, plus one; 0: not symmetric.
  std::uint64_t symmetric_place = 0;
  std::optional<DataType> wire_dtype = {};  ///< none where it would be `dtype`
  std::int32_t peer = 0;                    ///< send and recv, as is the tag
  std::int64_t tag = 0;
  std::string name;  ///< of a group's member only
  /// The members of a group, in the order in which they run. The rest is as for a barrier.
  std::vector<RequestMeta> members;

  bool is_group() const noexcept { return !members.empty(); }

  bool symmetric() const noexcept { return symmetric_place > 0; }

  friend bool operator==(const RequestMeta&, const RequestMeta&) = default;
};

RequestMeta meta_of(const Request& request);

/// Combines elements: has an op and scales.
constexpr bool is_reduction(Collective kind) noexcept {
  return kind == Collective::Allreduce || kind == Collective::Reducescatter;
}

/// Only reports that a rank is there, or has joined.
constexpr bool moves_no_data(Collective kind) noexcept {
  return kind == Collective::Barrier || kind == Collective::Join;
}

/// Runs without the ranks that have joined.
constexpr bool may_lack_ranks(Collective kind) noexcept {
  return is_reduction(kind) || kind == Collective::Barrier;
}

/// The first dimension may differ between ranks.
constexpr bool has_own_rows(Collective kind) noexcept {
  return kind == Collective::Allgather || kind == Collective::Alltoall;
}

/// The result is of another shape than the input, and may be allocated once that is known.
constexpr bool may_allocate(Collective kind) noexcept {
  return has_own_rows(kind) || kind == Collective::Reducescatter;
}

/// Elements of a shape; the empty shape has one. Assumes a checked shape (see shape_error).
std::uint64_t element_count(const std::vector<std::int64_t>& shape) noexcept;

/// Elements of a row, that is of all dimensions but the first; a scalar is one row of one.
std::uint64_t row_elements(const std::vector<std::int64_t>& shape) noexcept;

/// Checks a shape for negative dimensions and more than 2^62 bytes.
Problem shape_error(const std::vector<std::int64_t>& shape, DataType dtype);

/// "[2, 3]"
std::string to_string(const std::vector<std::int64_t>& shape);

/// "allreduce f32 [2, 3] as bf16 sum on cpu", with scales, root and process set where they matter;
/// "a group of 2: ..." with all members.
std::string to_string(const RequestMeta& meta);

// Note [Keys]
// Ranks match operations by key. The key of a named operation is its name. An operation without a
// name is matched by the order of calls: its key is a NUL byte, which starts no user text, and its
// number.
//
// Point-to-point messages are matched by ranks and tag. Their key is a byte 1, which starts no user
// text either, and a number that is known to its own rank alone. A join's key is a byte 2. A group
// is matched as a whole, by the first name in it or the order of calls; a member without a name has
// a key for its own rank alone: a NUL byte, the group's key, another NUL byte, and its number among
// those without a name.

std::string unnamed_key(std::uint64_t sequence);
bool is_unnamed(const std::string& key) noexcept;

/// The key of the `number`-th member without a name in the group with this key.
std::string member_key(const std::string& group, std::size_t number);

/// The number of `member` among those of a group that have no name.
std::size_t number_without_name(const RequestMeta& group, std::size_t member);

std::string message_key(std::uint64_t number);
bool is_message(const std::string& key) noexcept;

std::string join_key();
bool is_join(const std::string& key) noexcept;

/// "allreduce 'x'", "allreduce number 3 without a name", or of the fourth message "send number 3".
/// A group's member: "allreduce number 0 without a name in the group with 'g'". Without a key yet:
/// "allreduce without a name".
std::string display_name(Collective kind, const std::string& key);

/// The same with the process set, "allreduce 'x' in process set 1", or the counterpart within the
/// set, "send to rank 2 (tag 5)" or "recv from any rank (tag 5)".
std::string display_name(const RequestMeta& meta, const std::string& key);

/// "a, b, c and 157 more", for texts.
std::string first_few(const std::vector<std::string>& names);

}  // namespace ronde
