// SPDX-License-Identifier: Apache-2.0
// The functions that take a work.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "c_api/src/handle_table.h"
#include "core/src/base/caller.h"
#include "ronde/ronde_c.h"

namespace ronde::c {
namespace {

using Clock = std::chrono::steady_clock;

/// Called before the mutex of a table is locked: Note [After fork].
void expect_own_process(const char* function) {
  static const int depth = fork_depth();
  if (fork_depth() != depth) throw error_after_fork(function);
}

std::shared_ptr<WorkRecord> find(ronde_work work) {
  return works().find(work);
}

/// Returns nothing for "for ever", which includes what the clock cannot hold.
std::optional<Clock::time_point> deadline_in(double timeout_s) {
  constexpr double kForEver = 1e9;  // 31 years
  expect(!std::isnan(timeout_s), "timeout_s is not a number");
  if (timeout_s < 0 || timeout_s > kForEver) return std::nullopt;
  const std::chrono::duration<double> timeout(timeout_s);
  return Clock::now() + std::chrono::ceil<Clock::duration>(timeout);
}

}  // namespace

WorkTable& works() {
  static auto* const table = new WorkTable("the work");
  expect_own_process("a function of works");
  return *table;
}

PersistentTable& persistent_operations() {
  static auto* const table = new PersistentTable("the persistent operation");
  expect_own_process("a function of persistent operations");
  return *table;
}

}  // namespace ronde::c

using namespace ronde::c;

int ronde_work_done(ronde_work work, int* done) {
  return guarded("ronde_work_done", [&] {
    expect(done != nullptr, "done is NULL");
    *done = find(work)->done() ? 1 : 0;
  });
}

int ronde_work_wait(ronde_work work, double timeout_s) {
  return guarded("ronde_work_wait", [&] {
    const std::optional<Clock::time_point> deadline = deadline_in(timeout_s);
    if (find(work)->wait(deadline)) return;
    throw Failure(RONDE_E_TIMEOUT, "the work is not done yet; it goes on");
  });
}

int ronde_work_wait_stream(ronde_work work, void* stream) {
  return guarded("ronde_work_wait_stream", [&] { find(work)->wait_on(stream); });
}

int ronde_work_on_done(ronde_work work, ronde_done_fn fn, void* context) {
  return guarded("ronde_work_on_done", [&] {
    expect(fn != nullptr, "fn is NULL");
    find(work)->on_done(fn, context);
  });
}

int ronde_work_output(ronde_work work, void** data, int* dims, int64_t* shape, int* dtype) {
  return guarded("ronde_work_output", [&] {
    const auto record = find(work);
    const Result& result = record->result();
    if (data != nullptr) *data = result.data;
    if (dims != nullptr) *dims = static_cast<int>(result.shape.size());
    if (shape != nullptr) std::copy(result.shape.begin(), result.shape.end(), shape);
    if (dtype != nullptr) *dtype = static_cast<int>(result.dtype);
  });
}

int ronde_work_splits(ronde_work work, int64_t* splits) {
  return guarded("ronde_work_splits", [&] {
    expect(splits != nullptr, "splits is NULL");
    const std::vector<std::int64_t> rows =
        find(work)->finished(ronde::Collective::Alltoall).received_splits();
    std::copy(rows.begin(), rows.end(), splits);
  });
}

int ronde_work_source(ronde_work work, int* rank) {
  return guarded("ronde_work_source", [&] {
    expect(rank != nullptr, "rank is NULL");
    *rank = find(work)->finished(ronde::Collective::Recv).source();
  });
}

int ronde_work_last_rank(ronde_work work, int* rank) {
  return guarded("ronde_work_last_rank", [&] {
    expect(rank != nullptr, "rank is NULL");
    *rank = find(work)->finished(ronde::Collective::Join).last_rank();
  });
}

int ronde_work_free(ronde_work work) {
  if (work == nullptr) return RONDE_OK;
  return guarded("ronde_work_free", [&] { works().erase(work); });
}
