// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ronde/process_set.h"
#include "torch_ext/src/store/manifest.h"

namespace ronde::detail {

/// The assignment of parts to ranks. Ranks are numbers within the process set.
struct CheckpointLayout {
  ProcessSet set = {};
  /// Prefix of the names of operations.
  std::string subject = {};
  int rank = 0;
  int size = 1;
  bool sharded = true;
  bool replicated = false;
  std::vector<int> host_of = {0};  ///< by rank
  /// Whether this rank commits its folder: it is the lowest of those that write into it.
  bool commits = true;

  /// Returns the rank that writes the part of `of`.
  int writer(int of) const { return sharded ? of : 0; }
  /// Returns the rank on the next host that writes a copy of that part; -1: none.
  int copier(int of) const;
  bool writes() const;
  /// Whether parts are sent between ranks.
  bool exchanges() const { return size > 1 && (!sharded || replicated); }
};

/// Assigns items to ranks with about equal numbers of bytes: the largest first, each to the rank
/// with the least. Returns the rank of each item.
std::vector<int> divide_among_ranks(const std::vector<std::uint64_t>& bytes, int ranks);

/// A tensor, or an object's bytes as a tensor, to be written into a part.
struct Piece {
  store::Entry entry = {};  ///< without offset and checksum
  at::Tensor values = {};   ///< on the CPU, row-major
};

/// A rank's part: a file that torch::pickle_load reads as a dictionary of tensors, and an index of
/// the tensors' offsets in it.
struct PartBytes {
  std::vector<char> data = {};
  std::string index = {};

  std::string_view text() const { return {data.data(), data.size()}; }
};

/// "Float [2, 3]"
std::string describe_entry(const store::Entry& entry);

/// Returns an entry with name, dtype and shape. Throws UsageError for tensors that are not strided.
store::Entry entry_of(const std::string& name, const at::Tensor& tensor);

PartBytes make_part(const std::vector<Piece>& pieces);

/// Copies the tensor of an entry out of the part's bytes. Throws UsageError if dtype and shape do
/// not fit the number of bytes.
at::Tensor tensor_of(const store::Entry& entry, std::string_view bytes);

}  // namespace ronde::detail
