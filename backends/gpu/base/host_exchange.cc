// SPDX-License-Identifier: Apache-2.0
#include "backends/gpu/base/host_exchange.h"

namespace ronde::gpu {

void HostExchange::start(std::span<const std::byte> own) {
  own_.assign(own.begin(), own.end());
  all_.resize(own_.size() * size_);
  counts_.assign(size_, own_.size());
  operation_ = host_.allgather(
      {.input = own_.data(), .output = all_.data(), .counts = counts_, .dtype = DataType::U8});
}

bool HostExchange::poll() {
  if (operation_ && !operation_->poll()) return false;
  operation_.reset();
  return true;
}

}  // namespace ronde::gpu
