// SPDX-License-Identifier: Apache-2.0
#include "api/src/world_exchange.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
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

/// How much longer than the first member the others wait, for it to say who did not come, and what
/// a message may take once both its ranks have come.
constexpr std::chrono::seconds kPatience{2};
/// What an answer of the first member begins with: the blobs of all, or who did not come, and why.
constexpr char kBlobs = 'b', kFailure = 'f';

/// Exchanges blobs among ranks of a set: the first of them gathers the blobs and sends all of them
/// to each. Every blob goes as its length and its bytes, two messages.
///
/// The time limit of a message fails the world that it travels in, if it passes in the middle of
/// the message. So limits are later than the deadline at which a rank gives up another one.
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

  /// A length on its way.
  struct Length {
    Work work;
    std::shared_ptr<std::int64_t> bytes = std::make_shared<std::int64_t>(0);
  };

  std::vector<std::string> gather(std::string_view blob) const {
    std::vector<std::string> blobs = {std::string(blob)};
    std::vector<Length> lengths = {{}};
    for (std::size_t i = 1; i < members_.ranks.size(); ++i) {
      lengths.push_back(start_receiving(i, deadline_));
    }
    std::optional<GroupError> missing;
    std::vector<std::size_t> came, late;
    for (std::size_t i = 1; i < members_.ranks.size(); ++i) {
      try {
        blobs.push_back(finish_receiving(i, lengths[i], deadline_));
        came.push_back(i);
      } catch (const GroupError& error) {
        if (!missing) missing = error;
        late.push_back(i);
      }
    }
    const std::string failure =
        missing ? pack_fields({std::to_string(missing->failed_rank()), missing->what()}) : "";
    answer(came, missing ? kFailure + failure : kBlobs + pack_fields(blobs));
    if (!missing) return blobs;
    for (const std::size_t i : late) expire(lengths[i].work);
    throw GroupError(*missing);
  }

  void answer(const std::vector<std::size_t>& members, const std::string& text) const {
    std::vector<Work> works;
    for (const std::size_t member : members) {
      for (Work& work : start_sending(member, text)) works.push_back(std::move(work));
    }
    for (const Work& work : works) work.wait();
  }

  /// Waits for the end of a message that nobody sends, so that nothing of it is left.
  static void expire(const Work& work) {
    try {
      work.wait();
    } catch (const UsageError&) {
      // As expected.
    }
  }

  std::vector<std::string> hand_in(std::string_view blob) const {
    const std::vector<Work> sent = start_sending(0, std::string(blob));
    const std::string answer = await_answer(sent);
    if (answer.empty()) fail_unreadable(members_.ranks.front());
    const std::size_t fields = answer.starts_with(kBlobs) ? members_.ranks.size() : 2;
    std::vector<std::string> all =
        unpack_fields_from(members_.ranks.front(), std::string_view(answer).substr(1), fields);
    if (answer.starts_with(kFailure)) throw GroupError(std::stoi(all[0]), all[1]);
    for (const Work& work : sent) work.wait();
    return all;
  }

  /// `sent`: to the first member.
  std::string await_answer(const std::vector<Work>& sent) const {
    const auto until = deadline_ + kPatience;
    const Length length = start_receiving(0, until);
    try {
      return finish_receiving(0, length, until);
    } catch (const GroupError&) {
      expire(length.work);
      for (const Work& work : sent) expire(work);
      throw;
    }
  }

  std::vector<Work> start_sending(std::size_t to, std::string bytes) const {
    const auto length = std::make_shared<std::int64_t>(std::ssize(bytes));
    const auto text = std::make_shared<std::string>(std::move(bytes));
    const auto until = deadline_ + 2 * kPatience;
    return {start(Collective::Send, to, DataType::I64, 1, length.get(), length, until),
            start(Collective::Send, to, DataType::U8, *length, text->data(), text, until)};
  }

  Length start_receiving(std::size_t from, Clock::time_point until) const {
    Length length;
    length.work = start(Collective::Recv, from, DataType::I64, 1, length.bytes.get(), length.bytes,
                        until + kPatience);
    return length;
  }

  std::string finish_receiving(std::size_t from, const Length& length,
                               Clock::time_point until) const {
    const std::chrono::nanoseconds rest = until - Clock::now();
    if (!length.work.wait_for(std::max(rest, std::chrono::nanoseconds(0)))) fail_waiting(from);
    const auto text = std::make_shared<std::string>(static_cast<std::size_t>(*length.bytes), '\0');
    const Work rest_of_it = start(Collective::Recv, from, DataType::U8, *length.bytes, text->data(),
                                  text, until + kPatience);
    rest_of_it.wait();
    return *text;
  }

  [[noreturn]] void fail_waiting(std::size_t member) const {
    const int rank = members_.ranks.at(member);
    const bool is_world = members_.of.id == kGlobalSet.id;
    throw GroupError(rank, "world '" + name_ + "' was not made: " + rank_name(rank) + " of the " +
                               (is_world ? "world" : "process set") +
                               " that its ranks are in did not " +
                               (member == 0 ? "answer" : "come") + " within RONDE_INIT_TIMEOUT_S");
  }

  /// A message to or from a member. `memory` holds what is at `data` for as long as Ronde needs it.
  Work start(Collective kind, std::size_t member, DataType dtype, std::int64_t count, void* data,
             std::shared_ptr<void> memory, Clock::time_point until) const {
    Request request;
    request.kind = kind;
    request.set = members_.of;
    request.peer = members_.ranks.at(member);
    request.tag = tag_;
    request.dtype = dtype;
    request.shape = {count};
    request.input = kind == Collective::Send ? data : nullptr;
    request.output = kind == Collective::Recv ? data : nullptr;
    request.timeout = std::max<std::chrono::nanoseconds>(until - Clock::now(), kPatience);
    request.keep_alive = std::move(memory);
    return submit(std::move(request));
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
