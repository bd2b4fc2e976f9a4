// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/process_set_maker.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/src/agree/exchange_coordinator.h"
#include "core/src/base/rank_list.h"
#include "core/src/base/text.h"
#include "core/src/loop/loop.h"
#include "ronde/error.h"
#include "ronde/work.h"

namespace ronde {
namespace {

void abort_backends(MadeSet& set) noexcept {
  for (auto& [device, backend] : set.backends) backend->abort();
}

}  // namespace

void OwnExchanges::ask(std::shared_ptr<OwnExchange> own) {
  {
    const std::lock_guard lock(mutex_);
    // Under the mutex of asks_for_sets(), so that a shutdown comes either before this or after it.
    if (is_call(own->request.key.kind)) queue_.expect_open();
    if (ended_) {
      abort_backends(own->parts);
      std::rethrow_exception(ended_);
    }
    asked_.push_back(std::move(own));
    has_news_.store(true);
  }
  queue_.wake();
}

bool OwnExchanges::asks_for_sets() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(asked_,
                             [](const auto& own) { return is_call(own->request.key.kind); });
}

std::vector<std::shared_ptr<OwnExchange>> OwnExchanges::take(
    const std::function<bool(std::uint32_t)>& busy, TimePoint now) {
  std::vector<std::shared_ptr<OwnExchange>> taken;
  {
    const std::lock_guard lock(mutex_);
    for (std::shared_ptr<OwnExchange>& own : std::exchange(asked_, {})) {
      const ExchangeKey& key = own->request.key;
      const bool is_early = key.kind == ExchangeKind::RemoveSet && busy(key.set);
      (is_early ? asked_ : taken).push_back(std::move(own));
    }
    has_news_.store(!asked_.empty());
  }
  std::erase_if(taken, [&](const std::shared_ptr<OwnExchange>& own) {
    own->since = now;
    if (under_way_.emplace(own->request.key, own).second) return false;
    own->work->complete(std::make_exception_ptr(
        UsageError(subject_of(own->request.key) +
                   " is being made or removed by another thread of this rank at the same time")));
    return true;
  });
  return taken;
}

void OwnExchanges::finish(const ExchangeReply& reply, int rank, MadeSet removed) {
  const auto found = under_way_.find(reply.key);
  if (rank_within(reply.to, rank) < 0 || found == under_way_.end()) return;
  const std::shared_ptr<OwnExchange> own = std::move(found->second);
  under_way_.erase(found);
  own->reply = reply;
  own->parts = std::move(removed);
  std::exception_ptr error;
  if (!reply.error.empty()) error = std::make_exception_ptr(UsageError(reply.error));
  own->work->complete(std::move(error));
}

void OwnExchanges::end(std::exception_ptr error) noexcept {
  std::vector<std::shared_ptr<OwnExchange>> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) ended_ = error;
    waiting.swap(asked_);
  }
  for (auto& [key, own] : under_way_) waiting.push_back(std::move(own));
  under_way_.clear();
  for (const std::shared_ptr<OwnExchange>& own : waiting) {
    abort_backends(own->parts);
    own->parts = {};
    own->work->complete(error);
  }
}

ProcessSetMaker::ProcessSetMaker(const Parts& parts, std::weak_ptr<WaitHelper> engine,
                                 std::shared_ptr<Logger> log)
    : parts_(parts), engine_(std::move(engine)), log_(std::move(log)) {}

ProcessSet ProcessSetMaker::add(const std::vector<int>& ranks) {
  expect_callable("add_process_set()");  // before a number is taken, which all ranks have to share
  return make_set({ExchangeKind::AddSet, 0, std::to_string(added_.fetch_add(1)), everybody()},
                  ranks);
}

ProcessSet ProcessSetMaker::create(const std::vector<int>& ranks, const std::string& tag) {
  expect_callable("create_process_set()");
  const Problem error = set_error(ranks, parts_.tree.size());
  if (error) throw UsageError("create_process_set(): " + *error);
  if (rank_within(ranks, parts_.tree.rank()) < 0) {
    throw UsageError(
        "create_process_set(): " + rank_name(parts_.tree.rank()) + " is not among the ranks " +
            list_ranks(ranks) +
            ": a set is created by its members only; add_process_set() is called by all ranks",
        UsageError::Kind::NotAMember);
  }
  return make_set({ExchangeKind::CreateSet, 0, tag, ranks}, ranks);
}

ProcessSet ProcessSetMaker::make_set(const ExchangeKey& key, const std::vector<int>& ranks) {
  const ExchangeReply agreed = meet(key, list_ranks(ranks))->reply;
  const auto info = std::make_shared<SetInfo>(make_set_info(
      agreed.set, agreed.members, key.kind == ExchangeKind::AddSet, parts_.tree.topology()));
  info->device_problem = parts_.backends.device_problem_of(*info);
  std::string error;
  MadeSet made;
  if (info->is_member()) {
    try {
      Backends backends = parts_.backends.make_for_set(
          *info,
          [this, &info, step = 0](std::string_view blob) mutable {
            const ExchangeKey blobs = {ExchangeKind::Blobs, info->id, std::to_string(step++),
                                       info->ranks};
            return meet(blobs, std::string(blob))->reply.blobs;
          },
          [this] { return parts_.life.failure() != nullptr; });
      for (const auto& [device, backend] : backends) {
        info->backends[device] = {std::string(backend->name()), backend->capabilities()};
      }
      made = {info, std::move(backends)};
    } catch (...) {
      // A failure that only prevents this set is reported to all ranks that wait for it.
      if (const auto failure = parts_.life.failure()) std::rethrow_exception(failure);
      error = exception_text();
    }
  }
  finish_set({ExchangeKind::FinishSet, info->id, "", key.ranks}, error, std::move(made));
  if (info->is_member()) parts_.queue.names()->open_set(info->id);
  parts_.table.insert(info);
  if (log_->enabled(LogLevel::Debug)) {
    log_->debug("made process set " + std::to_string(info->id) + " of ranks " +
                list_ranks(info->ranks));
  }
  return parts_.table.named(info->id);
}

/// Throws UsageError if a rank could not make its part; what this one has made is closed then.
void ProcessSetMaker::finish_set(const ExchangeKey& key, const std::string& error, MadeSet made) {
  const std::shared_ptr<OwnExchange> finished = ask(key, error, std::move(made));
  try {
    Work(finished->work).wait();
  } catch (const UsageError&) {
    for (auto& [device, backend] : finished->parts.backends) {
      try {
        backend->close();
      } catch (const std::exception& problem) {  // of use beside the reason only
        log_->warning("after process set " + std::to_string(key.set) +
                      " could not be made: " + problem.what());
      }
    }
    throw;
  }
}

void ProcessSetMaker::remove(ProcessSet set) {
  expect_callable("remove_process_set()");
  if (parts_.table.is_everybody(set)) {
    throw UsageError("the process set of all ranks cannot be removed");
  }
  const std::shared_ptr<const SetInfo> info = parts_.table.at(set);
  std::string in_flight;
  if (info->is_member()) {
    for (const std::string& name : parts_.queue.names()->close_set(set.id)) {
      in_flight += (in_flight.empty() ? "" : ", ") + name;
    }
    if (!in_flight.empty()) in_flight += " in flight; wait for it before";
  }
  const std::vector<int> ranks = info->made_by_all ? everybody() : info->ranks;
  std::shared_ptr<OwnExchange> agreed;
  try {
    agreed = meet({ExchangeKind::RemoveSet, set.id, "", ranks}, in_flight);
  } catch (const UsageError&) {
    if (info->is_member()) parts_.queue.names()->open_set(set.id);
    throw;
  }
  parts_.queue.names()->forget_set(set.id);
  parts_.table.erase(set.id);
  Backends& backends = agreed->parts.backends;
  std::exception_ptr failure;
  for (auto& [device, backend] : backends) {
    try {
      backend->close();
    } catch (...) {
      if (!failure) failure = std::current_exception();  // thrown after the exchange below
    }
  }
  // Other ranks may have mapped the memory that this rank frees now, until they have closed their
  // backends.
  if (backends.contains(DeviceKind::Cuda)) {
    meet({ExchangeKind::Blobs, set.id, "closed", info->ranks}, {});
  }
  if (failure) std::rethrow_exception(failure);
}

/// Throws where a call that waits for other ranks cannot be made.
void ProcessSetMaker::expect_callable(const char* function) const {
  parts_.queue.expect_open();
  if (!parts_.loop.is_this_thread()) return;
  throw UsageError(rank_name(parts_.tree.rank()) + ": " + function +
                   ": a process set cannot be made or removed in a callback: the engine would wait "
                   "for itself");
}

/// Blocks until all ranks of the exchange have come. Throws UsageError if the exchange fails.
std::shared_ptr<OwnExchange> ProcessSetMaker::meet(ExchangeKey key, std::string blob) {
  std::shared_ptr<OwnExchange> own = ask(std::move(key), std::move(blob));
  Work(own->work).wait();
  return own;
}

std::shared_ptr<OwnExchange> ProcessSetMaker::ask(ExchangeKey key, std::string blob, MadeSet made) {
  auto work = std::make_shared<WorkState>(subject_of(key), engine_, log_);
  const auto own = std::make_shared<OwnExchange>(OwnExchange{
      {std::move(key), parts_.tree.rank(), std::move(blob)}, std::move(made), std::move(work)});
  parts_.exchanges.ask(own);
  return own;
}

}  // namespace ronde
