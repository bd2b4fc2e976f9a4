// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <barrier>
#include <string>
#include <string_view>
#include <vector>

namespace ronde::test {

/// BackendContext::exchange of ranks that are threads of this process.
class ThreadExchange {
 public:
  explicit ThreadExchange(int ranks) : together_(ranks), blobs_(static_cast<std::size_t>(ranks)) {}

  /// Returns the blobs of all ranks, once every rank has called it.
  std::vector<std::string> operator()(int rank, std::string_view blob) {
    blobs_[static_cast<std::size_t>(rank)] = blob;
    together_.arrive_and_wait();
    std::vector<std::string> result = blobs_;
    together_.arrive_and_wait();
    return result;
  }

  /// That of one rank.
  auto of(int rank) {
    return [this, rank](std::string_view blob) { return (*this)(rank, blob); };
  }

 private:
  std::barrier<> together_;
  std::vector<std::string> blobs_;
};

}  // namespace ronde::test
