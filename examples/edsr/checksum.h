// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include <torch/types.h>

namespace edsr {

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

/// Over every parameter and buffer of a module, in the order of their names.
template <typename Module>
std::uint64_t parameter_checksum(const Module& module) {
  Checksum checksum;
  for (const auto& item : module.named_parameters()) {
    checksum.add(item.key());
    checksum.add(item.value());
  }
  for (const auto& item : module.named_buffers()) {
    checksum.add(item.key());
    checksum.add(item.value());
  }
  return checksum.value();
}

}  // namespace edsr
