// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/checkpoint.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"

namespace ronde {

BatchShare share_batch(std::int64_t total, std::int64_t largest, ProcessSet process_set) {
  detail::check_member("ronde::share_batch", process_set);
  const auto ranks = static_cast<std::int64_t>(ranks_of(process_set).size());
  if (largest < 1 || total < ranks) {
    throw UsageError(detail::rank_prefix(process_set) + "ronde::share_batch: " +
                     std::to_string(total) + " samples cannot be divided among " +
                     std::to_string(ranks) + " ranks in batches of at most " +
                     std::to_string(largest) + ". Give at least one sample a rank");
  }
  // The nearest whole number of samples a rank that equal passes divide.
  const std::int64_t whole = (2 * total + ranks) / (2 * ranks);
  std::int64_t passes = (whole + largest - 1) / largest;
  if (total % ranks == 0) {
    while (whole % passes != 0) ++passes;
  }
  BatchShare share;
  share.passes = static_cast<int>(passes);
  share.batch = std::max<std::int64_t>(1, (2 * total + ranks * passes) / (2 * ranks * passes));
  share.batch = std::min(share.batch, largest);
  share.total = share.batch * passes * ranks;
  share.rate_factor = static_cast<double>(share.total) / static_cast<double>(total);
  return share;
}

}  // namespace ronde
