// SPDX-License-Identifier: Apache-2.0
#include "api/src/world_exchange.h"

#include <algorithm>
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

/// Exchanges blobs among ranks of a set: the first of them gathers the blobs and sends all of them
/// to each. Every blob goes as its length and its bytes, two messages.
class WorldExchange {
 public:
  WorldExchange(RanksOfSet members, std::size_t own, std::string name,
                std::chrono::nanoseconds timeout)
      : members_(std::move(members)),
        own_(own),
        name_(std::move(name)),
        timeout_(timeout),
        // No program's own messages bear it, nor those of another world that is being made.
        tag_(static_cast<std::int64_t>(
            detail::fingerprint("ronde::World " + name_ + list_ranks(members_.ranks)) >> 1)) {}

  /// net::Exchange.
  std::vector<std::string> operator()(std::string_view blob) const {
    if (own_ != 0) {
      send(0, std::string(blob));
      return unpack_fields_from(members_.ranks.front(), receive(0), members_.ranks.size());
    }
    std::vector<std::string> blobs = {std::string(blob)};
    for (std::size_t i = 1; i < members_.ranks.size(); ++i) blobs.push_back(receive(i));
    const std::string all = pack_fields(blobs);
    for (std::size_t i = 1; i < members_.ranks.size(); ++i) send(i, all);
    return blobs;
  }

 private:
  void send(std::size_t to, std::string bytes) const {
    const auto length = std::make_shared<std::int64_t>(std::ssize(bytes));
    const auto text = std::make_shared<std::string>(std::move(bytes));
    pass(Collective::Send, to, DataType::I64, 1, length.get(), length);
    if (*length > 0) pass(Collective::Send, to, DataType::U8, *length, text->data(), text);
  }
  std::string receive(std::size_t from) const {
    const auto length = std::make_shared<std::int64_t>(0);
    pass(Collective::Recv, from, DataType::I64, 1, length.get(), length);
    const auto text = std::make_shared<std::string>(static_cast<std::size_t>(*length), '\0');
    if (*length > 0) pass(Collective::Recv, from, DataType::U8, *length, text->data(), text);
    return *text;
  }

  /// A message to or from a member. `memory` holds what is at `data` for as long as Ronde needs it.
  void pass(Collective kind, std::size_t member, DataType dtype, std::int64_t count, void* data,
            std::shared_ptr<void> memory) const {
    Request request;
    request.kind = kind;
    request.set = members_.of;
    request.peer = members_.ranks.at(member);
    request.tag = tag_;
    request.dtype = dtype;
    request.shape = {count};
    request.input = kind == Collective::Send ? data : nullptr;
    request.output = kind == Collective::Recv ? data : nullptr;
    request.timeout = timeout_;
    request.keep_alive = std::move(memory);
    try {
      run(std::move(request));
    } catch (const UsageError& error) {
      throw GroupError(request.peer, "world '" + name_ + "' was not made, as " +
                                         rank_name(request.peer) +
                                         " of the world that its ranks are in did not come within "
                                         "RONDE_INIT_TIMEOUT_S: " +
                                         error.what());
    }
  }

  const RanksOfSet members_;
  const std::size_t own_;
  const std::string name_;
  const std::chrono::nanoseconds timeout_;
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
