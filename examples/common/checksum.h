// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

namespace example {

/// A running 64-bit FNV-1a checksum over 8-byte words (the last word padded with zeros, then the
/// length): enough to tell whether two ranks hold the same bytes, not meant against an adversary.
class Checksum {
 public:
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  /// Shape, type and every byte of the values.
  void add(const torch::Tensor& tensor);

  std::uint64_t value() const { return state_; }

 private:
  void add_word(std::uint64_t word) {
    state_ = (state_ ^ word) * 0x100000001B3;
    state_ ^= state_ >> 29;  // FNV-1a alone would never carry a high bit of a word downwards
  }

  std::uint64_t state_ = 0xCBF29CE484222325;
};

/// Over every parameter of a module, in the order of their names.
std::uint64_t parameter_checksum(const torch::nn::Module& module);

/// The checksums of all ranks, in rank order. Collective; `name` is the operation's.
std::vector<std::uint64_t> gather_checksums(std::uint64_t mine, const std::string& name);

/// Whether all ranks hold the same bytes of parameters, by their checksums. Collective; the same
/// answer on every rank.
bool parameters_identical(const torch::nn::Module& module);

}  // namespace example
