// SPDX-License-Identifier: Apache-2.0
#include "training/loss_curve.h"

#include <cmath>
#include <iomanip>
#include <limits>
#include <string>

#include <ronde/torch.h>

#include "common/errors.h"
#include "training/step_table.h"

namespace edsr {
LossCurve::LossCurve(const std::filesystem::path& path, std::int64_t last_step) : path_(path) {
  if (ronde::rank() != 0) return;
  file_ = open_step_table(path, "step,learning_rate,loss", last_step);
  file_ << std::setprecision(std::numeric_limits<double>::max_digits10);
}

void LossCurve::add(std::int64_t step, double learning_rate, const torch::Tensor& loss) {
  noted_.push_back({step, learning_rate, loss.detach()});
}

void LossCurve::flush() {
  if (noted_.empty()) return;
  std::vector<torch::Tensor> losses;
  for (const Noted& noted : noted_) losses.push_back(noted.loss);
  const torch::Tensor local = torch::stack(losses).to(torch::kFloat64).cpu();
  const torch::Tensor mean = ronde::allreduce(local, {.name = "loss"});
  for (std::size_t i = 0; i < noted_.size(); ++i) {
    write(noted_[i], mean[static_cast<std::int64_t>(i)].item<double>());
  }
  noted_.clear();
  if (ronde::rank() != 0) return;
  file_.flush();
  if (!file_)
    throw example::InputError("file " + path_.string() + " cannot be written; is the disk full?");
}

void LossCurve::write(const Noted& noted, double loss) {
  if (!std::isfinite(loss)) {
    throw example::InputError("training has diverged: the loss of step " +
                              std::to_string(noted.step) + " is not finite; lower --lr");
  }
  if (!any_) first_ = loss;
  any_ = true;
  latest_ = loss;
  if (file_.is_open()) file_ << noted.step << "," << noted.learning_rate << "," << loss << "\n";
}

}  // namespace edsr
