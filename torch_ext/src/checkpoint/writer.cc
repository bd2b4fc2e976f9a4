// SPDX-License-Identifier: Apache-2.0
#include "torch_ext/src/checkpoint/writer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/src/base/caller.h"
#include "core/src/base/text.h"
#include "ronde/error.h"
#include "ronde/run.h"
#include "ronde/torch/collectives.h"
#include "torch_ext/src/state/object_bytes.h"
#include "torch_ext/src/store/manifest.h"

namespace ronde::detail {
namespace {

/// A part is sent as the size of its index, the index, and the data.
constexpr std::size_t kHeader = sizeof(std::uint64_t);

std::size_t sent_bytes(const PartBytes& part) {
  return part.data.empty() ? 0 : kHeader + part.index.size() + part.data.size();
}

char* put(char* to, const PartBytes& part) {
  if (part.data.empty()) return to;
  const std::uint64_t size = part.index.size();
  std::memcpy(to, &size, kHeader);
  std::memcpy(to + kHeader, part.index.data(), part.index.size());
  std::memcpy(to + kHeader + part.index.size(), part.data.data(), part.data.size());
  return to + sent_bytes(part);
}

}  // namespace

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::start(const store::Name& name, const std::vector<Piece>& pieces) {
  const std::lock_guard lock(thread_mutex_);
  step_ = name.step;
  const auto work = [this, name, &pieces] {
    const OwnWorkScope scope;
    try {
      const torch::NoGradGuard no_grad;
      write(name, pieces);
    } catch (const GroupError& error) {
      // The program's own next call throws this.
      const std::string before = std::exchange(problem_, {});
      log_.error("ronde::Checkpoint: the save of step " + std::to_string(name.step) +
                 " was cut off: " + error.what() + (before.empty() ? "" : "; before, " + before));
    } catch (...) {
      problem_ = exception_text();
    }
  };
  try {
    thread_ = std::thread(work);
  } catch (const std::system_error&) {
    work();  // no thread could be started, and the other ranks have begun
  }
}

std::string CheckpointWriter::finish() {
  const std::lock_guard lock(thread_mutex_);
  if (thread_.joinable()) thread_.join();
  if (problem_.empty()) return {};
  return "step " + std::to_string(step_) + " was not saved: " + std::exchange(problem_, {});
}

void CheckpointWriter::write(const store::Name& name, const std::vector<Piece>& pieces) {
  PartBytes part;
  problem_ = problem_of([&] {
    if (!pieces.empty()) {
      part = make_part(pieces);
      write_part(name, layout_.rank, part.index, part.text());
    }
    if (layout_.commits) store_.check_alone(name, first_);
  });
  // Collective, so also after a problem.
  if (layout_.exchanges()) exchange(name, part);
  const std::vector<store::PartSummary> parts = agree_on_parts(problem_.empty(), part);
  if (!layout_.commits) return;
  if (parts.empty()) return store_.discard(name);
  const std::optional<store::Manifest> earlier = std::exchange(uncommitted_, std::nullopt);
  const store::Manifest manifest{.name = name, .ranks = layout_.size, .parts = parts};
  problem_ = problem_of([&] { store_.commit(manifest); });
  if (!problem_.empty()) {
    uncommitted_ = manifest;
    return;
  }
  note_checkpoint(name.step, layout_.set);
  // Other hosts may have committed the earlier one, while the disk was full here, say.
  const std::string missing = earlier ? problem_of([&] { store_.commit(*earlier); }) : "";
  const std::string left = problem_of([&] { store_.prune(keep_, name, passed_over_, first_); });
  for (const std::string& problem : {missing, left}) {
    if (!problem.empty()) log_.warning("ronde::Checkpoint: an older one: " + problem);
  }
}

/// Writes the part of rank `of` if this rank is its writer or copier.
void CheckpointWriter::write_part(const store::Name& name, int of, std::string_view index,
                                  std::string_view data) {
  if (layout_.writer(of) == layout_.rank) {
    store_.write_part(name, of, store::Copy::Own, index, data);
  }
  if (layout_.copier(of) == layout_.rank) {
    store_.write_part(name, of, store::Copy::OfAnotherHost, index, data);
  }
}

/// A rank that has a problem, such as lack of memory, sends nothing.
void CheckpointWriter::exchange(const store::Name& name, const PartBytes& part) {
  std::vector<std::int64_t> splits(static_cast<std::size_t>(layout_.size));
  at::Tensor rows;
  if (problem_.empty()) problem_ = problem_of([&] { rows = rows_of(part, splits); });
  if (!rows.defined()) {
    std::fill(splits.begin(), splits.end(), 0);
    rows = at::empty({0}, at::kByte);
  }
  const TensorWork work = alltoall_async(
      rows, splits, {.name = layout_.subject + "/parts", .process_set = layout_.set});
  const std::string problem = problem_of([&] { write_received(name, work); });
  if (problem_.empty()) problem_ = problem;
}

/// Returns the bytes to send, and sets their `splits`.
at::Tensor CheckpointWriter::rows_of(const PartBytes& part,
                                     std::vector<std::int64_t>& splits) const {
  const auto bytes = static_cast<std::int64_t>(sent_bytes(part));
  std::int64_t sent = 0;
  for (const int to : {layout_.writer(layout_.rank), layout_.copier(layout_.rank)}) {
    if (to < 0 || to == layout_.rank || splits[static_cast<std::size_t>(to)] > 0) continue;
    splits[static_cast<std::size_t>(to)] = bytes;
    sent += bytes;
  }
  at::Tensor rows = at::empty({sent}, at::kByte);
  char* next = static_cast<char*>(rows.mutable_data_ptr());
  for (std::int64_t put_in = 0; bytes > 0 && put_in < sent; put_in += bytes) next = put(next, part);
  return rows;
}

void CheckpointWriter::write_received(const store::Name& name, const TensorWork& work) {
  const at::Tensor received = work.wait();
  const std::vector<std::int64_t> counts = work.received_splits();
  const auto* from = static_cast<const char*>(received.const_data_ptr());
  for (int of = 0; of < layout_.size; ++of) {
    const auto count = static_cast<std::size_t>(counts[static_cast<std::size_t>(of)]);
    if (count == 0) continue;
    std::uint64_t size = 0;
    std::memcpy(&size, from, kHeader);
    const std::string_view index(from + kHeader, size);
    const std::string_view data(index.data() + size, count - kHeader - size);
    write_part(name, of, index, data);
    from += count;
  }
}

/// Returns the parts for the manifest; none if a rank has failed, which reports it in its next
/// call.
std::vector<store::PartSummary> CheckpointWriter::agree_on_parts(bool succeeded,
                                                                 const PartBytes& part) {
  const auto index = static_cast<std::int64_t>(store::checksum(part.index));
  const auto bytes = static_cast<std::int64_t>(part.data.size());
  const at::Tensor mine = at::tensor({succeeded ? std::int64_t{1} : 0, bytes, index}, at::kLong);
  const at::Tensor all = allgather_async(mine.view({1, 3}), {.name = layout_.subject + "/written",
                                                             .process_set = layout_.set})
                             .wait();
  const auto* row = all.const_data_ptr<std::int64_t>();
  std::vector<store::PartSummary> parts;
  bool all_succeeded = true;
  for (int of = 0; of < layout_.size; ++of, row += 3) {
    all_succeeded = all_succeeded && row[0] == 1;
    if (row[1] == 0) continue;
    parts.push_back({.part = of,
                     .bytes = static_cast<std::uint64_t>(row[1]),
                     .index = store::checksum_text(static_cast<std::uint64_t>(row[2]))});
  }
  return all_succeeded ? parts : std::vector<store::PartSummary>();
}

}  // namespace ronde::detail
