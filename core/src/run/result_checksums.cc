// SPDX-License-Identifier: Apache-2.0
#include "core/src/run/result_checksums.h"

#include <cstddef>
#include <utility>

#include "core/src/base/fingerprint.h"

namespace ronde {
namespace {

bool is_same_on_all_ranks(Collective kind) {
  return kind == Collective::Allreduce || kind == Collective::Broadcast ||
         kind == Collective::Allgather;
}

}  // namespace

void ResultChecksums::number(std::vector<Submission>& agreed) {
  for (Submission& item : agreed) {
    if (!is_same_on_all_ranks(item.spec().kind)) continue;
    if (item.spec().device == DeviceKind::Cpu) {
      item.result_number = ++numbers_;
    } else if (!std::exchange(has_told_of_devices_, true)) {
      log_.warning("RONDE_VERIFY compares results in host memory alone: that of " +
                   display_name(item.key) + " is on a GPU, as may be others");
    }
  }
}

void ResultChecksums::add(const Submission& item, bool failed) {
  ResultEnd& end = ends_.emplace_back();
  end.number = item.result_number;
  end.text = display_name(item.key);
  if (const std::uint64_t ended = events_.steps_ended(); ended > 0) end.step = ended + 1;
  const bool is_result =
      !failed && item.contributed && item.work;  // none of a rank that has joined
  if (!is_result) return;
  const auto* const bytes = static_cast<const std::byte*>(item.start.output);
  const std::size_t size = element_count(results_.shape(item)) * size_of(item.spec().dtype);
  end.checksum = detail::fingerprint_of_words(bytes, bytes == nullptr ? 0 : size);
}

}  // namespace ronde
