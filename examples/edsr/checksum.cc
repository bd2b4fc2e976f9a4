// SPDX-License-Identifier: Apache-2.0
#include "checksum.h"

#include <cstring>

namespace edsr {

void Checksum::add(const void* data, std::size_t bytes) {
  const auto* next = static_cast<const unsigned char*>(data);
  for (std::size_t left = bytes; left > 0;) {
    std::uint64_t word = 0;
    const std::size_t taken = left < sizeof(word) ? left : sizeof(word);
    std::memcpy(&word, next, taken);
    add_word(word);
    next += taken;
    left -= taken;
  }
  add_word(bytes);
}

void Checksum::add(const torch::Tensor& tensor) {
  for (const std::int64_t side : tensor.sizes()) add_word(static_cast<std::uint64_t>(side));
  add_word(static_cast<std::uint64_t>(tensor.scalar_type()));
  const torch::Tensor bytes = tensor.detach().cpu().contiguous();
  add(bytes.data_ptr(), bytes.nbytes());
}

}  // namespace edsr
