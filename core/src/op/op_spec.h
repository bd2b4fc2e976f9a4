// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "core/src/base/text.h"
#include "ronde/collective.h"
#include "ronde/dtype.h"
#include "ronde/request.h"

namespace ronde {

/// The properties of an operation, or of a group, that the ranks compare. Never changes once it is
/// shared: see SpecPtr.
struct OpSpec {
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
  /// Request::refusal. The spec of no other operation equals one with a refusal, cached and planned
  /// ones included.
  std::string refusal;
  /// Request::name. Messages and joins have none; a group has the first name of its members.
  std::string name;
  /// The members of a group, in the order in which they run. The rest is as for a barrier.
  std::vector<OpSpec> members;
  /// The hash of the other fields, which share() computes; comparisons leave it out.
  struct Hash {
    std::size_t value = 0;
    friend constexpr bool operator==(Hash, Hash) noexcept { return true; }
  } hash = {};

  bool is_group() const noexcept { return !members.empty(); }

  bool symmetric() const noexcept { return symmetric_place > 0; }

  friend bool operator==(const OpSpec&, const OpSpec&) = default;
};

/// The description of an operation, which its work handle, its way through the engine and the
/// response cache share; that of a persistent operation is the same in every start.
using SpecPtr = std::shared_ptr<const OpSpec>;

/// Computes the hash, and returns the spec for sharing.
SpecPtr share(OpSpec spec);

/// Compares the pointers first: a repeated operation often has the same spec.
inline bool is_same(const SpecPtr& a, const SpecPtr& b) {
  return a == b || *a == *b;
}

/// Returns the spec of a member of a group, which the group owns.
inline SpecPtr member_of(const SpecPtr& group, std::size_t member) {
  return {group, &group->members.at(member)};
}

/// Hash of containers whose key is a whole spec.
struct SpecHash {
  std::size_t operator()(const SpecPtr& spec) const noexcept { return spec->hash.value; }
};
struct SpecEqual {
  bool operator()(const SpecPtr& a, const SpecPtr& b) const { return is_same(a, b); }
};

/// The specs of a simulation, whose ranks share those that are equal: each has most of the same.
using SpecPool = std::unordered_set<SpecPtr, SpecHash, SpecEqual>;
/// From now on share() finds equal specs there. Null: nowhere. No engine may run.
void share_among_ranks(SpecPool* pool) noexcept;

OpSpec spec_of(const Request& request);

/// The common digest of ranks whose digests differ (Request::digest).
inline constexpr std::uint64_t kDigestsDiffer = ~std::uint64_t{0};

/// Combines the digests of two sets of ranks; 0: they gave none.
constexpr std::uint64_t common_digest(std::uint64_t a, std::uint64_t b) noexcept {
  if (a == 0 || a == b) return b;
  return b == 0 ? a : kDigestsDiffer;
}

/// Returns whether it combines elements, and so has an op and scales.
constexpr bool is_reduction(Collective kind) noexcept {
  return kind == Collective::Allreduce || kind == Collective::Reducescatter ||
         kind == Collective::Reduce;
}

/// Returns whether one rank is unlike the others (Request::root).
constexpr bool has_root(Collective kind) noexcept {
  return kind == Collective::Broadcast || kind == Collective::Reduce;
}

/// Whether `operation`, an OpSpec or a Request, averages or scales integers: Note [Exact sums] in
/// core/src/run/exact_sum.h.
constexpr bool needs_exact_sum(const auto& operation) noexcept {
  const bool is_scaled =
      operation.op == ReduceOp::Average || operation.prescale != 1.0 || operation.postscale != 1.0;
  return is_reduction(operation.kind) && is_integer(operation.dtype) && is_scaled;
}

/// Returns whether it only reports that a rank is there, or has joined.
constexpr bool moves_no_data(Collective kind) noexcept {
  return kind == Collective::Barrier || kind == Collective::Join;
}

/// Returns whether the first dimension may differ between ranks.
constexpr bool has_own_rows(Collective kind) noexcept {
  return kind == Collective::Allgather || kind == Collective::Alltoall;
}

/// Returns whether the result has another shape than the input, and may be allocated once that is
/// known.
constexpr bool may_allocate(Collective kind) noexcept {
  return has_own_rows(kind) || kind == Collective::Reducescatter;
}

/// Returns the number of elements of a row, that is of all dimensions but the first; a scalar is
/// one row of one. Assumes a checked shape (shape_error).
inline std::uint64_t row_elements(const std::vector<std::int64_t>& shape) noexcept {
  std::uint64_t count = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) count *= static_cast<std::uint64_t>(shape[i]);
  return count;
}

/// Returns the number of elements; the empty shape has one. Assumes a checked shape.
inline std::uint64_t element_count(const std::vector<std::int64_t>& shape) noexcept {
  return shape.empty() ? 1 : static_cast<std::uint64_t>(shape.front()) * row_elements(shape);
}

/// Checks a shape for negative dimensions and more than 2^62 bytes.
Problem shape_error(const std::vector<std::int64_t>& shape, DataType dtype);

/// "[2, 3]"
std::string to_string(const std::vector<std::int64_t>& shape);

/// "allreduce f32 [2, 3] as bf16 sum on cpu", with scales, root and process set where they matter;
/// "a group of 2: ..." with all members.
std::string to_string(const OpSpec& spec);

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

/// The key of an operation on its rank, from its submission to its end.
struct OpKey {
  SpecPtr spec;
  std::string number;  ///< the key of an operation without a name, of a message or a join

  const std::string& text() const noexcept { return number.empty() ? spec->name : number; }
};

/// Hash of containers in which the text of a key finds its operation.
struct OpKeyHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view key) const noexcept {
    return std::hash<std::string_view>()(key);
  }
  std::size_t operator()(const OpKey& key) const noexcept { return (*this)(key.text()); }
};
struct OpKeyEqual {
  using is_transparent = void;
  bool operator()(const OpKey& a, const OpKey& b) const noexcept { return a.text() == b.text(); }
  bool operator()(std::string_view a, const OpKey& b) const noexcept { return a == b.text(); }
};

inline std::string unnamed_key(std::uint64_t number) {
  return std::string(1, '\0') + std::to_string(number);
}
constexpr bool is_unnamed(std::string_view key) noexcept {
  return key.starts_with('\0');
}

/// Returns the key of the `number`-th member without a name in the group with this key.
inline std::string member_key(const std::string& group, std::size_t number) {
  return std::string(1, '\0') + group + unnamed_key(number);
}

/// Returns the number of `member` among the members of a group that have no name.
inline std::size_t number_without_name(const OpSpec& group, std::size_t member) {
  std::size_t number = 0;
  for (std::size_t i = 0; i < member; ++i) number += group.members.at(i).name.empty() ? 1 : 0;
  return number;
}

inline std::string message_key(std::uint64_t number) {
  return '\x01' + std::to_string(number);
}
constexpr bool is_message(std::string_view key) noexcept {
  return key.starts_with('\x01');
}

inline std::string join_key() {
  return "\x02";
}
constexpr bool is_join(std::string_view key) noexcept {
  return key.starts_with('\x02');
}

/// Returns "allreduce 'x'", "allreduce number 3 without a name", or for the fourth message "send
/// number 3"; for a member of a group "allreduce number 0 without a name in the group with 'g'";
/// without a key yet "allreduce without a name".
std::string display_name(Collective kind, const std::string& key);

/// Adds the process set, "allreduce 'x' in process set 1", or the counterpart within the set, "send
/// to rank 2 (tag 5)" or "recv from any rank (tag 5)".
std::string display_name(const OpSpec& spec, const std::string& key);
inline std::string display_name(const OpKey& key) {
  return display_name(*key.spec, key.text());
}

/// "a, b, c and 157 more", for texts.
std::string first_few(const std::vector<std::string>& names);

// The first dimension of a tensor, divided among ranks.

/// Returns the rows of every rank after a reducescatter: as even as can be, the first have one
/// more.
std::vector<std::int64_t> scattered_rows(std::int64_t rows, int size);

// Note [Rows of an alltoall]
// Without splits every rank knows what all send, as the first dimensions are agreed on. With them a
// matrix of all ranks' splits would take 8 MB of each decision for 1000 ranks, and splits that
// change would be agreed on anew each time. So the ranks agree that there are splits, and each
// checks its own. The rows go with the data: the executor starts a small alltoall on the backend
// of the CPU (RowExchange), allocates the result, and then starts the alltoall of the data.

/// Checks the splits of an alltoall among `size` ranks. Assumes a checked shape (see shape_error).
Problem splits_error(const OpSpec& spec, int size);

/// Removes valid splits, and the rows, from the properties that the ranks compare.
void leave_out_rows(OpSpec& spec, int size);

/// In RankRows: the rank gave splits.
inline constexpr std::int64_t kHasSplits = -1;

/// The first dimensions of all ranks, where they may differ.
struct RankRows {
  std::vector<std::int64_t> first_dims;  ///< by rank; of allgather and alltoall; or kHasSplits
  std::vector<RankRows> members = {};    ///< of a group

  bool empty() const;
  /// Returns whether some rank gave splits, so that no rank knows yet what it receives.
  bool has_splits() const { return std::ranges::find(first_dims, kHasSplits) != first_dims.end(); }

  friend bool operator==(const RankRows&, const RankRows&) = default;
};

/// Rows that the cache and every use of what it holds share.
class SharedRows {
 public:
  SharedRows() = default;
  explicit SharedRows(RankRows rows);

  const RankRows& operator*() const noexcept { return rows_ ? *rows_ : kNone; }
  const RankRows* operator->() const noexcept { return &**this; }
  /// Returns those of a member of the group.
  SharedRows member(std::size_t index) const;

 private:
  static inline const RankRows kNone = {};
  std::shared_ptr<const RankRows> rows_;  ///< null: none
};

/// Returns the sum, at most 2^63 - 1.
std::int64_t total_rows(const std::vector<std::int64_t>& rows) noexcept;

}  // namespace ronde
