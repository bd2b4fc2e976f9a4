// SPDX-License-Identifier: Apache-2.0
#include "training/group.h"

#include <algorithm>
#include <string>

#include <ronde/torch.h>

#include "common/checksum.h"
#include "common/errors.h"

namespace edsr {
namespace {

constexpr double kAgreementSeconds = 1;
constexpr double kShortestSeconds = 1e-6;
constexpr double kMaxInterval = 50;

}  // namespace

GroupClock::GroupClock(double seconds) : before_(seconds), agreed_(seconds) {}

double GroupClock::local_seconds() const {
  return before_ + std::chrono::duration<double>(Clock::now() - start_).count();
}

bool GroupClock::step_done() {
  if (++steps_since_ < interval_) return false;
  agree();
  return true;
}

void GroupClock::agree() {
  const torch::Tensor reading = torch::tensor({local_seconds()}, torch::kFloat64);
  const double now = ronde::broadcast(reading, {.name = "clock"}).item<double>();
  // The next interval follows from agreed readings alone, so it too is equal on every rank.
  const double steps_per_second =
      static_cast<double>(steps_since_) / std::max(now - agreed_, kShortestSeconds);
  const double steps = kAgreementSeconds * steps_per_second;
  interval_ = static_cast<std::int64_t>(std::clamp(steps, 1.0, kMaxInterval));
  agreed_ = now;
  steps_since_ = 0;
}

void require_same_photographs(const std::vector<Photograph>& training,
                              const std::vector<Photograph>& held_out) {
  example::Checksum checksum;
  for (const std::uint64_t part : {fingerprint(training), fingerprint(held_out)}) {
    checksum.add(&part, sizeof(part));
  }
  const std::vector<std::uint64_t> all =
      example::gather_checksums(checksum.value(), "photograph checksum");
  std::string different;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    different += (different.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (different.empty()) return;
  throw example::InputError("the photographs of rank " + different +
                            " differ from rank 0's; every rank must find the same files in --data");
}

}  // namespace edsr
