// SPDX-License-Identifier: Apache-2.0
#include "api/src/world_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "core/src/base/fields.h"
#include "core/src/base/fingerprint.h"
#include "core/src/base/rank_list.h"
#include "ronde/error.h"
#include "ronde/ronde.h"

namespace ronde {
namespace {

/// How much longer than the first member the others wait, for it to say who did not come.
constexpr std::chrono::seconds kPatience{2};
/// What a message of the first member begins with: the blobs of all, or who did not come, and why.
constexpr char kBlobs = 'b', kFailure = 'f';

/// Exchanges blobs among ranks of a set: the first of them gathers the blobs and sends all of them
/// to each. Every blob goes as its length and its bytes, two messages.
class WorldExchange {
 public:
  WorldExchange(RanksOfSet members, std::size_t own, std::string name,
                std::chrono::nanoseconds timeout)
      : members_(std::move(members)),
        own_(own),
        name_(std::move(name)),
        deadline_(Clock::now() + timeout),
        // No program's own messages bear it, nor those of another world that is being made.
        tag_(static_cast<std::int64_t>(
            detail::fingerprint("ronde::World " + name_ + list_ranks(members_.ranks)) >> 1)) {}

  /// net::Exchange.
  std::vector<std::string> operator()(std::string_view blob) const {
    return own_ == 0 ? gather(blob) : hand_in(blob);
  }

 private:
  using Clock = std::chrono::steady_clock;

  std::vector<std::string> gather(std::string_view blob) const {
    std::vector<std::string> blobs = {std::string(blob)};
    try {
      for (std::size_t i = 1; i < members_.ranks.size(); ++i) {
        blobs.push_back(receive(i, deadline_));
      }
    } catch (const GroupError& error) {
      tell_others(error);
      throw;
    }
    const std::string all = kBlobs + pack_fields(blobs);
    for (std::size_t i = 1; i < members_.ranks.size(); ++i) send(i, all, deadline_ + kPatience);
    return blobs;
  }

  std::vector<std::string> hand_in(std::string_view blob) const {
    send(0, std::string(blob), deadline_ + kPatience);
    const std::string answer = receive(0, deadline_ + kPatience);
    const std::size_t fields = answer.starts_with(kBlobs) ? members_.ranks.size() : 2;
    std::vector<std::string> all =
        unpack_fields_from(members_.ranks.front(), std::string_view(answer).substr(1), fields);
    if (!answer.starts_with(kFailure)) return all;
    throw GroupError(std::stoi(all[0]), all[1]);
  }

  /// Those who have come wait for it. Who has not hears nothing, which is no news.
  void tell_others(const GroupError& error) const {
    const std::string failure =
        kFailure + pack_fields({std::to_string(error.failed_rank()), error.what()});
    std::vector<Work> works;
    for (std::size_t i = 1; i < members_.ranks.size(); ++i) {
      if (members_.ranks[i] == error.failed_rank()) continue;
      for (Work& work : start_send(i, failure, Clock::now() + kPatience)) {
        works.push_back(std::move(work));
      }
    }
    for (const Work& work : works) static_cast<void>(work.wait_for(2 * kPatience));
  }

  void send(std::size_t to, std::string bytes, Clock::time_point deadline) const {
    for (const Work& work : start_send(to, std::move(bytes), deadline)) finish(work, to, deadline);
  }
  std::vector<Work> start_send(std::size_t to, std::string bytes,
                               Clock::time_point deadline) const {
    const auto length = std::make_shared<std::int64_t>(std::ssize(bytes));
    const auto text = std::make_shared<std::string>(std::move(bytes));
    return {start(Collective::Send, to, DataType::I64, 1, length.get(), length, deadline),
            start(Collective::Send, to, DataType::U8, *length, text->data(), text, deadline)};
  }
  std::string receive(std::size_t from, Clock::time_point deadline) const {
    const auto length = std::make_shared<std::int64_t>(0);
    finish(start(Collective::Recv, from, DataType::I64, 1, length.get(), length, deadline), from,
           deadline);
    const auto text = std::make_shared<std::string>(static_cast<std::size_t>(*length), '\0');
    finish(start(Collective::Recv, from, DataType::U8, *length, text->data(), text, deadline), from,
           deadline);
    return *text;
  }

  /// A message to or from a member. `memory` holds what is at `data` for as long as Ronde needs it.
  Work start(Collective kind, std::size_t member, DataType dtype, std::int64_t count, void* data,
             std::shared_ptr<void> memory, Clock::time_point deadline) const {
    Request request;
    request.kind = kind;
    request.set = members_.of;
    request.peer = members_.ranks.at(member);
    request.tag = tag_;
    request.dtype = dtype;
    request.shape = {count};
    request.input = kind == Collective::Send ? data : nullptr;
    request.output = kind == Collective::Recv ? data : nullptr;
    request.timeout =
        std::max<std::chrono::nanoseconds>(deadline - Clock::now(), std::chrono::milliseconds(1));
    request.keep_alive = std::move(memory);
    return submit(std::move(request));
  }

  void finish(const Work& work, std::size_t member, Clock::time_point deadline) const {
    try {
      work.wait();
    } catch (const UsageError& error) {
      if (Clock::now() < deadline) throw;
      const int rank = members_.ranks.at(member);
      throw GroupError(rank, "world '" + name_ + "' was not made: " + rank_name(rank) +
                                 " of the world that its ranks are in did not come within "
                                 "RONDE_INIT_TIMEOUT_S (" +
                                 error.what() + ")");
    }
  }

  const RanksOfSet members_;
  const std::size_t own_;
  const std::string name_;
  const Clock::time_point deadline_;
  const std::int64_t tag_;
};

}  // namespace

MetRanks meet_within(const RanksOfSet& ranks, const std::string& name,
                     std::chrono::nanoseconds timeout) {
  const int size = static_cast<int>(ranks_of(ranks.of).size());
  const std::optional<int> rank = rank_in(ranks.of);
  const std::vector<int>& members = ranks.ranks;
  const std::set<int> distinct(members.begin(), members.end());
  const std::string who = "ronde::World '" + name + "': ";
  if (distinct.empty() || distinct.size() != members.size() || *distinct.begin() < 0 ||
      *distinct.rbegin() >= size) {
    throw UsageError(who + "its ranks have to be different ones of 0 to " +
                     std::to_string(size - 1) + ", not " + list_ranks(members));
  }
  const auto own = rank ? std::ranges::find(members, *rank) : members.end();
  if (own == members.end()) {
    throw UsageError(who + "this rank is not among its ranks, " + list_ranks(members) +
                     ": they alone make it");
  }
  const auto number = static_cast<std::size_t>(own - members.begin());
  return {.rank = static_cast<int>(number),
          .size = static_cast<int>(members.size()),
          .exchange = WorldExchange(ranks, number, name, timeout)};
}

}  // namespace ronde
