// SPDX-License-Identifier: Apache-2.0
#include "core/src/loop/own_exchanges.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/src/agree/exchange_coordinator.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"

namespace ronde {

void OwnExchanges::ask(std::shared_ptr<OwnExchange> own) {
  {
    const std::lock_guard lock(mutex_);
    // Under the mutex of asks_for_sets(), so that a shutdown comes either before this or after it.
    if (is_call(own->request.key.kind)) queue_.expect_open();
    if (ended_) std::rethrow_exception(ended_);
    asked_.push_back(std::move(own));
    has_news_.store(true);
  }
  queue_.wake();
}

void OwnExchanges::install(MadeSet made) {
  const std::lock_guard lock(mutex_);
  if (ended_) {
    for (auto& [device, backend] : made.backends) backend->abort();
    std::rethrow_exception(ended_);
  }
  made_.push_back(std::move(made));
  has_news_.store(true);
}

bool OwnExchanges::asks_for_sets() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(asked_,
                             [](const auto& own) { return is_call(own->request.key.kind); });
}

std::vector<MadeSet> OwnExchanges::take_made() {
  const std::lock_guard lock(mutex_);
  return std::exchange(made_, {});
}

OwnExchanges::News OwnExchanges::take(const std::function<bool(std::uint32_t)>& busy,
                                      TimePoint now) {
  News news;
  std::vector<std::shared_ptr<OwnExchange>> asked;
  {
    const std::lock_guard lock(mutex_);
    news.made = std::exchange(made_, {});
    const auto is_ready = [&busy](const std::shared_ptr<OwnExchange>& own) {
      const ExchangeKey& key = own->request.key;
      return key.kind != ExchangeKind::RemoveSet || !busy(key.set);
    };
    const auto later = std::stable_partition(asked_.begin(), asked_.end(), is_ready);
    asked.assign(std::make_move_iterator(asked_.begin()), std::make_move_iterator(later));
    asked_.erase(asked_.begin(), later);
    has_news_.store(!asked_.empty());
  }
  for (std::shared_ptr<OwnExchange>& own : asked) {
    own->since = now;
    if (under_way_.emplace(own->request.key, own).second) {
      news.requests.push_back(own->request);
    } else {
      own->work->complete(std::make_exception_ptr(
          UsageError(subject_of(own->request.key) +
                     " is being made or removed by another thread of this rank at the same time")));
    }
  }
  return news;
}

void OwnExchanges::finish(const ExchangeReply& reply, int rank, MadeSet removed) {
  const auto found = under_way_.find(reply.key);
  if (rank_within(reply.to, rank) < 0 || found == under_way_.end()) return;
  const std::shared_ptr<OwnExchange> own = std::move(found->second);
  under_way_.erase(found);
  own->reply = reply;
  own->removed = std::move(removed);
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
    for (MadeSet& made : made_) {
      for (auto& [device, backend] : made.backends) backend->abort();
    }
    made_.clear();
  }
  for (auto& [key, own] : under_way_) waiting.push_back(std::move(own));
  under_way_.clear();
  for (const std::shared_ptr<OwnExchange>& own : waiting) own->work->complete(error);
}

std::optional<TimePoint> OwnExchanges::oldest() const {
  std::optional<TimePoint> oldest;
  for (const auto& [key, own] : under_way_) {
    if (!oldest || own->since < *oldest) oldest = own->since;
  }
  return oldest;
}

}  // namespace ronde
