// SPDX-License-Identifier: Apache-2.0
// How process sets are made and removed: Note [Making a process set] in coordinator.h.
#include <algorithm>
#include <functional>
#include <iterator>
#include <thread>
#include <utility>

#include "coordinator.h"
#include "exception_text.h"
#include "rank_list.h"
#include "ronde/error.h"

namespace ronde {

ProcessSet Coordinator::add_process_set(const std::vector<int>& ranks) {
  expect_callable("add_process_set()");  // before a number is taken, which all ranks have to share
  ExchangeKey key;
  key.kind = ExchangeKind::AddSet;
  key.name = std::to_string(sets_added_.fetch_add(1));
  key.ranks = global_.info.ranks;
  return make_set(std::move(key), ranks);
}

ProcessSet Coordinator::create_process_set(const std::vector<int>& ranks, const std::string& tag) {
  expect_callable("create_process_set()");
  const std::string error = set_error(ranks, tree_.size());
  if (!error.empty()) throw UsageError("create_process_set(): " + error);
  if (rank_within(ranks, tree_.rank()) < 0) {
    throw UsageError(
        "create_process_set(): " + rank_name(tree_.rank()) + " is not among the ranks " +
            list_ranks(ranks) +
            ": a set is created by its members only; add_process_set() is called by all ranks",
        UsageError::Kind::NotAMember);
  }
  ExchangeKey key;
  key.kind = ExchangeKind::CreateSet;
  key.name = tag;
  key.ranks = ranks;
  return make_set(std::move(key), ranks);
}

ProcessSet Coordinator::make_set(const ExchangeKey& key, const std::vector<int>& ranks) {
  const ExchangeReply agreed = meet(key, list_ranks(ranks))->reply;
  const auto info = std::make_shared<SetInfo>(make_set_info(
      agreed.set, agreed.members, key.kind == ExchangeKind::AddSet, tree_.topology()));
  info->device_problem = backends_.device_problem_of(*info);
  std::string error;
  if (info->is_member()) {
    try {
      Backends backends =
          backends_.make_for_set(*info, [this, &info, step = 0](std::string_view blob) mutable {
            const ExchangeKey blobs = {ExchangeKind::Blobs, info->id, std::to_string(step++),
                                       info->ranks};
            return meet(blobs, std::string(blob))->reply.blobs;
          });
      for (const auto& [device, backend] : backends) {
        info->backends[device] = {std::string(backend->name()), backend->capabilities()};
      }
      hand_over({info, std::move(backends)});
    } catch (...) {
      // What only keeps this set from being made is told to all that wait for it.
      if (failure()) throw;
      error = exception_text();
    }
  }
  finish_set({ExchangeKind::FinishSet, info->id, "", key.ranks}, error);
  if (info->is_member()) queue_->open_set(info->id);
  sets_here_.insert(info);
  if (log_->enabled(LogLevel::Debug)) {
    log_->debug("made process set " + std::to_string(info->id) + " of ranks " +
                list_ranks(info->ranks));
  }
  return {info->id};
}

void Coordinator::hand_over(MadeSet made) {
  const std::lock_guard lock(mutex_);
  if (takes_no_exchanges_) {
    for (auto& [device, backend] : made.backends) backend->abort();
    std::rethrow_exception(takes_no_exchanges_);
  }
  made_.push_back(std::move(made));
  has_exchanges_.store(true);
}

/// Throws UsageError if a rank could not make its part; what this one has made is closed then.
void Coordinator::finish_set(const ExchangeKey& key, const std::string& error) {
  const std::shared_ptr<OwnExchange> finished = ask(key, error);
  try {
    Work(finished->work).wait();
  } catch (const UsageError&) {
    for (auto& [device, backend] : finished->removed.backends) backend->close();
    throw;
  }
}

void Coordinator::remove_process_set(ProcessSet set) {
  expect_callable("remove_process_set()");
  if (set == kGlobalSet) throw UsageError("the process set of all ranks cannot be removed");
  const std::shared_ptr<const SetInfo> info = sets_here_.at(set);
  std::string in_flight;
  if (info->is_member()) {
    for (const std::string& name : queue_->close_set(set.id)) {
      in_flight += (in_flight.empty() ? "" : ", ") + name;
    }
    if (!in_flight.empty()) in_flight += " in flight; wait for it before";
  }
  const std::vector<int>& ranks = info->made_by_all ? global_.info.ranks : info->ranks;
  std::shared_ptr<OwnExchange> agreed;
  try {
    agreed = meet({ExchangeKind::RemoveSet, set.id, "", ranks}, in_flight);
  } catch (const UsageError&) {
    if (info->is_member()) queue_->open_set(set.id);
    throw;
  }
  queue_->forget_set(set.id);
  sets_here_.erase(set.id);
  Backends& backends = agreed->removed.backends;
  std::exception_ptr failure;
  for (auto& [device, backend] : backends) {
    try {
      backend->close();
    } catch (...) {
      if (!failure) failure = std::current_exception();  // thrown once the others have been met
    }
  }
  // What this rank gives back now, others may have mapped until they have closed theirs.
  if (backends.contains(DeviceKind::Cuda)) {
    meet({ExchangeKind::Blobs, set.id, "closed", info->ranks}, {});
  }
  if (failure) std::rethrow_exception(failure);
}

/// Throws where a call that waits for other ranks cannot be made.
void Coordinator::expect_callable(const char* function) const {
  queue_->expect_open();
  if (!is_loop_of_this_thread()) return;
  throw UsageError(rank_name(tree_.rank()) + ": " + function +
                   ": a process set cannot be made or removed in a callback: the engine would wait "
                   "for itself");
}

/// Blocks until all ranks of the exchange have come. Throws UsageError if nothing comes of it.
std::shared_ptr<OwnExchange> Coordinator::meet(ExchangeKey key, std::string blob) {
  std::shared_ptr<OwnExchange> own = ask(std::move(key), std::move(blob));
  Work(own->work).wait();
  return own;
}

std::shared_ptr<OwnExchange> Coordinator::ask(ExchangeKey key, std::string blob) {
  const auto own = std::make_shared<OwnExchange>();
  own->work = std::make_shared<WorkState>(subject_of(key), weak_from_this(), log_);
  own->request = {std::move(key), tree_.rank(), std::move(blob)};
  {
    const std::lock_guard lock(mutex_);
    // In one step with what asks_for_sets() looks at: a shutdown comes before this or after it.
    if (is_call(own->request.key.kind)) queue_->expect_open();
    if (takes_no_exchanges_) std::rethrow_exception(takes_no_exchanges_);
    asked_.push_back(own);
    has_exchanges_.store(true);
  }
  queue_->wake();
  return own;
}

/// Calls that came before a shutdown are still to be told.
bool Coordinator::asks_for_sets() {
  const std::lock_guard lock(mutex_);
  return std::any_of(asked_.begin(), asked_.end(),
                     [](const auto& own) { return is_call(own->request.key.kind); });
}

void Coordinator::take_exchanges() {
  if (!has_exchanges_.load()) return;
  std::vector<std::shared_ptr<OwnExchange>> asked;
  {
    const std::lock_guard lock(mutex_);
    install_sets();
    // A set with operations in progress (of others, if this rank had joined) is not removed yet.
    const auto has_to_wait = [this](const std::shared_ptr<OwnExchange>& own) {
      const ExchangeKey& key = own->request.key;
      const auto set = sets_.find(key.set);
      return key.kind == ExchangeKind::RemoveSet && set != sets_.end() && set->second->busy();
    };
    const auto later =
        std::stable_partition(asked_.begin(), asked_.end(), std::not_fn(has_to_wait));
    asked.assign(std::make_move_iterator(asked_.begin()), std::make_move_iterator(later));
    asked_.erase(asked_.begin(), later);
    has_exchanges_.store(!asked_.empty());
  }
  for (std::shared_ptr<OwnExchange>& own : asked) {
    own->since = Clock::now();
    if (!exchanges_.emplace(own->request.key, own).second) {
      own->work->complete(std::make_exception_ptr(
          UsageError(subject_of(own->request.key) +
                     " is being made or removed by another thread of this rank at the same time")));
      continue;
    }
    if (tree_.is_arbiter()) {
      desk_->add(own->request, own->since);
    } else {
      tree_.send_up(own->request);
    }
  }
}

/// Rank 0.
void Coordinator::answer_exchanges() {
  for (const ExchangeReply& reply : desk_->take()) {
    tree_.send_to(tree_.topology().children_towards(reply.to), encode(reply));
    handle_reply(reply);
  }
}

void Coordinator::handle_reply(const ExchangeReply& reply) {
  if (!reply.members.empty()) learn_set(reply);
  const ExchangeKind kind = reply.key.kind;
  const bool failed = !reply.error.empty();
  const bool is_gone = kind == (failed ? ExchangeKind::FinishSet : ExchangeKind::RemoveSet);
  if (kind == ExchangeKind::FinishSet && !failed) counters_.sets_made.add();
  if (kind == ExchangeKind::RemoveSet && !failed) counters_.sets_removed.add();
  finish_own(reply, is_gone ? forget_set(reply.key.set) : MadeSet());
}

void Coordinator::finish_own(const ExchangeReply& reply, MadeSet removed) {
  const auto found = exchanges_.find(reply.key);
  const bool is_meant = std::find(reply.to.begin(), reply.to.end(), tree_.rank()) != reply.to.end();
  if (!is_meant || found == exchanges_.end()) return;
  const std::shared_ptr<OwnExchange> own = std::move(found->second);
  exchanges_.erase(found);
  own->reply = reply;
  own->removed = std::move(removed);
  std::exception_ptr error;
  if (!reply.error.empty()) error = std::make_exception_ptr(UsageError(reply.error));
  own->work->complete(std::move(error));
}

/// Nobody will come any more.
void Coordinator::end_exchanges(std::exception_ptr error) noexcept {
  std::vector<std::shared_ptr<OwnExchange>> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (!takes_no_exchanges_) takes_no_exchanges_ = error;
    waiting.swap(asked_);
    for (MadeSet& made : made_) {
      for (auto& [device, backend] : made.backends) backend->abort();
    }
    made_.clear();
  }
  for (auto& [key, own] : exchanges_) waiting.push_back(std::move(own));
  exchanges_.clear();
  for (const std::shared_ptr<OwnExchange>& own : waiting) own->work->complete(error);
}

void Coordinator::learn_set(const ExchangeReply& reply) {
  auto set = std::make_unique<SetEngine>(make_set_info(
      reply.set, reply.members, reply.key.kind == ExchangeKind::AddSet, tree_.topology()));
  make_negotiation(*set);
  if (!set->announcer && !set->negotiator && set->children.empty()) return;
  const std::lock_guard lock(mutex_);
  sets_[reply.set] = std::move(set);
}

/// Nothing is in flight there, and what was made for it has been installed.
MadeSet Coordinator::forget_set(std::uint32_t id) {
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(id);
  if (found == sets_.end()) return {};
  std::erase(running_, found->second.get());
  MadeSet forgotten{std::move(found->second->made_for), std::move(found->second->backends)};
  sets_.erase(found);
  return forgotten;
}

/// Operations of the sets that threads have made can be taken from now on. Under mutex_.
void Coordinator::install_sets() {
  for (MadeSet& made : made_) {
    SetEngine& set = *sets_.at(made.info->id);
    set.made_for = std::move(made.info);
    set.backends = std::move(made.backends);
    make_executor(set);
  }
  made_.clear();
}

SetEngine& Coordinator::engine_of(std::uint32_t set) {
  const auto found = sets_.find(set);
  if (found != sets_.end()) return *found->second;
  throw Error("a control message came for process set " + std::to_string(set) + ", which " +
              rank_name(tree_.rank()) + " does not know");
}

/// A set of which this rank has submitted an operation, and so has made it before.
SetEngine& Coordinator::member_engine_of(std::uint32_t set) {
  SetEngine& engine = engine_of(set);
  if (!engine.executor) {
    const std::lock_guard lock(mutex_);
    install_sets();
  }
  return engine;
}

}  // namespace ronde
