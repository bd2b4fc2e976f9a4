// SPDX-License-Identifier: Apache-2.0
#include "common/checksum.h"

#include <ronde/torch.h>

#include <algorithm>
#include <cstring>

namespace example {

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

std::uint64_t parameter_checksum(const torch::nn::Module& module) {
  Checksum checksum;
  for (const auto& item : module.named_parameters()) {
    checksum.add(item.key());
    checksum.add(item.value());
  }
  return checksum.value();
}

std::vector<std::uint64_t> gather_checksums(std::uint64_t mine, const std::string& name) {
  const torch::Tensor all = ronde::allgather(
      torch::tensor({static_cast<std::int64_t>(mine)}, torch::kInt64), {.name = name});
  return {all.data_ptr<std::int64_t>(), all.data_ptr<std::int64_t>() + all.numel()};
}

bool parameters_identical(const torch::nn::Module& module) {
  const auto all = gather_checksums(parameter_checksum(module), "parameter checksum");
  return std::all_of(all.begin(), all.end(), [&](std::uint64_t one) { return one == all.front(); });
}

}  // namespace example
