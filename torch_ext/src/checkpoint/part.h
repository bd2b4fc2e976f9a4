// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "torch_ext/src/store/manifest.h"

namespace ronde::detail {

/// A tensor, or an object's bytes as a tensor of bytes, on its way into a part.
struct Piece {
  store::Entry entry = {};  ///< without offset and checksum
  at::Tensor values = {};   ///< on the CPU, row-major
};

/// What a rank writes: a file that torch::pickle_load reads as a dictionary of tensors, and an
/// index that says where in it each tensor's bytes are.
struct PartBytes {
  std::vector<char> data = {};
  std::string index = {};

  std::string_view text() const { return {data.data(), data.size()}; }
};

/// "Float [2, 3]"
std::string describe_entry(const store::Entry& entry);

/// Name, dtype and shape. Throws UsageError for tensors that are not plain memory.
store::Entry entry_of(const std::string& name, const at::Tensor& tensor);

PartBytes make_part(const std::vector<Piece>& pieces);

/// The tensor of an entry, in memory of its own. `bytes`: of the whole part. Throws UsageError if
/// dtype and shape do not fit the number of bytes.
at::Tensor tensor_of(const store::Entry& entry, std::string_view bytes);

}  // namespace ronde::detail
