// SPDX-License-Identifier: Apache-2.0
// The functions that take a work or a queue.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "c_api/src/arguments.h"
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

constexpr double kForEver = 1e9;  ///< seconds: 31 years

}  // namespace

std::optional<Clock::time_point> deadline_in(double timeout_s) {
  expect(!std::isnan(timeout_s), "timeout_s is not a number");
  if (timeout_s < 0 || timeout_s > kForEver) return std::nullopt;
  const std::chrono::duration<double> timeout(timeout_s);
  return Clock::now() + std::chrono::ceil<Clock::duration>(timeout);
}

std::chrono::nanoseconds timeout_of(double seconds, const char* name) {
  if (!(seconds >= 0)) {
    throw Failure(RONDE_E_INVALID_ARGUMENT, std::string(name) + " is negative or not a number");
  }
  if (seconds > kForEver) return {};
  return std::chrono::ceil<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

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

QueueTable& queues() {
  static auto* const table = new QueueTable("the queue");
  expect_own_process("a function of queues");
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
    find(work)->on_done([fn, context](const WorkRecord& record) { record.invoke(fn, context); });
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

int ronde_work_missing_ranks(ronde_work work, int* ranks, int* count) {
  return guarded("ronde_work_missing_ranks", [&] {
    expect(count != nullptr, "count is NULL");
    give_list<int, int>(find(work)->missing_ranks(), ranks, count, [](int rank) { return rank; });
  });
}

int ronde_work_free(ronde_work work) {
  if (work == nullptr) return RONDE_OK;
  return guarded("ronde_work_free", [&] { works().erase(work); });
}

int ronde_queue_make(ronde_queue* queue) {
  return guarded("ronde_queue_make", [&] {
    expect(queue != nullptr, "queue is NULL");
    *queue = queues().insert(std::make_shared<ronde::CompletionQueue>());
  });
}

int ronde_queue_add(ronde_queue queue, ronde_work work, uint64_t token) {
  return guarded("ronde_queue_add", [&] {
    const std::function<void()> notify = queues().find(queue)->notifier(token);
    find(work)->on_done([notify](const WorkRecord&) { notify(); });
  });
}

int ronde_queue_next(ronde_queue queue, double timeout_s, uint64_t* token) {
  return guarded("ronde_queue_next", [&] {
    expect(token != nullptr, "token is NULL");
    const std::shared_ptr<ronde::CompletionQueue> found = queues().find(queue);
    const std::optional<Clock::time_point> deadline = deadline_in(timeout_s);
    if (timeout_s != 0) expect_no_callback();
    const auto next =
        found->next(deadline ? *deadline - Clock::now() : std::chrono::nanoseconds::max());
    if (!next && deadline && Clock::now() >= *deadline) {
      throw Failure(RONDE_E_TIMEOUT, "no other work of the queue is done yet");
    }
    if (!next) throw Failure(RONDE_E_INTERRUPTED, "a signal handler ran on this thread");
    *token = *next;
  });
}

int ronde_queue_descriptor(ronde_queue queue, int* descriptor) {
  return guarded("ronde_queue_descriptor", [&] {
    expect(descriptor != nullptr, "descriptor is NULL");
    *descriptor = queues().find(queue)->descriptor();
  });
}

int ronde_queue_free(ronde_queue queue) {
  if (queue == nullptr) return RONDE_OK;
  return guarded("ronde_queue_free", [&] { queues().erase(queue); });
}
