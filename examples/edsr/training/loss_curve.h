// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <vector>

#include <torch/types.h>

namespace edsr {

/// The loss of every step, averaged over the ranks. Rank 0 writes it to a file with the columns
/// step,learning_rate,loss. Steps count from 1.
class LossCurve {
 public:
  /// Keeps of an existing file the steps up to `last_step` (0: none): those a resumed run has
  /// behind it. Throws InputError on rank 0 when the file cannot be written.
  LossCurve(const std::filesystem::path& path, std::int64_t last_step);

  /// Notes a step's loss on this rank. Not collective, and does not wait for a GPU.
  void add(std::int64_t step, double learning_rate, const torch::Tensor& loss);

  /// Averages over the ranks what was noted since the last flush, and writes it. Collective. Throws
  /// InputError on every rank when a loss is not finite: training has diverged.
  void flush();

  /// As of the last flush; 0 before it.
  double first() const { return first_; }
  double latest() const { return latest_; }

 private:
  struct Noted {
    std::int64_t step;
    double learning_rate;
    torch::Tensor loss;
  };

  void write(const Noted& noted, double loss);

  std::filesystem::path path_;
  std::ofstream file_;  ///< open on rank 0 only
  std::vector<Noted> noted_;
  bool any_ = false;
  double first_ = 0;
  double latest_ = 0;
};

}  // namespace edsr
